"""The operator against a real kube-apiserver; KubeRay, kubelet and controller are played by the test."""

import asyncio
import json
from concurrent import futures
from contextlib import asynccontextmanager

import grpc
import pytest
from support.apiserver import apiserver
from support.operator_world import SPEC

from asyncrl_api.control import control_pb2 as pb
from asyncrl_api.control.control_pb2_grpc import ControlServicer, add_ControlServicer_to_server
from asyncrl_operator.kube import api as kinds
from asyncrl_operator.kube.operator import Operator
from asyncrl_operator.manifests.names import Settings

SETTINGS = Settings(image="example.test/asyncrl/runtime:1")
WAIT_SECONDS = 20.0


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with apiserver(tmp_path_factory.mktemp("apiserver")) as server:
        yield server


class Controller(ControlServicer):
    """Reports what it is told to, and notes what it is asked."""

    def __init__(self):
        self.asked, self.tokens, self.states, self.step = [], set(), ["HEALTHY", "HEALTHY"], 1
        self.generation = 1

    async def WatchStatus(self, request, context):
        while True:
            self.tokens.add(dict(context.invocation_metadata()).get("authorization"))
            yield pb.RunStatus(
                name="digits",
                phase="Running",
                progress=pb.Progress(step=self.step, max_steps=10, reward_mean=0.5, idle_seconds=0.1),
                sampler=pb.Sampler(name="in_order", knobs="maxLookaheadVersions=1", staleness_max=1),
                shards=[
                    pb.Shard(index=n, state=state, weight_version=self.step)
                    for n, state in enumerate(self.states)
                ],
                applied_generation=self.generation,
                saved=pb.Saved(last_checkpoint_step=0),
            )
            await asyncio.sleep(0.2)

    async def Quiesce(self, request, context):
        self.asked.append("quiesce")
        return pb.QuiesceResponse()

    async def ApplyConfig(self, request, context):
        self.asked.append(json.loads(request.job_json)["spec"])
        self.generation = request.generation
        return pb.ApplyConfigResponse(applied=["spec.faultPolicy.maxRestarts"])


class Cluster:
    """What a test does and sees."""

    def __init__(self, server, namespace, controller):
        self.server, self.namespace, self.controller = server, namespace, controller

    def call(self, method, kind, name=None, body=None, *rest, content="application/json"):
        return self.server.request(method, kind.path(self.namespace, name, *rest), body, content)

    def apply(self, spec, name="digits"):
        body = {
            "apiVersion": "asyncrl.io/v1alpha1",
            "kind": "AsyncRLJob",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": spec,
        }
        path = f"{kinds.JOBS.path(self.namespace, name)}?fieldManager=test&force=true&fieldValidation=Strict"
        return self.server.request("PATCH", path, body, "application/apply-patch+yaml")

    def job(self, name="digits"):
        status, found = self.call("GET", kinds.JOBS, name)
        return found if status == 200 else None

    def status(self):
        return (self.job() or {}).get("status", {})

    def condition(self, kind):
        found = {c["type"]: c for c in self.status().get("conditions", [])}
        return found.get(kind, {}).get("status"), found.get(kind, {}).get("reason")

    async def until(self, holds):
        """Wait for what the operator does."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while not await asyncio.to_thread(holds):  # noqa: ASYNC110 - it tells the API server alone
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(json.dumps(self.status(), indent=1)) from None

    def start_pods(self, attempt=1):
        """KubeRay and the kubelet: a head and its workers, all ready."""
        _, cluster = self.call("GET", kinds.RAY_CLUSTERS, f"digits-a{attempt}")
        templates = {"controller": (cluster["spec"]["headGroupSpec"]["template"], 1)}
        for group in cluster["spec"]["workerGroupSpecs"]:
            templates[group["groupName"]] = (group["template"], group["replicas"])
        for role, (template, count) in templates.items():
            for number in range(count):
                name = f"digits-a{attempt}-{role}-{number}"
                body = {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {**template["metadata"], "name": name, "namespace": self.namespace},
                    "spec": {**template["spec"], "nodeName": "node-1"},
                }
                status, answer = self.call("POST", kinds.PODS, None, body)
                assert status == 201, answer
                self.pod_is(name, [c["name"] for c in template["spec"]["containers"]])

    def pod_is(self, name, containers, ended=None):
        states = [
            {
                "name": container,
                "ready": ended is None,
                "restartCount": 0,
                "image": "x",
                "imageID": "x",
                "state": {"terminated": ended}
                if ended and container == "controller"
                else {"running": {"startedAt": "2026-03-01T12:00:00Z"}},
            }
            for container in containers
        ]
        body = {
            "status": {
                "phase": "Running",
                "podIP": "127.0.0.1",
                "podIPs": [{"ip": "127.0.0.1"}],
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": states,
            }
        }
        status, answer = self.call("PATCH", kinds.PODS, name, body, "status", content=kinds.MERGE_PATCH)
        assert status == 200, answer

    def controller_ends(self, outcome, attempt=1):
        words = json.dumps({"outcome": outcome, "code": 0, "step": 10, "message": ""})
        ended = {"exitCode": 0, "reason": "Completed", "message": words, "finishedAt": "2026-03-01T12:00:00Z"}
        self.pod_is(f"digits-a{attempt}-controller-0", ["ray-head", "controller"], ended)

    def collect(self):
        """The garbage collector and the kubelet: what is being deleted goes."""
        for kind in (kinds.PODS, kinds.RAY_CLUSTERS):
            _, found = self.call("GET", kind)
            clusters = {
                c["metadata"]["name"]
                for c in self.call("GET", kinds.RAY_CLUSTERS)[1]["items"]
                if not c["metadata"].get("deletionTimestamp")
            }
            for item in found["items"]:
                name = item["metadata"]["name"]
                attempt = f"digits-a{item['metadata']['labels']['asyncrl.io/attempt']}"
                if kind is kinds.PODS and attempt in clusters:
                    continue
                if kind is kinds.RAY_CLUSTERS and name in clusters:
                    continue
                body = {"metadata": {"finalizers": []}}
                self.call("PATCH", kind, name, body, content=kinds.MERGE_PATCH)
                self.call("DELETE", kind, name, {"gracePeriodSeconds": 0})


@asynccontextmanager
async def operating(server, address):
    api = server.api()
    operator = Operator(api, SETTINGS, address=lambda pod: address)
    task = asyncio.create_task(operator.run())
    try:
        yield operator
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await operator.close()
        await api.client.close()


@pytest.fixture
async def controller():
    service = Controller()
    server = grpc.aio.server(futures.ThreadPoolExecutor(1))
    add_ControlServicer_to_server(service, server)
    service.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield service
    await server.stop(None)


@pytest.fixture
async def cluster(server, controller, request):
    namespace = f"t{abs(hash(request.node.name)) % 10**8}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    assert server.request("POST", "/api/v1/namespaces", body)[0] == 201
    return Cluster(server, namespace, controller)


@pytest.fixture
async def operator(server, controller):
    async with operating(server, f"127.0.0.1:{controller.port}") as operator:
        yield operator


async def test_a_job_that_is_applied_runs_and_completes(cluster, operator):
    status, answer = cluster.apply(SPEC)
    assert status == 201, answer
    await cluster.until(lambda: cluster.call("GET", kinds.RAY_CLUSTERS, "digits-a1")[0] == 200)
    assert cluster.call("GET", kinds.CLAIMS, "digits-checkpoints")[0] == 200
    for kind, name in (
        (kinds.SECRETS, "digits-a1"),
        (kinds.SERVICES, "digits-controller"),
        (kinds.POLICIES, "digits"),
        (kinds.BUDGETS, "digits-a1"),
    ):
        assert cluster.call("GET", kind, name)[0] == 200, name

    cluster.start_pods()
    await cluster.until(lambda: cluster.status().get("phase") == "Running")
    found = cluster.status()
    assert found["progress"]["step"] == 1
    assert found["sampler"]["name"] == "in_order"
    assert found["generation"]["serving"] == 2
    assert [shard["state"] for shard in found["shards"]] == ["HEALTHY", "HEALTHY"]
    (token,) = cluster.controller.tokens
    assert token.startswith("Bearer ")
    assert len(token) == 7 + 64

    cluster.controller_ends("complete")
    await cluster.until(lambda: cluster.status().get("phase") == "Succeeded")
    assert cluster.condition("Complete") == ("True", "Completed")
    await cluster.until(
        lambda: (
            "deletionTimestamp"
            in cluster.call("GET", kinds.RAY_CLUSTERS, "digits-a1")[1].get(
                "metadata", {"deletionTimestamp": 1}
            )
        )
    )
    _, events = cluster.call("GET", kinds.EVENTS)
    reasons = {event["reason"] for event in events["items"]}
    assert {"Accepted", "RayClusterCreated", "TrainingStarted", "Completed"} <= reasons


async def test_an_operator_that_starts_anew_changes_nothing_of_a_quiet_job(server, cluster, controller):
    address = f"127.0.0.1:{controller.port}"
    async with operating(server, address):
        cluster.apply(SPEC)
        await cluster.until(lambda: cluster.call("GET", kinds.RAY_CLUSTERS, "digits-a1")[0] == 200)
        cluster.start_pods()
        await cluster.until(lambda: cluster.status().get("phase") == "Running")
    before = cluster.job()["metadata"]["resourceVersion"]
    async with operating(server, address):
        await asyncio.sleep(2)
    assert cluster.job()["metadata"]["resourceVersion"] == before
    assert cluster.call("GET", kinds.RAY_CLUSTERS, "digits-a2")[0] == 404


async def test_a_lost_head_pod_is_followed_by_another_attempt_and_never_two_at_once(cluster, operator):
    cluster.apply(SPEC | {"faultPolicy": {"backoff": {"baseSeconds": 1, "maxSeconds": 1}}})
    await cluster.until(lambda: cluster.call("GET", kinds.RAY_CLUSTERS, "digits-a1")[0] == 200)
    cluster.start_pods()
    await cluster.until(lambda: cluster.status().get("phase") == "Running")
    cluster.call("DELETE", kinds.PODS, "digits-a1-controller-0", {"gracePeriodSeconds": 0})
    await cluster.until(lambda: cluster.status().get("phase") == "Restarting")
    assert cluster.status()["reason"] == "ControllerPodLost"
    assert cluster.call("GET", kinds.RAY_CLUSTERS, "digits-a2")[0] == 404
    await cluster.until(
        lambda: "deletionTimestamp" in cluster.call("GET", kinds.RAY_CLUSTERS, "digits-a1")[1]["metadata"]
    )
    cluster.collect()
    await cluster.until(lambda: cluster.call("GET", kinds.RAY_CLUSTERS, "digits-a2")[0] == 200)
    assert cluster.status()["restarts"]["counted"] == 1
    assert cluster.call("GET", kinds.SECRETS, "digits-a1")[0] == 404


async def test_a_changed_setting_is_pushed_to_the_controller(cluster, operator):
    cluster.apply(SPEC)
    await cluster.until(lambda: cluster.call("GET", kinds.RAY_CLUSTERS, "digits-a1")[0] == 200)
    cluster.start_pods()
    await cluster.until(lambda: cluster.status().get("phase") == "Running")
    assert cluster.apply(SPEC | {"faultPolicy": {"maxRestarts": 3}})[0] == 200
    await cluster.until(lambda: cluster.status().get("config", {}).get("appliedGeneration") == 2)
    assert cluster.controller.asked[0]["faultPolicy"]["maxRestarts"] == 3


async def test_a_deleted_job_saves_and_goes(cluster, operator):
    cluster.apply(SPEC)
    await cluster.until(lambda: cluster.call("GET", kinds.RAY_CLUSTERS, "digits-a1")[0] == 200)
    cluster.start_pods()
    await cluster.until(lambda: cluster.status().get("phase") == "Running")
    cluster.call("DELETE", kinds.JOBS, "digits")
    await cluster.until(lambda: "quiesce" in cluster.controller.asked)
    cluster.controller_ends("stopped")
    await cluster.until(
        lambda: "deletionTimestamp" in cluster.call("GET", kinds.RAY_CLUSTERS, "digits-a1")[1]["metadata"]
    )
    cluster.collect()
    await cluster.until(lambda: cluster.job() is None)
    assert cluster.call("GET", kinds.CLAIMS, "digits-checkpoints")[0] == 200
