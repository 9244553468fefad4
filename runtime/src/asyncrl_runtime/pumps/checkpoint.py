"""Checkpoints: when one is written, what is in it, and how a run comes back from it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from asyncrl_runtime.core.errors import RunError
from asyncrl_runtime.core.ledger import PromptLedger
from asyncrl_runtime.core.records import STAGING, GroupMeta
from asyncrl_runtime.core.replay import ReplayBuffer
from asyncrl_runtime.core.restore import Cut
from asyncrl_runtime.core.retention import Retention, Saved
from asyncrl_runtime.core.samplers.base import Sampler
from asyncrl_runtime.core.versions import Versions
from asyncrl_runtime.ports.checkpoints import Bundle, BundleDamaged, CheckpointFailed, CheckpointStore
from asyncrl_runtime.ports.data_plane import DataPlane, FinishSnapshot
from asyncrl_runtime.ports.trainer import Trainer
from asyncrl_runtime.pumps.busy import Busy
from asyncrl_runtime.pumps.observer import Observer
from asyncrl_runtime.pumps.rollout import RolloutPump
from asyncrl_runtime.pumps.train import TrainProgress
from asyncrl_runtime.pumps.wakeup import Barrier, CutToken

INFO, LOADER, INDEX, RECOVERY = (
    "training_info.json",
    "train_dataloader.json",
    "replay_index.json",
    "rollout_recovery.json",
)


DATA_PLANE = "data_plane"
"""Folder of the rows."""


@dataclass(eq=False)
class MetricMissing(RunError):
    """The metric that ranks checkpoints is not among the step's (SC-9.26)."""

    name: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        known = ", ".join(self.known)
        return f"spec.checkpointing.metricName {self.name} is not a metric of the step; there are {known}"


@dataclass(eq=False)
class InventoryMismatch(RunError):
    """Index and data plane do not hold the same rows (SC-9.57)."""

    missing: int
    unknown: int

    def __str__(self) -> str:
        return (
            f"the data plane lacks {self.missing} rows of the replay index and holds {self.unknown} that the "
            "index does not know; this is a defect of the runtime: please report it with the run folder"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveSettings:
    """When checkpoints are written (SC-9.20)."""

    enabled: bool
    save_period: int
    ft_save_period: int | None
    save_optimizer: bool
    save_data_plane: bool
    must_save_by_seconds: float | None
    metric_name: str | None
    barrier_timeout_seconds: float
    timeout_seconds: float


@dataclass(slots=True, kw_only=True, eq=False)
class Checkpointer:
    """Writes bundles at step boundaries; generation goes on meanwhile, changes wait for the cut."""

    store: CheckpointStore
    settings: SaveSettings
    retention: Retention
    trainer: Trainer
    plane: DataPlane
    barrier: Barrier
    rollout: RolloutPump
    buffer: ReplayBuffer
    ledger: PromptLedger
    sampler: Sampler
    versions: Versions
    progress: TrainProgress
    observer: Observer
    groups_per_step: int
    generations: int
    dataset: Mapping[str, object]
    config_yaml: str
    write_tokenizer: Callable[[Path], None]
    claims: Callable[[], Sequence[GroupMeta]]
    """Groups of a step that a stop cut short: they go back into the saved index (SC-9.55)."""

    began: float
    """Loop time at which the attempt started."""

    fleet_counters: Callable[[], Mapping[str, Sequence[int]]] = dict
    tallies: Callable[[Sequence[GroupMeta]], Mapping[str, object]] = lambda unsettled: {}
    """Sums for reports, given the groups that wait for training: they bring their share when restored."""

    busy: Busy = field(default_factory=Busy)
    saved: list[Saved] = field(default_factory=list)
    bundle: Bundle | None = None
    """The newest checkpoint that this process wrote or came back from."""

    saved_at: float | None = field(default=None, init=False)
    """Loop time of the newest checkpoint of this process."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    """Held by whoever writes or deletes checkpoints or snapshots (SC-9.35)."""

    _asked: list[asyncio.Future[Bundle]] = field(default_factory=list, init=False)
    """Who asked for the next checkpoint."""

    staging_rows: int = field(default=0, init=False)
    """Of the last cut."""

    unreferenced_staging_rows: int = field(default=0, init=False)
    first_step: int = field(default=0, init=False)
    """Steps that earlier attempts completed."""

    last_saved_step: int = field(default=-1, init=False)
    pause_seconds: float = field(default=0.0, init=False)
    seconds: float = field(default=0.0, init=False)
    _stop_after_save: bool = field(default=False, init=False)

    def due(self, *, last: bool) -> bool:
        """Whether the step that just closed is saved."""
        if not self.settings.enabled or self.progress.steps == self.last_saved_step:
            return False
        steps = self.progress.steps
        periods = [p for p in (self.settings.save_period, self.settings.ft_save_period) if p]
        return (
            bool(self._asked)
            or self._deadline_near()
            or last
            or any(steps % period == 0 for period in periods)
        )

    async def ask(self) -> Bundle:
        """Have the open step saved when it closes; what was written."""
        asked: asyncio.Future[Bundle] = asyncio.get_running_loop().create_future()
        self._asked.append(asked)
        try:
            return await asked
        finally:
            if asked in self._asked:
                self._asked.remove(asked)

    @property
    def stop_after_save(self) -> bool:
        """The save-by deadline was reached: training stops after its save (SC-9.21)."""
        return self._stop_after_save

    def _deadline_near(self) -> bool:
        bound = self.settings.must_save_by_seconds
        if bound is None or self._stop_after_save:
            return False
        elapsed = asyncio.get_running_loop().time() - self.began
        steps = max(1, self.progress.steps - self.first_step)
        self._stop_after_save = elapsed + elapsed / steps >= bound
        return self._stop_after_save

    async def save(
        self, *, metrics: Mapping[str, float] | None = None, validation: Mapping[str, float] | None = None
    ) -> None:
        """Write and publish the bundle of the current step boundary.

        Without `metrics` no step was measured, and the bundle is no candidate for the best one.
        """
        async with self.lock:
            await self._save(metrics, validation or {})

    async def _save(self, metrics: Mapping[str, float] | None, validation: Mapping[str, float]) -> None:
        steps = self.progress.steps
        loop = asyncio.get_running_loop()
        began = loop.time()
        metric = self._metric(metrics, validation)
        staged: Path | None = None
        try:
            async with asyncio.timeout(self.settings.timeout_seconds):
                self.busy.moved()
                staged = await asyncio.to_thread(self.store.stage, steps)
                await self.trainer.save(staged / "policy", optimizer=self.settings.save_optimizer)
                self.busy.moved()
                async with self.barrier.cut(timeout_seconds=self.settings.barrier_timeout_seconds) as token:
                    paused = loop.time()
                    cut, finish = await self.cut(token, staged)
                    self.pause_seconds = loop.time() - paused
                if finish is not None:
                    await finish()
                self.busy.moved()
                ranked = {"metric_name": self.settings.metric_name, "metric": metric}
                await asyncio.to_thread(self.write_cut, staged, cut, ranked)
                await asyncio.to_thread(self._write_rest, staged)
                bundle = await asyncio.to_thread(self.store.publish, steps, staged)
        except TimeoutError as error:
            raise CheckpointFailed(
                self._name(staged),
                f"no end within spec.checkpointing.timeoutSeconds {self.settings.timeout_seconds:g} s",
            ) from error
        except OSError as error:
            raise CheckpointFailed(self._name(staged), str(error)) from error
        self.seconds = loop.time() - began
        self.last_saved_step, self.bundle, self.saved_at = steps, bundle, loop.time()
        for asked in self._asked:
            if not asked.done():
                asked.set_result(bundle)
        self.saved = [*(saved for saved in self.saved if saved.step < steps), Saved(steps, metric)]
        self.observer.event(
            "checkpoint_saved",
            step=steps,
            path=bundle.path.name,
            seconds=round(self.seconds, 4),
            pause_seconds=round(self.pause_seconds, 4),
        )
        await asyncio.to_thread(self._tidy, steps)

    def _name(self, staged: Path | None) -> str:
        return f"of step {self.progress.steps}" if staged is None else str(staged)

    @property
    def recovers_rollouts(self) -> bool:
        """Rows, index and unfinished prompts are part of a checkpoint (SC-9.75)."""
        return (
            self.settings.enabled
            and self.settings.save_data_plane
            and self.sampler.supports_buffer_checkpoint
        )

    async def cut(self, token: CutToken, staged: Path) -> tuple[Cut, FinishSnapshot | None]:
        """Read everything in one await-free block, then fix the rows it names.

        `token` proves that nothing moves meanwhile.
        """
        recoverable = self.recovers_rollouts
        ready = (slot.meta for slot in self.buffer if slot.meta is not None)
        claims = self.claims()
        index = (*claims, *ready)
        cut = Cut(
            steps=self.progress.steps,
            trainer_version=self.versions.trainer,
            content_version=self.versions.content,
            consumed_groups=self.progress.consumed_groups,
            total_valid_tokens=self.progress.total_valid_tokens,
            policy_optimizer_steps=self.progress.policy_optimizer_steps,
            groups_per_step=self.groups_per_step,
            generations=self.generations,
            sampler=self.sampler.name,
            cursor=self.sampler.dispatch_index,
            data=dict(self.rollout.data_state),
            dataset=self.dataset,
            ledger=self.ledger.to_json(),
            accounts=self.rollout.groups.accounts.to_json(),
            budgets=self.rollout.groups.budgets.to_json(),
            fleet=self.fleet_counters(),
            tallies=self.tallies(index),
            index=index if recoverable else (),
            rolled_back_groups=len(claims) + self.buffer.restore_debt if recoverable else 0,
            has_rollouts=recoverable,
        )
        if not recoverable:
            reopened = PromptLedger.from_json(cut.ledger)
            for group in index:
                reopened.reopen(group.group_id, group.prompt, attempt=group.attempt, target_step=None)
            return replace(cut, ledger=reopened.to_json()), None
        await self._check_inventory(index)
        return cut, await self.plane.snapshot(staged / DATA_PLANE)

    async def _check_inventory(self, index: Sequence[GroupMeta]) -> None:
        """Canonical rows are those of the index; every staging row that an entry names exists (SC-9.57)."""
        held = await self.plane.keys()
        staging = {key for key in held if key.startswith(STAGING)}
        known = {sample for group in index for sample in group.sample_ids}
        named = {key for entry in self.ledger.entries.values() for key in entry.staging}
        missing, unknown = (known | named) - held, held - staging - known
        if missing or unknown:
            raise InventoryMismatch(len(missing), len(unknown))
        self.staging_rows, self.unreferenced_staging_rows = len(staging), len(staging - named)

    def write_cut(self, staged: Path, cut: Cut, facts: Mapping[str, object]) -> None:
        """Write the controller's part of a checkpoint or snapshot. Blocks; raises OSError."""
        state = cut.to_json()
        parts = {LOADER: state.pop("data"), INDEX: state.pop("index"), RECOVERY: state.pop("ledger")}
        parts[INFO] = {**state, **facts}
        for name, part in parts.items():
            (staged / name).write_text(json.dumps(part), encoding="utf-8")

    def _write_rest(self, staged: Path) -> None:
        (staged / "config.yaml").write_text(self.config_yaml, encoding="utf-8")
        self.write_tokenizer(staged / "policy" / "tokenizer")

    def _metric(self, metrics: Mapping[str, float] | None, validation: Mapping[str, float]) -> float | None:
        name = self.settings.metric_name
        if name is None:
            return None
        axis, _, key = name.partition(":")
        if axis == "val":
            return validation.get(key)
        if metrics is None:
            return None
        known = {k.removeprefix("train/"): v for k, v in metrics.items() if k.startswith("train/")}
        if key not in known:
            raise MetricMissing(name, tuple(sorted(known)))
        return known[key]

    def _tidy(self, steps: int) -> None:
        """Delete what no rule keeps; a failure is only reported (SC-9.41)."""
        kept = self.retention.kept(self.saved)
        for bundle in self.store.bundles():
            if bundle.step < steps and bundle.step not in kept:
                try:
                    self.store.delete(bundle)
                except OSError as error:
                    self.observer.event("checkpoint_not_deleted", path=bundle.path.name, reason=str(error))
        self.saved = [saved for saved in self.saved if saved.step in kept]
        self.store.report({"step": steps, "status": "saved"})


def read_cut(path: Path) -> tuple[Cut, dict[str, object]]:
    """The cut of a published bundle, and the rest of its info. Raises BundleDamaged, RestoreRefused."""
    try:
        info = json.loads((path / INFO).read_text(encoding="utf-8"))
        parts = {
            name: json.loads((path / file).read_text(encoding="utf-8"))
            for name, file in (("data", LOADER), ("index", INDEX), ("ledger", RECOVERY))
        }
    except (OSError, ValueError) as error:
        raise BundleDamaged(str(path), str(error)) from error
    extra = {name: info.pop(name, None) for name in ("metric_name", "metric")}
    return Cut.from_json({**info, **parts}, path=str(path)), extra
