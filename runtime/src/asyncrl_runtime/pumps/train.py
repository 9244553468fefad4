"""The train pump: assembles steps, trains on them, refits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from asyncrl_runtime.algorithms.minibatch import split_groups
from asyncrl_runtime.core.drops import StepAccounts
from asyncrl_runtime.core.errors import DataExhausted, NothingToTrain, StepBelowFloor, TrainerFailure
from asyncrl_runtime.core.exact import ceil_product
from asyncrl_runtime.core.ledger import PromptLedger
from asyncrl_runtime.core.records import BatchMeta, GroupMeta
from asyncrl_runtime.core.replay import ReplayBuffer, Slot
from asyncrl_runtime.core.samplers.base import Sampler, is_gated
from asyncrl_runtime.core.samplers.weight_fifo import WeightFifo
from asyncrl_runtime.core.versions import Versions
from asyncrl_runtime.ports import columns as col
from asyncrl_runtime.ports.advantage import AdvantageStage
from asyncrl_runtime.ports.data_plane import DataPlane
from asyncrl_runtime.ports.trainer import Trainer
from asyncrl_runtime.pumps.observer import Observer
from asyncrl_runtime.pumps.rollout import RolloutPump
from asyncrl_runtime.pumps.step import OpenStep, over_updates
from asyncrl_runtime.pumps.wakeup import Barrier, RolloutGate, Wakeup

RunEnd = Literal["max_steps", "data_exhausted", "deadline", "early_stop", "stopped"]


class AfterStep(Protocol):
    """What happens between the close of a step and the next one: refit, validation, checkpoint, logging."""

    async def __call__(self, step: OpenStep, metrics: dict[str, float], *, last: bool) -> RunEnd | None:
        """Do it; a reason to end the run, if there is one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """The shape of a step."""

    max_steps: int
    groups_per_step: int
    smallest_chunk: int
    policy_epochs: int
    policy_minibatches: int
    minibatch_seed: int
    step_retries: int
    final_partial_step: Literal["error", "train", "discard"]
    min_step_batch_fraction: float
    logprob_models: frozenset[Literal["policy", "reference"]]


@dataclass(slots=True, kw_only=True)
class TrainProgress:
    """Counters that a checkpoint stores (SC-5.71, 5.77)."""

    steps: int = 0
    consumed_groups: int = 0
    total_valid_tokens: int = 0
    policy_optimizer_steps: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class TrainPump:
    """Trains one RL step after the other.

    Takes:      ready slots, as the sampler selects them
    Gives:      new parameters, one trainer version per step
    Waits for:  enough eligible groups
    Woken by:   the rollout pump, when it commits (`changed`)
    """

    settings: TrainSettings
    progress: TrainProgress
    sampler: Sampler
    buffer: ReplayBuffer
    ledger: PromptLedger
    accounts: StepAccounts
    versions: Versions
    plane: DataPlane
    trainer: Trainer
    advantages: AdvantageStage
    rollout: RolloutPump
    gate: RolloutGate
    barrier: Barrier
    changed: Wakeup
    observer: Observer
    after_step: AfterStep
    final_save: Callable[[], Awaitable[None]]
    stopping: Callable[[], bool]
    """A stop was asked for: end after the step, or at once while it waits for groups."""

    on_close: Callable[[], None] = field(default=lambda: None, init=False)
    """Called inside the block that closes a step, after the version moved: changed settings go here."""

    step: OpenStep | None = field(default=None, init=False)

    async def run(self) -> RunEnd:
        """Return when the steps are done, the data has ended, or a stop was asked for."""
        end: RunEnd = "max_steps"
        while self.progress.steps < self.settings.max_steps:
            self.step = OpenStep(version=self.versions.trainer)
            if not await self._train_step(self.step):
                await self.final_save()
                return "stopped" if self.stopping() else "data_exhausted"
            metrics = self._metrics(self.step)
            await self._close(self.step)
            last = self.progress.steps >= self.settings.max_steps
            stop = await self.after_step(self.step, metrics, last=last)
            if stop is not None:
                return stop
            if self.stopping() and not last:
                await self.final_save()
                return "stopped"
        return end

    @property
    def claims(self) -> tuple[GroupMeta, ...]:
        """Groups of the open step: neither in the buffer nor trained (SC-1.61)."""
        return self.step.batch.groups if self.step else ()

    # ── assembly ────────────────────────────────────────────────────────────────────────────────────

    @property
    def _one_chunk(self) -> bool:
        return self.settings.smallest_chunk >= self.settings.groups_per_step

    async def _train_step(self, step: OpenStep) -> bool:
        """Assemble and train; False at the end of the data, or when a stop cuts the wait for groups short."""
        while step.groups < self._target(step) or self._lacks_data(step):
            seen = self.changed.count
            chunk = await self._select(step, self.settings.smallest_chunk)
            if chunk is None:
                if self.stopping():
                    await self.trainer.abort()
                    return False
                if self.rollout.exhausted and seen == self.changed.count:
                    decision = await self._at_exhaustion(step)
                    if decision == "end":
                        return False
                    if decision == "close":
                        break
                    continue
                with step.timed("exposed_generation"):
                    await self.changed.since(seen)
                continue
            if not self._one_chunk:
                await self._with_retries(step, self._process_last)
        if self._one_chunk or not step.results:
            await self._with_retries(step, self._process_whole)
        await self._with_retries(step, self._optimize)
        return True

    @property
    def _floor(self) -> int:
        return ceil_product(self.settings.min_step_batch_fraction, self.settings.groups_per_step)

    def _target(self, step: OpenStep) -> int:
        """Groups the step closes on, read anew each time: a drop may lower it during any await (SC-5.50).

        Raises StepBelowFloor when drops leave too few.
        """
        target = self.accounts.target_groups(step.version, self.settings.groups_per_step)
        if target < self._floor and not self.accounts.unserved[step.version]:
            lost = self.settings.groups_per_step - target
            raise StepBelowFloor(
                step.version, lost, target, self._floor, self.settings.min_step_batch_fraction
            )
        return target

    def _lacks_data(self, step: OpenStep) -> bool:
        """Too few groups are left because no prompt was, which `finalPartialStep` decides on (EX-5.6 d)."""
        return self._target(step) < self._floor

    async def _select(self, step: OpenStep, smallest: int) -> BatchMeta | None:
        """Evict what is over, then select; slots and claim change in one block (SC-4.7)."""
        version, chunk = step.version, None
        step.inflight = max(step.inflight, len(self.rollout.inflight))
        if self._cannot_select(step, smallest):
            return None
        async with self.barrier.mutation():
            remaining = 0 if self._lacks_data(step) else self._target(step) - step.groups
            evicted = self.sampler.evict(version)
            if evicted:
                self._count_evicted(step, evicted)
            if remaining > 0:
                minimum = min(smallest, remaining)
                chunk = self.sampler.select(version, minimum, remaining)
                if chunk is None and minimum > 1 and self._oldest_is_final(version):
                    chunk = self.sampler.select(version, 1, remaining)
            if chunk is not None:
                step.claim.append(chunk)
            if evicted:
                await self.plane.clear([s for slot in evicted if slot.meta for s in slot.meta.sample_ids])
        if evicted or chunk is not None:
            self.changed.notify()
        return chunk

    def _cannot_select(self, step: OpenStep, smallest: int) -> bool:
        """Too little is ready, and there is room: neither a selection nor an eviction is called for.

        A look at two numbers, since this is asked after every commit.
        """
        if isinstance(self.sampler, WeightFifo) or not self.buffer.free:
            return False
        remaining = self._target(step) - step.groups
        return self.buffer.ready < min(smallest, remaining)

    def _oldest_is_final(self, version: int) -> bool:
        """weight_fifo: no more groups of the oldest weight can come, so fewer than the minimum will do."""
        return isinstance(self.sampler, WeightFifo) and not self.sampler.oldest_can_grow(
            version, stamp=self.versions.stamp
        )

    def _count_evicted(self, step: OpenStep, evicted: Sequence[Slot]) -> None:
        step.evicted += len(evicted)
        self.ledger.discard_committed(len(evicted), "evicted")
        for slot in evicted:
            tokens = slot.meta.generated_tokens if slot.meta else 0
            self.rollout.counters.wasted_tokens["evicted"] += tokens
            if slot.target_step is None and is_gated(self.sampler):
                self.ledger.owe(None)
            self.observer.event(
                "group_evicted", group=slot.group_id, start_weight=slot.start_weight, version=step.version
            )

    async def _at_exhaustion(self, step: OpenStep) -> Literal["end", "close", "again"]:
        """The data ended and this step is not full (SC-5.59, 5.61)."""
        ready, policy = self.buffer.ready, self.settings.final_partial_step
        if step.groups == 0 and len(self.buffer) == 0 and not self.accounts.unserved[step.version]:
            return "end"
        if self._lacks_data(step) and policy != "error":
            await self._discard_rest(step)
            return "end"
        stamped = self.buffer.unstamped < len(self.buffer) or any(
            group.target_step is not None for group in step.batch.groups
        )
        if not stamped and step.groups + ready == 0:
            return "again"
        if stamped or policy == "error":
            target = self._target(step)
            raise DataExhausted(step.version, step.groups, target, len(self.buffer), self.sampler.name)
        if policy == "train" and step.groups + ready >= self._floor:
            while await self._select(step, 1):
                if not self._one_chunk:
                    await self._with_retries(step, self._process_last)
            return "close"
        await self._discard_rest(step)
        return "end"

    async def _discard_rest(self, step: OpenStep) -> None:
        """Abort the open step and give up what is buffered; the run ends normally (SC-5.59)."""
        await self.trainer.abort()
        async with self.barrier.mutation():
            slots = self.buffer.take([slot.group_id for slot in self.buffer])
            samples = step.batch.sample_ids + [s for slot in slots if slot.meta for s in slot.meta.sample_ids]
            self.ledger.discard_committed(step.groups + len(slots), "left_over")
            step.claim.clear()
            self.ledger.strike_owed()
            self.accounts.clear()
            if is_gated(self.sampler):
                self.sampler.restore_dispatch_index(self.versions.trainer - 1)
            await self.plane.clear(samples)

    # ── training ────────────────────────────────────────────────────────────────────────────────────

    async def _with_retries(self, step: OpenStep, work: Callable[[OpenStep], Awaitable[None]]) -> None:
        """Abort and redo the step's work with the same groups after a transient failure (SC-5.75)."""
        retries, redo = 0, self._redo(work)
        while True:
            try:
                await work(step)
                return
            except TrainerFailure as failure:
                try:
                    await self.trainer.abort()
                except TrainerFailure:
                    raise failure from None
                if step.reports or retries >= self.settings.step_retries:
                    raise
                retries += 1
                self.observer.event(
                    "train_step_retried", step=step.version, attempt=retries, reason=str(failure)
                )
                step.forget_chunks()
                work = redo

    def _redo(self, work: Callable[[OpenStep], Awaitable[None]]) -> Callable[[OpenStep], Awaitable[None]]:
        """The work of the step so far: every chunk again, then the optimizer if it was its turn."""
        optimize = work == self._optimize

        async def again(step: OpenStep) -> None:
            chunks = [step.batch] if self._one_chunk else list(step.claim)
            for chunk in chunks:
                await self._process(step, chunk)
            if optimize:
                await self._optimize(step)

        return again

    async def _process_last(self, step: OpenStep) -> None:
        await self._process(step, step.claim[-1])

    async def _process_whole(self, step: OpenStep) -> None:
        await self._process(step, step.batch)

    async def _process(self, step: OpenStep, chunk: BatchMeta) -> None:
        """Log-probs, advantages, and, with one optimizer step per RL step, the gradients of a chunk."""
        samples = chunk.sample_ids
        if self.settings.logprob_models:
            with step.timed("policy_and_reference_logprobs"):
                await self.trainer.logprobs(chunk, models=self.settings.logprob_models)
        with step.timed("advantage_calculation"):
            columns = await self.plane.get(samples, self._stage_fields(chunk))
            result = await self.advantages.run(chunk, columns)
            await self.plane.put(samples, result.columns)
        step.chunks += 1
        step.results.append(result)
        if self._several_updates or not result.has_valid_tokens:
            return
        with step.timed("policy_training"):
            if not step.opened:
                await self.trainer.begin(positive_tokens=float(result.row_positive_tokens.sum()))
                step.opened = True
            await self.trainer.accumulate(chunk)

    def _stage_fields(self, chunk: BatchMeta) -> list[str]:
        names = set.intersection(*(set(group.reward_components) for group in chunk.groups))
        return [*self.advantages.fields, *(col.REWARD_COMPONENT + name for name in sorted(names))]

    @property
    def _several_updates(self) -> bool:
        return self.settings.policy_epochs * self.settings.policy_minibatches > 1

    async def _optimize(self, step: OpenStep) -> None:
        """Reduce, rescale and apply: once, or once per minibatch and epoch (SC-5.67, 10.44)."""
        if not step.valid_tokens:
            groups = step.batch.groups
            masked = ", ".join(
                f"{sum(int(g.metrics[name]) for g in groups)} rows {words}"
                for name, words in (("truncated", "truncated"), ("flagged", "flagged by their environment"))
            )
            raise NothingToTrain(step.version, step.groups, masked)
        with step.timed("policy_training"):
            if not self._several_updates:
                step.reports.append(await self.trainer.finish())
                return
            for epoch in range(self.settings.policy_epochs):
                for minibatch in self._minibatches(step, epoch):
                    await self._update(step, minibatch)

    def _minibatches(self, step: OpenStep, epoch: int) -> list[list[int]]:
        seed = f"{self.settings.minibatch_seed}/{step.version}/{epoch}"
        return split_groups(step.groups, self.settings.policy_minibatches, seed=seed)

    async def _update(self, step: OpenStep, picked: Sequence[int]) -> None:
        groups = step.batch.groups
        first_row = [0]
        for group in groups:
            first_row.append(first_row[-1] + len(group.sample_ids))
        (result,) = step.results
        rows = [row for i in picked for row in range(first_row[i], first_row[i + 1])]
        if not result.row_valid_tokens[rows].any():
            return
        await self.trainer.begin(positive_tokens=float(result.row_positive_tokens[rows].sum()))
        await self.trainer.accumulate(BatchMeta(tuple(groups[i] for i in picked)))
        step.reports.append(await self.trainer.finish())

    # ── closing ─────────────────────────────────────────────────────────────────────────────────────

    async def _close(self, step: OpenStep) -> None:
        """Clear the rows, then move everything that counts in one await-free block (SC-5.78)."""
        groups, samples = step.groups, step.batch.sample_ids
        async with self.barrier.mutation():
            await self.plane.clear(samples)
            step.trained = step.batch.groups
            step.claim.clear()
            self.versions.trainer += 1
            self.versions.content = self.versions.trainer
            self.progress.steps += 1
            self.progress.consumed_groups += groups
            self.progress.total_valid_tokens += sum(report.valid_tokens for report in step.reports)
            self.progress.policy_optimizer_steps += len(step.reports)
            self.ledger.train(groups)
            missing = self._target(step) - groups
            self.accounts.close(step.version)
            self.ledger.strike_owed(missing)
            self.on_close()
            self.gate.close()
        self.ledger.check(buffered=self.buffer.ready, claimed=0)
        self.observer.event(
            "step_trained", step=self.progress.steps, groups=[group.group_id for group in step.trained]
        )
        self.changed.notify()

    def _metrics(self, step: OpenStep) -> dict[str, float]:
        values = over_updates(step.reports)
        stage: Mapping[str, float] = self.advantages.metrics(step.results)
        values.update({f"train/{name}": value for name, value in stage.items()})
        values.update(step.rollout_metrics())
        values["train/dropped_prompt_groups"] = self.accounts.shortfall[step.version]
        values["train/replaced_prompt_groups"] = self.accounts.replaced[step.version]
        values["train/promoted_prompt_groups"] = self.accounts.promoted[step.version]
        values["train/global_valid_toks"] = sum(report.valid_tokens for report in step.reports)
        values["train/global_valid_seqs"] = sum(report.valid_rows for report in step.reports)
        return values
