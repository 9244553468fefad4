"""The control API over a real socket: who may call, what is answered, who cannot hold anybody up."""

import asyncio
import random
import socket
import subprocess
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from asyncrl_api.control import control_pb2 as pb
from asyncrl_api.control.control_pb2_grpc import ControlStub
from asyncrl_runtime.app.control.feed import StatusFeed
from asyncrl_runtime.app.control.server import ControlServer, PortInUse, Tls
from asyncrl_runtime.app.control.service import Applied, ControlService, NotNow, Unknown
from asyncrl_runtime.app.state import RunState, ShardView
from asyncrl_runtime.core.errors import RunError

TOKEN = "s3cret"
METADATA = (("authorization", f"Bearer {TOKEN}"),)


@dataclass
class Steered:
    """A run that notes how it is steered."""

    calls: list = field(default_factory=list)
    state: RunState = field(
        default_factory=lambda: RunState(
            name="digits",
            phase="Running",
            step=3,
            max_steps=10,
            sampler="in_order",
            staleness_p50=0,
            shards=[ShardView(index=0, state="HEALTHY", weight_version=3)],
            prompts={
                "admitted": 5,
                "committed": 4,
                "trained": 2,
                "dropped": 0,
                "discarded": 1,
                "live": 2,
                "discarded_by_cause": {"evicted": 1},
            },
            failure={"type": "Stalled", "message": "nothing moves", "step": 3},
        )
    )

    async def apply(self, job_json, generation):
        self.calls.append(("apply", job_json, generation))
        return Applied(["spec.asyncRL.maxInflightPrompts"], ["spec.image"], [("spec.data", "it is fixed")])

    async def checkpoint(self):
        return 3, "step_3"

    def quiesce(self, reason):
        self.calls.append(("quiesce", reason))

    async def quarantine(self, index, reason):
        if index > 0:
            raise Unknown(f"there is no shard {index}")
        return replace(self.state.shards[0], state="RETIRED")

    async def release(self, index):
        raise NotNow("shard 0 serves")

    async def drain_pod(self, pod, timeout_seconds):
        if pod == "broken":
            raise KeyError("a defect")
        if pod == "refused":
            raise RunError("the fleet is exhausted")
        return [0], 2


@asynccontextmanager
async def serving(controls=None, **choices):
    controls = controls or Steered()
    feed = StatusFeed(read=lambda: controls.state, fresh_seconds=0.0)
    choices.setdefault("health_address", "127.0.0.1:0")
    server = ControlServer(
        service=ControlService(controls, feed), token=TOKEN, address="127.0.0.1:0", **choices
    )
    await server.start()
    try:
        yield server, controls
    finally:
        await server.stop()


@asynccontextmanager
async def client(server):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield ControlStub(channel)


async def code_of(call):
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    return error.value.code(), error.value.details()


async def test_a_status_says_what_the_state_says_and_leaves_out_what_is_not_known():
    async with serving() as (server, _), client(server) as stub:
        status = await stub.GetStatus(pb.GetStatusRequest(), metadata=METADATA, timeout=10)
    assert (status.name, status.phase, status.progress.step, status.progress.max_steps) == (
        "digits",
        "Running",
        3,
        10,
    )
    assert status.sampler.HasField("staleness_p50")
    assert not status.sampler.HasField("staleness_max")
    assert not status.progress.HasField("reward_mean")
    assert status.prompts.discarded_by_cause == {"evicted": 1}
    assert (status.failure.type, status.failure.step) == ("Stalled", 3)
    assert [shard.state for shard in status.shards] == ["HEALTHY"]
    assert status.updated_at > 0


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "Bearer wrong"),),
        (("authorization", TOKEN),),
        (("authorization", "bearer " + TOKEN),),
        (("authorization", ""),),
        (("token", TOKEN),),
    ],
)
async def test_no_call_without_the_token_gets_an_answer(metadata):
    async with serving() as (server, controls), client(server) as stub:
        calls = {
            "GetStatus": pb.GetStatusRequest(),
            "ApplyConfig": pb.ApplyConfigRequest(),
            "Checkpoint": pb.CheckpointRequest(),
            "Quiesce": pb.QuiesceRequest(),
            "QuarantineShard": pb.ShardRequest(),
            "ReleaseShard": pb.ShardRequest(),
            "DrainPod": pb.DrainPodRequest(),
        }
        for name, request in calls.items():
            code, _ = await code_of(getattr(stub, name)(request, metadata=metadata, timeout=10))
            assert code == grpc.StatusCode.UNAUTHENTICATED, name
        stream = stub.WatchStatus(pb.WatchStatusRequest(), metadata=metadata, timeout=10)
        code, _ = await code_of(stream.read())
        assert code == grpc.StatusCode.UNAUTHENTICATED
        assert controls.calls == []


async def test_an_unknown_method_is_unauthenticated_without_the_token_and_unimplemented_with_it():
    async with serving() as (server, _), grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = channel.unary_unary("/asyncrl.control.v1.Control/Destroy")
        assert (await code_of(call(b"", timeout=10)))[0] == grpc.StatusCode.UNAUTHENTICATED
        known = await code_of(call(b"", metadata=METADATA, timeout=10))
        assert known[0] == grpc.StatusCode.UNIMPLEMENTED


async def test_each_call_reaches_the_run():
    async with serving() as (server, controls), client(server) as stub:
        rest = {"metadata": METADATA, "timeout": 10}
        applied = await stub.ApplyConfig(pb.ApplyConfigRequest(job_json="{}", generation=7), **rest)
        assert (list(applied.applied), list(applied.pending)) == (
            ["spec.asyncRL.maxInflightPrompts"],
            ["spec.image"],
        )
        assert [(r.path, r.reason) for r in applied.refused] == [("spec.data", "it is fixed")]
        saved = await stub.Checkpoint(pb.CheckpointRequest(), **rest)
        assert (saved.step, saved.path) == (3, "step_3")
        await stub.Quiesce(pb.QuiesceRequest(reason="suspend"), **rest)
        assert (await stub.QuarantineShard(pb.ShardRequest(index=0), **rest)).shard.state == "RETIRED"
        drained = await stub.DrainPod(pb.DrainPodRequest(pod="gen-0", timeout_seconds=5), **rest)
        assert (list(drained.shards), drained.left_requests) == ([0], 2)
    assert controls.calls == [("apply", "{}", 7), ("quiesce", "suspend")]


async def test_errors_have_the_status_that_fits_and_never_end_the_server():
    async with serving() as (server, _), client(server) as stub:
        rest = {"metadata": METADATA, "timeout": 10}
        assert await code_of(stub.QuarantineShard(pb.ShardRequest(index=9), **rest)) == (
            grpc.StatusCode.NOT_FOUND,
            "there is no shard 9",
        )
        released = await code_of(stub.ReleaseShard(pb.ShardRequest(index=0), **rest))
        assert released == (grpc.StatusCode.FAILED_PRECONDITION, "shard 0 serves")
        broken = await code_of(stub.DrainPod(pb.DrainPodRequest(pod="broken"), **rest))
        assert broken[0] == grpc.StatusCode.INTERNAL
        refused = await code_of(stub.DrainPod(pb.DrainPodRequest(pod="refused"), **rest))
        assert refused == (grpc.StatusCode.INTERNAL, "the fleet is exhausted")
        for seconds in (-1, float("nan"), float("inf"), 1e9):
            request = pb.DrainPodRequest(pod="gen-0", timeout_seconds=seconds)
            assert (await code_of(stub.DrainPod(request, **rest)))[0] == grpc.StatusCode.INVALID_ARGUMENT
        assert (await stub.GetStatus(pb.GetStatusRequest(), **rest)).name == "digits"


async def test_an_oversized_request_is_refused():
    async with serving() as (server, controls), client(server) as stub:
        request = pb.ApplyConfigRequest(job_json="x" * (3 << 20))
        code, _ = await code_of(stub.ApplyConfig(request, metadata=METADATA, timeout=10))
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert controls.calls == []


async def test_a_watcher_hears_the_state_at_once_and_each_change_with_a_new_revision():
    async with serving() as (server, controls), client(server) as stub:
        stream = stub.WatchStatus(pb.WatchStatusRequest(min_interval_seconds=0.01), metadata=METADATA)
        first = await asyncio.wait_for(stream.read(), 10)
        controls.state = replace(controls.state, step=4)
        second = await asyncio.wait_for(stream.read(), 10)
        assert (first.progress.step, second.progress.step) == (3, 4)
        assert second.revision > first.revision
        assert server.service.watchers == 1
        stream.cancel()
        await eventually(lambda: server.service.watchers == 0)


async def eventually(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the other side of a socket sets it
            await asyncio.sleep(0.01)


async def test_a_watcher_that_does_not_read_misses_states_and_holds_nobody_up():
    async with serving() as (server, controls), client(server) as stub:
        wide = {f"cause-{i}": i for i in range(3000)}
        request = pb.WatchStatusRequest(min_interval_seconds=0.001)
        asleep = stub.WatchStatus(request, metadata=METADATA)
        awake = stub.WatchStatus(request, metadata=METADATA)
        for step in range(60):
            prompts = {**controls.state.prompts, "discarded_by_cause": {**wide, "cause-0": step}}
            controls.state = replace(controls.state, step=step, prompts=prompts)
            while (await asyncio.wait_for(awake.read(), 10)).progress.step != step:
                pass
        last = None
        async with asyncio.timeout(20):
            async for status in asleep:
                last = status
                if status.progress.step == 59:
                    break
        assert last.progress.step == 59
        asleep.cancel()
        awake.cancel()


async def test_fuzzed_requests_never_stop_it():
    rng = random.Random(5)
    names = ["GetStatus", "ApplyConfig", "Checkpoint", "QuarantineShard", "ReleaseShard", "DrainPod", "No"]
    async with serving() as (server, _):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:

            async def throw(size):
                call = channel.unary_unary(f"/asyncrl.control.v1.Control/{rng.choice(names)}")
                try:
                    await call(rng.randbytes(size), metadata=METADATA, timeout=10)
                except grpc.aio.AioRpcError as error:
                    return error.code()
                return grpc.StatusCode.OK

            codes = set()
            for _ in range(60):
                thrown = [throw(rng.choice([0, 1, 3, 20, 500])) for _ in range(20)]
                codes |= set(await asyncio.gather(*thrown))
            assert grpc.StatusCode.UNAVAILABLE not in codes
            stub = ControlStub(channel)
            status = await stub.GetStatus(pb.GetStatusRequest(), metadata=METADATA, timeout=10)
            assert status.name == "digits"
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", server.port)) as raw:
                raw.sendall(rng.randbytes(200))
        async with client(server) as stub:
            assert (await stub.GetStatus(pb.GetStatusRequest(), metadata=METADATA, timeout=10)).name


async def test_health_is_answered_without_a_token_on_its_own_port():
    async with serving() as (server, _), health_client(server) as stub:

        async def asked(service):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
            return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)

        assert await asked("liveness") == "SERVING"
        assert await asked("readiness") == "NOT_SERVING"
        await server.set_ready(ready=True)
        assert await asked("readiness") == "SERVING"


@asynccontextmanager
async def health_client(server):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.health_port}") as channel:
        yield health_pb2_grpc.HealthStub(channel)


async def test_a_port_that_is_taken_is_one_clear_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        feed = StatusFeed(read=lambda: Steered().state)
        server = ControlServer(
            service=ControlService(Steered(), feed),
            token=TOKEN,
            address=f"127.0.0.1:{port}",
            health_address=None,
        )
        with pytest.raises(PortInUse, match=f"127.0.0.1:{port}.*--port"):
            await server.start()


@pytest.fixture
def certificate(tmp_path):
    """A certificate for localhost and its key."""
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        f"-subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout {key} -out {certificate}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    return certificate, key


async def test_with_a_certificate_the_traffic_is_encrypted(certificate):
    async with serving(tls=Tls(*certificate)) as (server, _):
        credentials = grpc.ssl_channel_credentials(certificate[0].read_bytes())
        async with grpc.aio.secure_channel(f"localhost:{server.port}", credentials) as channel:
            status = await ControlStub(channel).GetStatus(
                pb.GetStatusRequest(), metadata=METADATA, timeout=10
            )
            assert status.name == "digits"
        async with client(server) as stub:
            code, _ = await code_of(stub.GetStatus(pb.GetStatusRequest(), metadata=METADATA, timeout=10))
            assert code == grpc.StatusCode.UNAVAILABLE


def test_a_server_without_a_token_is_not_made():
    from asyncrl_runtime.app.control.auth import TokenInterceptor

    with pytest.raises(ValueError, match="needs a token"):
        TokenInterceptor("")
