"""Coming back from a checkpoint."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import structlog

from asyncrl_runtime.adapters.directory_snapshots import DirectorySnapshots
from asyncrl_runtime.adapters.directory_store import DirectoryStore
from asyncrl_runtime.adapters.plane_snapshot import SnapshotDamaged, saved_samples
from asyncrl_runtime.app.build import Parts
from asyncrl_runtime.app.wiring import dataset_facts
from asyncrl_runtime.core.errors import RunError
from asyncrl_runtime.core.fingerprint import Identity, differences
from asyncrl_runtime.core.restore import (
    Cut,
    RestorePlan,
    RestoreRefused,
    check_inventory,
    plan_restore,
    reconcile_staging,
)
from asyncrl_runtime.core.retention import Saved
from asyncrl_runtime.ports.checkpoints import Bundle, BundleDamaged, Snapshot
from asyncrl_runtime.pumps.checkpoint import DATA_PLANE, read_cut

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


@dataclass(eq=False)
class OtherLineage(RunError):
    """Snapshots from before the first step belong to a run with other settings (SC-9.81 c)."""

    folder: str
    changes: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.folder} holds rollouts of a run with other settings, which must not be mixed: "
            f"{'; '.join(self.changes)}; set them back, list what has no influence in "
            "spec.rolloutCheckpointing.extraFingerprintExcludedPaths of both runs, or start anew with --fresh"
        )


@dataclass(eq=False)
class OnlyBootstrap(RunError):
    """A trainer checkpoint was asked for and there is none (SC-9.81 b)."""

    folder: str

    def __str__(self) -> str:
        return (
            f"spec.rolloutCheckpointing.restoreMode is trainer_checkpoint, and {self.folder} holds only "
            "rollouts from before the first step: set it to latest, or take a new folder; nothing was changed"
        )


@dataclass(frozen=True, slots=True)
class Found:
    """What to come back from: a trainer checkpoint, and the rollouts of it or of a newer snapshot."""

    bundle: Bundle | None
    """None: the initial model; the run had not completed a step."""

    cut: Cut
    rollouts: Path
    """Folder of the data-plane snapshot that belongs to the cut."""

    skipped: tuple[str, ...]
    """Newer ones that are damaged, each with its problem."""

    lost_steps: int = 0
    """Steps that the damaged ones had and this one lacks."""

    @property
    def name(self) -> str:
        """As events and messages name it."""
        if self.bundle is not None and self.rollouts == self.bundle.path:
            return self.rollouts.name
        return f"{self.rollouts.parent.parent.name}/{self.rollouts.name}"


def newest_usable(
    store: DirectoryStore, *, snapshots: DirectorySnapshots, mode: str, identity: Identity
) -> Found | None:
    """Select what to resume from (SC-9.81); changes nothing.

    Raises NothingUsable, RestoreRefused, OtherLineage, OnlyBootstrap.
    """
    problems: list[str] = []
    bundles = store.bundles()
    for bundle in bundles:
        try:
            store.verify(bundle)
            cut = _read(bundle.path)
        except (BundleDamaged, SnapshotDamaged) as damage:
            problems.append(str(damage))
            continue
        found = Found(bundle, cut, bundle.path, tuple(problems), bundles[0].step - bundle.step)
        return found if mode == "trainer_checkpoint" else _newest_snapshot(snapshots, found)
    if problems:
        raise NothingUsable(str(store.root), tuple(problems))
    return _of_bootstrap(snapshots, mode, identity)


def _newest_snapshot(snapshots: DirectorySnapshots, anchor: Found) -> Found:
    """The newest good snapshot on top of a trainer checkpoint, or the checkpoint itself."""
    skipped = list(anchor.skipped)
    for snapshot in snapshots.snapshots(snapshots.anchor_of(anchor.bundle)):
        try:
            snapshots.verify(snapshot)
            cut = _read(snapshot.path)
            _check_anchor(cut, anchor.cut, snapshot)
        except (BundleDamaged, SnapshotDamaged, RestoreRefused) as damage:
            skipped.append(str(damage))
            continue
        return Found(anchor.bundle, cut, snapshot.path, tuple(skipped), anchor.lost_steps)
    return Found(anchor.bundle, anchor.cut, anchor.rollouts, tuple(skipped), anchor.lost_steps)


def _of_bootstrap(snapshots: DirectorySnapshots, mode: str, identity: Identity) -> Found | None:
    """Rollouts from before the first step: usable under the same settings only."""
    stored = snapshots.bootstrap_identity()
    if stored is None:
        return None
    if mode == "trainer_checkpoint":
        raise OnlyBootstrap(str(snapshots.bootstrap))
    committed = snapshots.snapshots(snapshots.bootstrap)
    before = Identity.from_json(stored)
    if committed and (before is None or before.fingerprint != identity.fingerprint):
        changes = differences(before, identity) if before else ["the format of stored settings"]
        raise OtherLineage(str(snapshots.bootstrap), tuple(changes))
    problems: list[str] = []
    for snapshot in committed:
        try:
            snapshots.verify(snapshot)
            cut = _read(snapshot.path)
        except (BundleDamaged, SnapshotDamaged, RestoreRefused) as damage:
            problems.append(str(damage))
            continue
        return Found(None, cut, snapshot.path, tuple(problems))
    if problems:
        raise NothingUsable(str(snapshots.bootstrap), tuple(problems))
    return None


def _read(folder: Path) -> Cut:
    """A cut whose rows are all there. Raises BundleDamaged, SnapshotDamaged, RestoreRefused."""
    cut, _ = read_cut(folder)
    if cut.has_rollouts:
        try:
            check_inventory(cut, saved_samples(folder / DATA_PLANE), path=str(folder))
        except RestoreRefused as refusal:
            raise BundleDamaged(str(folder), refusal.problem) from refusal
    return cut


def _check_anchor(cut: Cut, anchor: Cut, snapshot: Snapshot) -> None:
    for name in ("steps", "trainer_version", "content_version"):
        ours, theirs = getattr(cut, name), getattr(anchor, name)
        if ours != theirs:
            raise RestoreRefused(
                str(snapshot.path), f"its {name} is {ours} and that of its checkpoint is {theirs}"
            )


async def resume(parts: Parts, found: Found) -> None:
    """Bring trainer, rows, buffer, ledger and counters to the saved instant. Raises RestoreRefused first."""
    cut = found.cut
    plan = plan_restore(
        cut,
        path=str(found.rollouts),
        sampler=parts.sampler.name,
        stamps=bool(getattr(parts.sampler, "stamps", False)),
        capacity=parts.buffer.capacity,
        groups_per_step=parts.facts.num_prompts_per_step,
        generations=parts.facts.num_generations_per_prompt,
        dataset=dataset_facts(parts.outside.source),
        drop_incomplete_targets=parts.spec.async_rl.drop_incomplete_targets_on_restore,
    )
    if found.bundle is not None:
        has_optimizer = await parts.trainer.load(
            found.bundle.path / "policy", optimizer=parts.spec.checkpointing.save_optimizer
        )
        if not has_optimizer:
            parts.outside.observer.event("optimizer_state_absent", path=found.bundle.path.name)
    if cut.has_rollouts:
        await parts.plane.restore(found.rollouts / DATA_PLANE)
        await parts.plane.clear(plan.clear)
    await parts.plane.clear(reconcile_staging(plan.ledger, await parts.plane.keys()))
    _apply(parts, cut, plan)
    saver = parts.checkpointer
    saver.saved = await asyncio.to_thread(_history, parts.outside.store)
    saver.first_step, saver.bundle = cut.steps, found.bundle
    if found.bundle is not None:
        saver.last_saved_step = cut.steps
    if found.skipped:
        problems = "; ".join(found.skipped)
        log.warning(
            f"{problems}; going on from {found.name} instead, {found.lost_steps} steps are trained again"
        )
    parts.outside.observer.event(
        "resumed",
        step=cut.steps,
        path=found.name,
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
    if plan.data is None:
        log.warning("the prompts are others than those of the checkpoint: they are taken from the beginning")
    else:
        parts.rollout.cursor.restore(plan.data)
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
