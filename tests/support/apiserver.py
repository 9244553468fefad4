"""A real kube-apiserver with etcd, for the tests of a module. No kubelet, scheduler or collector."""

import json
import secrets
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from kubernetes.aio.client import ApiClient, Configuration

from asyncrl_cluster.binaries import ETCD, KUBERAY, KUBERNETES
from asyncrl_operator.kube.api import Api

READY_SECONDS = 60.0
BUILD_SECONDS = 2400.0
CRDS = Path(__file__).parents[2] / "crds"


@dataclass
class Server:
    """Where it listens, and who may do everything there."""

    url: str
    token: str

    def api(self):
        """A client of the current loop; close its `client` in the end."""
        configuration = Configuration(host=self.url)
        configuration.verify_ssl = False
        configuration.api_key = {"BearerToken": self.token}
        configuration.api_key_prefix = {"BearerToken": "Bearer"}
        return Api(ApiClient(configuration))

    def request(self, method, path, body=None, content="application/json", accept="application/json"):
        """Status and answer."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": content, "Accept": accept}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        context = ssl._create_unverified_context()
        try:
            with urllib.request.urlopen(request, timeout=20, context=context) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text[:1] == b"{" else {}
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"{}")


def built():
    """Build the programs where the cache lacks them; skip where they cannot be built."""
    missing = [family for family in (ETCD, KUBERNETES) if not family.built()]
    if missing and shutil.which("go") is None:
        pytest.skip("these tests need etcd and kube-apiserver, which are built by Go: install it")
    if missing:
        command = [sys.executable, "-m", "asyncrl_cluster", "binaries", "etcd", "kubernetes"]
        subprocess.run(command, check=True, timeout=BUILD_SECONDS)


@contextmanager
def apiserver(folder):
    """Started and ended outside the tests' loops."""
    built()
    etcd_port, peer_port, port = _ports(3)
    token = secrets.token_hex(16)
    (folder / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (folder / "accounts.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    etcd_url = f"http://127.0.0.1:{etcd_port}"
    etcd = [
        ETCD.path("etcd"),
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={etcd_url}",
        f"--advertise-client-urls={etcd_url}",
        f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
        "--unsafe-no-fsync",
    ]
    server = [
        KUBERNETES.path("kube-apiserver"),
        f"--etcd-servers={etcd_url}",
        "--bind-address=127.0.0.1",
        "--endpoint-reconciler-type=none",
        f"--secure-port={port}",
        f"--cert-dir={folder / 'certificates'}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        f"--service-account-key-file={folder / 'accounts.key'}",
        f"--service-account-signing-key-file={folder / 'accounts.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--disable-admission-plugins=ServiceAccount",
    ]
    processes = []
    try:
        for name, command in (("etcd", etcd), ("apiserver", server)):
            with (folder / f"{name}.log").open("wb") as log:
                processes.append(subprocess.Popen(list(map(str, command)), stdout=log, stderr=log))
        found = Server(f"https://127.0.0.1:{port}", token)
        _await_ready(found, processes, folder)
        _install_crds(found)
        yield found
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await_ready(server, processes, folder):
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end:
        if any(process.poll() is not None for process in processes):
            break
        try:
            if server.request("GET", "/readyz")[0] == 200:
                return
        except (OSError, ValueError):
            pass
        time.sleep(0.1)
    tail = "\n".join((folder / f"{name}.log").read_text()[-2000:] for name in ("etcd", "apiserver"))
    raise AssertionError(f"kube-apiserver is not ready after {READY_SECONDS:g} s:\n{tail}")


def _install_crds(server):
    """Ours, and KubeRay's RayCluster as its module has it."""
    import yaml

    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    names = []
    ray = KUBERAY["1.6.0"]
    if not ray.built():
        subprocess.run(
            [sys.executable, "-m", "asyncrl_cluster", "binaries", ray.name], check=True, timeout=BUILD_SECONDS
        )
    files = [CRDS / "asyncrljobs.yaml", ray.folder / "config" / "crd" / "bases" / "ray.io_rayclusters.yaml"]
    for file in files:
        crd = yaml.safe_load(file.read_text())
        status, answer = server.request("POST", path, crd)
        assert status == 201, answer
        names.append(crd["metadata"]["name"])
    end = time.monotonic() + READY_SECONDS
    for name in names:
        while time.monotonic() < end:
            _, found = server.request("GET", f"{path}/{name}")
            conditions = {c["type"]: c["status"] for c in (found.get("status") or {}).get("conditions") or []}
            if conditions.get("Established") == "True":
                break
            time.sleep(0.05)


def _ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [found.getsockname()[1] for found in sockets]
    for found in sockets:
        found.close()
    return ports
