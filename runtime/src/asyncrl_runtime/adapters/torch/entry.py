"""How worker processes with torch come up, without torch in the process that asks for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from asyncrl_runtime.adapters.torch.settings import EngineSettings, TrainerSettings
from asyncrl_runtime.adapters.workers import ForkHost, ForkServer

_PRELOAD = (
    "torch",
    "asyncrl_runtime.adapters.torch.shard_service",
    "asyncrl_runtime.adapters.torch.trainer_service",
    "asyncrl_runtime.adapters.torch.advantage_service",
)
# Libraries that start threads when imported must not: a forked process has one thread only.
_ENVIRON = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

_server: ForkServer | None = None


START_SECONDS = 300.0
"""Bound on the start of a worker whose settings give none."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A deadline and the field that holds it."""

    seconds: float | None = None
    setting: str = ""


def torch_server() -> ForkServer:
    """The process-wide server that holds torch; `start` it early, its imports take seconds."""
    global _server
    if _server is None:
        _server = ForkServer(preload=_PRELOAD, environ=_ENVIRON)
    return _server


def torch_host() -> ForkHost:
    """Forks from `torch_server`."""
    return ForkHost(torch_server)


def shard_service(settings: EngineSettings) -> Any:
    """Runs in the worker."""
    from asyncrl_runtime.adapters.torch.shard_service import ShardService

    return ShardService(settings)


def trainer_service(settings: TrainerSettings, rank: int = 0, size: int = 1) -> Any:
    """Runs in the worker."""
    from asyncrl_runtime.adapters.torch.trainer_service import TrainerService

    return TrainerService(settings, rank, size)


def advantage_service() -> Any:
    """Runs in the worker."""
    from asyncrl_runtime.adapters.torch.advantage_service import AdvantageService

    return AdvantageService()
