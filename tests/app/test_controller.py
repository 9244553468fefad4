"""`asyncrl controller`: a real run in its own process, watched and steered over its control API."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import asynccontextmanager, contextmanager

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.cli import rows, small_job, summary

from asyncrl_api.control import control_pb2 as pb
from asyncrl_api.control.control_pb2_grpc import ControlStub
from asyncrl_runtime.app.control.report import MAX_BYTES, FinalReport

METADATA = (("authorization", "Bearer open-sesame"),)
STEPS = 4000
JOB = {
    "algorithm": {"grpo": {"maxNumSteps": STEPS}},
    "checkpointing": {"savePeriod": 100000},
    "generation": {"shards": 2},
    "data": {"source": {"generated": {"numPrompts": 40000}}},
    "asyncRL": {
        "generationFleetHealth": {"enabled": True, "onDeadShard": "restart", "restartGraceSeconds": 60},
        "refit": {"deadlineSeconds": 20},
    },
}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def controller(folder, **changes):
    """A controller process; its ports and its run folder."""
    job = small_job(folder, **{**JOB, **changes})
    port, health = free_port(), free_port()
    command = [
        sys.executable,
        "-m",
        "asyncrl_runtime",
        "controller",
        "--job",
        job,
        "--output",
        folder / "run",
    ]
    command += ["--address", "127.0.0.1", "--port", port, "--health-port", health, "--generation", 1]
    process = subprocess.Popen(
        [str(part) for part in command],
        env={**os.environ, "ASYNCRL_CONTROL_TOKEN": "open-sesame"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process, port, health, job
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@asynccontextmanager
async def connected(port):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await asyncio.wait_for(channel.channel_ready(), 60)
        yield ControlStub(channel)


async def reached(stub, step):
    """The first status at or beyond a step."""
    async with asyncio.timeout(120):
        async for status in stub.WatchStatus(pb.WatchStatusRequest(), metadata=METADATA):
            if status.progress.step >= step:
                return status
    raise AssertionError("the stream ended")


async def test_a_run_is_watched_changed_saved_and_ended_from_outside(tmp_path):
    with controller(tmp_path) as (process, port, health, job):
        async with connected(port) as stub:
            status = await reached(stub, 2)
            assert (status.name, status.phase, status.applied_generation) == ("small", "Running", 1)
            assert [shard.state for shard in status.shards] == ["HEALTHY", "HEALTHY"]
            await ready(health)

            await changed(stub, job)
            await refused(stub, job)

            saved = await stub.Checkpoint(pb.CheckpointRequest(), metadata=METADATA, timeout=60)
            assert (tmp_path / "run" / "checkpoints" / saved.path / "manifest.json").exists()

            taken = await stub.QuarantineShard(pb.ShardRequest(index=1), metadata=METADATA, timeout=20)
            assert taken.shard.state == "DEAD"
            await stub.ReleaseShard(pb.ShardRequest(index=1), metadata=METADATA, timeout=20)
            async with asyncio.timeout(60):
                async for now in stub.WatchStatus(pb.WatchStatusRequest(), metadata=METADATA):
                    if now.shards[1].state == "HEALTHY" and now.shards[1].weight_version > 0:
                        break

            await stub.Quiesce(pb.QuiesceRequest(reason="suspend"), metadata=METADATA, timeout=20)
        assert await asyncio.to_thread(process.wait, 60) == 75
    told = summary(tmp_path / "run")
    assert told["status"] == "stopped"
    assert 2 <= told["steps"] < STEPS
    events = rows(tmp_path / "run" / "events.jsonl")
    assert any(e["kind"] == "stop_requested" and e["cause"] == "control API: suspend" for e in events)
    (applied,) = [event for event in events if event["kind"] == "settings_applied"]
    assert applied["generation"] == 2


async def ready(port):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service="readiness"), timeout=10
        )
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def changed(stub, job):
    """Hot settings are taken over, warm ones named, and the status tells the new generation."""
    asked = yaml.safe_load(job.read_text())
    asked["spec"]["asyncRL"]["maxInflightPrompts"] = 3
    asked["spec"]["asyncRL"]["stallWatchdog"] = {"stallTimeoutSeconds": 900}
    asked["spec"]["logging"] = {"tensorboard": {"enabled": True}}
    request = pb.ApplyConfigRequest(job_json=json.dumps(asked), generation=2)
    answer = await stub.ApplyConfig(request, metadata=METADATA, timeout=20)
    assert list(answer.refused) == []
    assert list(answer.applied) == [
        "spec.asyncRL.maxInflightPrompts",
        "spec.asyncRL.stallWatchdog.stallTimeoutSeconds",
    ]
    assert list(answer.pending) == ["spec.logging.tensorboard.enabled"]
    async with asyncio.timeout(60):
        async for status in stub.WatchStatus(pb.WatchStatusRequest(), metadata=METADATA):
            if status.applied_generation == 2:
                break


async def refused(stub, job):
    """What is fixed, or is no job at all, is refused whole."""
    asked = yaml.safe_load(job.read_text())
    asked["spec"]["algorithm"]["grpo"]["numPromptsPerStep"] = 8
    asked["spec"]["asyncRL"]["maxInflightPrompts"] = 5
    for text, path in (
        (json.dumps(asked), "numPromptsPerStep"),
        ("{", ""),
        ("[]", ""),
        (json.dumps({**asked, "metadata": {"name": "other"}}), "metadata.name"),
        (json.dumps({**asked, "spec": {**asked["spec"], "nonsense": 1}}), "spec.nonsense"),
    ):
        request = pb.ApplyConfigRequest(job_json=text, generation=3)
        answer = await stub.ApplyConfig(request, metadata=METADATA, timeout=20)
        assert list(answer.applied) == list(answer.pending) == []
        assert any(path in refusal.path + refusal.reason for refusal in answer.refused), answer


async def test_sigterm_saves_and_ends_as_asyncrl_run_does(tmp_path):
    with controller(tmp_path) as (process, port, _, _):
        async with connected(port) as stub:
            await reached(stub, 1)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 60) == 75
    assert list((tmp_path / "run" / "checkpoints").glob("step_*"))


def test_without_a_token_it_does_not_start(tmp_path):
    job = small_job(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "asyncrl_runtime", "controller", "--job", job, "--output", tmp_path / "run"],
        env={k: v for k, v in os.environ.items() if k != "ASYNCRL_CONTROL_TOKEN"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3
    assert "the control API needs a token: give --token-file" in done.stderr
    assert "Traceback" not in done.stderr


def test_in_a_pod_a_refused_manifest_ends_with_0(tmp_path):
    (tmp_path / "job.yaml").write_text("kind: Nonsense\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "asyncrl_runtime", "controller", "--job", tmp_path / "job.yaml"),
            *("--in-pod", "--ray-folder", tmp_path),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert "kind" in done.stderr


def test_ray_of_the_same_pod_is_held_until_the_controller_has_left_in_order(tmp_path):
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "controller-left").touch()
    job = small_job(tmp_path, observability={"metricsPort": 0}, algorithm={"grpo": {"maxNumSteps": 2000}})
    command = [sys.executable, "-m", "asyncrl_runtime", "controller", "--job", job, "--in-pod"]
    command += ["--output", tmp_path / "run", "--ray-folder", tmp_path / "ray"]
    command += ["--address", "127.0.0.1", "--port", free_port(), "--health-port", free_port()]
    process = subprocess.Popen(
        [str(part) for part in command],
        env={**os.environ, "ASYNCRL_CONTROL_TOKEN": "open-sesame"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        metrics = tmp_path / "run" / "metrics.jsonl"
        end = time.monotonic() + 60
        while not (metrics.exists() and metrics.stat().st_size):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        assert not (tmp_path / "ray" / "controller-left").exists()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert (tmp_path / "ray" / "controller-left").exists()


@pytest.mark.parametrize("message", ["", "short", "x" * 10_000, "é" * 9_000, '"\\' * 4_000])
def test_a_final_report_fits_into_a_termination_message(message, tmp_path):
    path = tmp_path / "termination-log"
    path.touch()
    FinalReport("failed", 3, 7, message).write(path)
    assert len(path.read_bytes()) <= MAX_BYTES
    told = json.loads(path.read_text())
    assert (told["outcome"], told["code"], told["step"]) == ("failed", 3, 7)
    assert told["message"][:5] == message[:5]
