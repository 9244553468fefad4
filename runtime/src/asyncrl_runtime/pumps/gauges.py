"""What the controller's parts hold right now, as metrics."""

from __future__ import annotations

from asyncrl_runtime.pumps.rollout import RolloutPump


def rollout_gauges(rollout: RolloutPump) -> dict[str, float]:
    """Buffer, ledger and counters of the rollout side (SC-12.50 to 12.52)."""
    counters, buffer, ledger = rollout.counters, rollout.buffer, rollout.ledger
    version = rollout.versions.trainer
    values: dict[str, float] = {
        "rollout/committed_total": counters.committed,
        "rollout/detached_total": counters.detached,
        "rollout/max_consecutive_infra_drops": rollout.groups.budgets.most_consecutive,
        "buffer/ready": buffer.ready,
        "buffer/reserved": buffer.reserved,
        "buffer/free_permits": buffer.free,
        "buffer/capacity": buffer.capacity,
        "buffer/restore_debt": buffer.restore_debt,
        "reserve/size": len(ledger.reserve),
        "ledger/unfinished": len(ledger.entries),
        "ledger/owed": len(ledger.owed),
    }
    weights = buffer.weights()
    if weights:
        values["buffer/oldest_start_weight"] = weights[0]
    for step, groups in buffer.targets().items():
        values[f"buffer/per_target_step/{step - version}"] = groups
    for name, reasons in (
        ("redispatch_total", counters.redispatched),
        ("data_retry_total", counters.data_retried),
        ("data_failures_total", counters.data_failed),
        ("infra_drops_total", counters.infra_dropped),
        ("skipped_total", counters.data_skipped),
    ):
        values[f"rollout/{name}"] = reasons.total()
        values.update({f"rollout/{name}/{reason}": count for reason, count in reasons.items()})
    for cause, tokens in counters.wasted_tokens.items():
        values[f"generation/wasted_tokens_total/{cause}"] = tokens
    return values
