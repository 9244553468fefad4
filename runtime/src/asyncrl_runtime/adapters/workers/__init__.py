"""Worker processes: services behind a socket, forked from a server that holds their modules."""

from asyncrl_runtime.adapters.workers.errors import RemoteError
from asyncrl_runtime.adapters.workers.forkserver import ForkServer, light_server
from asyncrl_runtime.adapters.workers.host import ForkHost, ForkHosts, Host, Hosts, Worker
from asyncrl_runtime.adapters.workers.process import WorkerProcess
from asyncrl_runtime.adapters.workers.service import Deferred

__all__ = [
    "Deferred",
    "ForkHost",
    "ForkHosts",
    "ForkServer",
    "Host",
    "Hosts",
    "RemoteError",
    "Worker",
    "WorkerProcess",
    "light_server",
]
