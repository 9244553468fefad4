"""What follows the end of an attempt."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from asyncrl_api.spec.operations import FaultPolicySpec
from asyncrl_api.status import JobStatus
from asyncrl_operator.core.times import read
from asyncrl_operator.manifests.names import Role

_MAX_DOUBLINGS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Why an attempt is over."""

    reason: str
    message: str
    role: Role | None = None
    pod: str = ""
    container: str = ""
    exit_code: int | None = None
    node: str = ""
    final: bool = False
    """Another attempt would end the same way."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Another attempt, or none."""

    restart: bool
    counted: bool
    rule: str = ""


def decide(fault: Fault, policy: FaultPolicySpec) -> Decision:
    """The first rule that matches, else the defaults of `faultPolicy.rules`."""
    if fault.final:
        return Decision(False, False)
    for rule in policy.rules:
        if (
            (rule.reasons is None or fault.reason in rule.reasons)
            and (rule.roles is None or fault.role in rule.roles)
            and (rule.exit_codes is None or fault.exit_code in rule.exit_codes)
        ):
            return Decision(rule.action == "RestartJob", rule.counted, rule.name)
    if fault.reason == "StartupDeadlineExceeded":
        return Decision(False, False)
    return Decision(True, fault.reason != "NodeLost")


def counted_restarts(status: JobStatus, policy: FaultPolicySpec, now: datetime) -> int:
    """Restarts that still count: an attempt that ran long enough sets them back."""
    counted = (status.restarts.counted if status.restarts else None) or 0
    started = status.attempt.start_time if status.attempt else None
    ran_long = (
        policy.reset_after_seconds > 0
        and started is not None
        and (now - read(started)).total_seconds() >= policy.reset_after_seconds
    )
    return 0 if ran_long else counted


def backoff(policy: FaultPolicySpec, restarts: int) -> timedelta:
    """Wait before restart number `restarts`, from 1: doubling up to the limit."""
    doublings = min(max(0, restarts - 1), _MAX_DOUBLINGS)
    seconds = min(policy.backoff.max_seconds, policy.backoff.base_seconds * 2**doublings)
    return timedelta(seconds=seconds)
