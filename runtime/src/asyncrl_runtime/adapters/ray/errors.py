"""Errors of the Ray adapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from asyncrl_runtime.core.errors import RunError


@dataclass(eq=False)
class RayMissing(RunError):
    """A job needs Ray, and it is not installed."""

    problem: str

    def __str__(self) -> str:
        return (
            f"this job runs on Ray, which cannot be imported ({self.problem}): install asyncrl-runtime[ray], "
            "or set spec.dataPlane.backend to inProcess"
        )


@dataclass(eq=False)
class ClusterUnavailable(RunError):
    """A Ray cluster could not be started or reached."""

    where: str
    problem: str

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


@dataclass(eq=False)
class BundlesMissing(RunError):
    """A Ray cluster has too few places for a role in time."""

    role: str
    wanted: int
    missing: int
    bundle: Mapping[str, float]
    """Resources of one place."""

    nodes: int
    offered: Mapping[str, float]
    """Resources of all live nodes, of the kinds that a place needs."""

    seconds: float
    setting: str
    size_setting: str

    def __str__(self) -> str:
        held = "" if self.missing else "; others hold them"
        lacks = f"{self.missing} of {self.wanted}" if self.missing else f"{self.wanted}"
        return (
            f"the Ray cluster gave no place to {lacks} {self.role} bundles ({_told(self.bundle)}) within "
            f"{self.seconds:g} s: its {self.nodes} nodes offer {_told(self.offered)}{held}; start the nodes "
            f"that are missing, lower {self.size_setting}, or raise {self.setting}"
        )


def _told(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in resources.items()) or "nothing"
