"""Coming back from a checkpoint."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from asyncrl_runtime.adapters.directory_store import DirectoryStore
from asyncrl_runtime.app.build import Parts
from asyncrl_runtime.app.wiring import dataset_facts
from asyncrl_runtime.core.errors import RunError
from asyncrl_runtime.core.restore import Cut, RestorePlan, plan_restore
from asyncrl_runtime.core.retention import Saved
from asyncrl_runtime.ports.checkpoints import Bundle, BundleDamaged
from asyncrl_runtime.pumps.checkpoint import read_cut

log = structlog.get_logger("asyncrl.resume")


@dataclass(eq=False)
class NothingUsable(RunError):
    """Checkpoints exist and none can be used; starting at step 0 would hide that (SC-9.83)."""

    folder: str
    problems: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"none of the checkpoints in {self.folder} can be used: {'; '.join(self.problems)}; "
            "restore one of them, or start anew with --fresh"
        )


@dataclass(frozen=True, slots=True)
class Found:
    """The newest usable bundle."""

    bundle: Bundle
    cut: Cut
    skipped: tuple[str, ...]
    """Newer ones that are damaged, each with its problem."""

    lost_steps: int = 0
    """Steps that the damaged ones had and this one lacks."""


def newest_usable(store: DirectoryStore) -> Found | None:
    """Select what to resume from; changes nothing. Raises NothingUsable, RestoreRefused."""
    problems: list[str] = []
    bundles = store.bundles()
    for bundle in bundles:
        try:
            store.verify(bundle)
            cut, _ = read_cut(bundle.path)
        except BundleDamaged as damage:
            problems.append(str(damage))
            continue
        return Found(bundle, cut, tuple(problems), bundles[0].step - bundle.step)
    if problems:
        raise NothingUsable(str(store.root), tuple(problems))
    return None


async def resume(parts: Parts, found: Found) -> None:
    """Bring trainer, rows, buffer, ledger and counters to the saved instant. Raises RestoreRefused first."""
    cut, path = found.cut, found.bundle.path
    plan = plan_restore(
        cut,
        path=str(path),
        sampler=parts.sampler.name,
        stamps=bool(getattr(parts.sampler, "stamps", False)),
        capacity=parts.buffer.capacity,
        groups_per_step=parts.facts.num_prompts_per_step,
        generations=parts.facts.num_generations_per_prompt,
        dataset=dataset_facts(parts.outside.source),
        drop_incomplete_targets=parts.spec.async_rl.drop_incomplete_targets_on_restore,
    )
    has_optimizer = await parts.trainer.load(
        path / "policy", optimizer=parts.spec.checkpointing.save_optimizer
    )
    if not has_optimizer:
        parts.outside.observer.event("optimizer_state_absent", path=path.name)
    if cut.has_rollouts:
        await parts.plane.restore(path / "data_plane")
        await parts.plane.clear(plan.clear)
    _apply(parts, cut, plan)
    parts.checkpointer.saved = await asyncio.to_thread(_history, parts.outside.store)
    parts.checkpointer.first_step = parts.checkpointer.last_saved_step = cut.steps
    if found.skipped:
        problems = "; ".join(found.skipped)
        log.warning(
            f"{problems}; going on from {path.name} instead, {found.lost_steps} steps are trained again"
        )
    parts.outside.observer.event(
        "resumed",
        step=cut.steps,
        path=path.name,
        restored_groups=len(plan.ready),
        unfinished_prompts=len(plan.ledger.entries),
        notes=list(plan.notes),
        skipped=list(found.skipped),
    )


def _apply(parts: Parts, cut: Cut, plan: RestorePlan) -> None:
    parts.ledger.adopt(plan.ledger)
    parts.accounts.adopt(plan.accounts)
    parts.budgets.restore(cut.budgets)
    if parts.fleet.ledger is not None:
        parts.fleet.ledger.restore_counters(cut.fleet)
    for group in plan.ready:
        parts.buffer.restore(group)
    if plan.cursor is None:
        parts.sampler.set_dispatch_index(cut.steps)
    else:
        parts.sampler.restore_dispatch_index(plan.cursor)
    parts.versions.trainer = cut.trainer_version
    parts.versions.content = cut.content_version
    parts.progress.steps = cut.steps
    parts.progress.consumed_groups = cut.consumed_groups
    parts.progress.total_valid_tokens = cut.total_valid_tokens
    parts.progress.policy_optimizer_steps = cut.policy_optimizer_steps
    parts.rollout.stamping_known = bool(getattr(parts.sampler, "stamps", False)) or any(
        group.target_step is not None for group in plan.ready
    )
    parts.rollout.cursor.restore(cut.data)
    parts.rollout.data_state = parts.rollout.cursor.state()


def _history(store: DirectoryStore) -> list[Saved]:
    """What retention knows of earlier bundles."""
    history = []
    for bundle in reversed(store.bundles()):
        try:
            _, extra = read_cut(bundle.path)
        except RunError:
            history.append(Saved(bundle.step))
            continue
        metric = extra["metric"]
        history.append(Saved(bundle.step, metric if isinstance(metric, float | int) else None))
    return history
