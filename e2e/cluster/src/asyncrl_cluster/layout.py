"""Where everything is: folders, names, addresses. One cluster per machine."""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
TOOLS = PACKAGE.parents[1] / "tools"
REPOSITORY = PACKAGE.parents[3]
MANIFESTS = PACKAGE / "manifests"

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "asyncrl" / "cluster"
BINARIES = CACHE / "bin"
ARCHIVES = CACHE / "images"

STATE = Path("/var/lib/asyncrl-cluster")
RUN = Path("/run/asyncrl-cluster")
LOCK = Path("/run/lock/asyncrl-cluster.lock")
LOGS = STATE / "logs"
VOLUMES = STATE / "volumes"
PKI = STATE / "pki"

KUBECONFIG = REPOSITORY / ".cluster" / "kubeconfig"
"""What people and tests use; the one of the machine is in PKI."""

CGROUP = "asyncrl-cluster"
BRIDGE = "asyncrl0"

NODE_NETWORK = "172.31.77.0/24"
HOST_ADDRESS = "172.31.77.1"
CONTROL_PLANE_ADDRESS = "172.31.77.2"
POD_NETWORK = "10.244.0.0/16"
SERVICE_NETWORK = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
DNS_ADDRESS = "10.96.0.10"
CLUSTER_DOMAIN = "cluster.local"
MAX_NODES = 9


def node_address(number: int) -> str:
    """Address of node `number`, counted from 1."""
    return f"172.31.77.{10 + number}"


def pod_subnet(number: int) -> str:
    """Pod addresses of node `number`."""
    return f"10.244.{number}.0/24"
