"""The operator's own process against a real kube-apiserver: start, hand-over, end."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from support.apiserver import apiserver
from support.operator_world import SPEC

from asyncrl_operator.kube import api as kinds

WAIT_SECONDS = 40.0
NAMESPACE = "default"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with apiserver(tmp_path_factory.mktemp("apiserver")) as server:
        yield server


@pytest.fixture
def start(server, tmp_path):
    cluster = {"server": server.url, "insecure-skip-tls-verify": True}
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": {"token": server.token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
    processes = []

    def started(name, **more):
        environ = os.environ | {
            "KUBECONFIG": str(tmp_path / "kubeconfig"),
            "ASYNCRL_RUNTIME_IMAGE": "example.test/asyncrl/runtime:1",
            "ASYNCRL_NAMESPACE": NAMESPACE,
        }
        with (tmp_path / f"{name}.log").open("wb") as log:
            command = [sys.executable, "-m", "asyncrl_operator"]
            processes.append(subprocess.Popen(command, env=environ | more, stdout=log, stderr=log))
        return processes[-1]

    yield started
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()


def until(holds, told=lambda: ""):
    end = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < end, told()
        time.sleep(0.1)


def apply(server, name):
    body = {
        "apiVersion": "asyncrl.io/v1alpha1",
        "kind": "AsyncRLJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": SPEC,
    }
    status, answer = server.request("POST", kinds.JOBS.path(NAMESPACE), body)
    assert status == 201, answer


def test_the_other_operator_goes_on_when_the_first_is_killed_and_a_signal_ends_it_in_order(
    server, start, tmp_path
):
    def log(name):
        return (tmp_path / f"{name}.log").read_text()

    def cluster(name):
        return server.request("GET", kinds.RAY_CLUSTERS.path(NAMESPACE, f"{name}-a1"))[0] == 200

    first = start("first")
    until(lambda: "holds the lease" in log("first"), lambda: log("first"))
    apply(server, "one")
    until(lambda: cluster("one"), lambda: log("first"))
    second = start("second")
    time.sleep(2)
    assert "holds the lease" not in log("second")

    first.kill()
    first.wait()
    killed = time.monotonic()
    apply(server, "two")
    until(lambda: cluster("two"), lambda: log("second"))
    assert time.monotonic() - killed < 25
    _, job = server.request("GET", kinds.JOBS.path(NAMESPACE, "two"))
    assert job["metadata"]["finalizers"] == ["asyncrl.io/cleanup"]
    assert not [name for name in job["metadata"].get("annotations", {}) if "kopf" in name]

    second.send_signal(signal.SIGTERM)
    assert second.wait(12) == 0
    _, lease = server.request("GET", kinds.LEASES.path(NAMESPACE, "asyncrl-operator"))
    assert not lease["spec"].get("holderIdentity")


def test_a_missing_setting_is_named(start, tmp_path):
    process = start("operator", ASYNCRL_RUNTIME_IMAGE="")
    assert process.wait(20) == 64
    assert "ASYNCRL_RUNTIME_IMAGE is not set" in (tmp_path / "operator.log").read_text()
