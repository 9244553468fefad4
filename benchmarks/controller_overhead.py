"""B2: what the controller costs a group, from admission to release.

    python benchmarks/controller_overhead.py [--quick]

A group is admitted, launched, reserved, committed with its rows in the in-process data plane, selected,
trained and released; engines cost nothing. The last figures run the real pumps with scripted engines.
"""

import asyncio
import sys
import time

import numpy as np
from common import Report, arguments

from asyncrl_runtime.adapters.in_process_plane import InProcessPlane
from asyncrl_runtime.core.ledger import PromptLedger
from asyncrl_runtime.core.records import Completion, GroupMeta, GroupRecord, Prompt, PromptRef, sample_id
from asyncrl_runtime.core.replay import ReplayBuffer
from asyncrl_runtime.core.samplers.in_order import InOrder
from asyncrl_runtime.core.samplers.ready_first import ReadyFirst
from asyncrl_runtime.core.samplers.weight_fifo import WeightFifo
from asyncrl_runtime.core.samplers.windowed import Windowed
from asyncrl_runtime.ports import columns as col
from asyncrl_runtime.ports.columns import Jagged
from asyncrl_runtime.pumps.commit import Committer
from asyncrl_runtime.pumps.wakeup import MutationToken

GROUPS_PER_STEP, GENERATIONS, TOKENS = 32, 8, 16
BOUND = 20_000
SAMPLERS = {
    "in_order": lambda buffer, window: InOrder(buffer, window=window),
    "weight_fifo": lambda buffer, window: WeightFifo(buffer, window=window),
    "ready_first": lambda buffer, window: ReadyFirst(buffer, window=window),
    "windowed": lambda buffer, window: Windowed(buffer, window=window),
    "windowed, freshest first": lambda buffer, window: Windowed(buffer, window=window, freshest_first=True),
}


def group_columns():
    """The columns that a commit writes, for one group."""
    rows = [np.arange(TOKENS)] * GENERATIONS
    columns = {
        col.TOKEN_IDS: Jagged.of(rows, np.int64),
        col.TOKEN_MASK: Jagged.of(rows, np.int8),
        col.GENERATION_LOGPROBS: Jagged.of(rows, np.float32),
        col.WEIGHT_VERSIONS: Jagged.of(rows, np.int32),
    }
    for name in (col.SAMPLE_MASK, col.REWARD, col.TRUNCATED, col.FLAGGED, col.PROMPT_TOKENS):
        columns[name] = Jagged.scalars([1.0] * GENERATIONS, np.float64)
    return columns


class Controller:
    """The parts of a run without their pumps."""

    def __init__(self, make, outstanding):
        self.window = max(1, outstanding // GROUPS_PER_STEP)
        self.buffer = ReplayBuffer(outstanding + 2 * GROUPS_PER_STEP)
        self.sampler = make(self.buffer, self.window)
        self.ledger, self.plane = PromptLedger(), InProcessPlane(100_000_000)
        self.columns, self.version, self.position = group_columns(), 0, 0

    async def dispatch(self):
        """Admit a batch and commit all of its groups."""
        stamp = self.sampler.admit(self.version)
        refs = [PromptRef(0, self.position + i) for i in range(GROUPS_PER_STEP)]
        self.position += GROUPS_PER_STEP
        entries = self.ledger.own(refs)
        self.ledger.admit(entries, stamp)
        for entry in entries:
            self.buffer.launch(entry.group_id)
            attempt = self.ledger.begin_attempt(entry, self.version)
            slot = self.buffer.reserve(
                entry.group_id,
                entry.prompt,
                start_weight=self.version,
                target_step=entry.target_step,
                attempt=attempt,
            )
            samples = tuple(sample_id(slot.group_id, attempt, i) for i in range(GENERATIONS))
            await self.plane.put(samples, self.columns)
            meta = GroupMeta(
                slot.group_id,
                attempt,
                slot.prompt,
                samples,
                (TOKENS,) * GENERATIONS,
                (slot.start_weight,) * GENERATIONS,
                TOKENS * GENERATIONS,
                slot.start_weight,
                self.version,
                False,
                slot.target_step,
            )
            self.buffer.commit(meta)
            self.ledger.commit(entry.group_id)

    async def train(self):
        """Select a step and release it."""
        evicted = self.sampler.evict(self.version)
        if evicted:
            await self.plane.clear([sample for slot in evicted for sample in slot.meta.sample_ids])
            self.ledger.discard_committed(len(evicted), "evicted")
        batch = self.sampler.select(self.version, GROUPS_PER_STEP, GROUPS_PER_STEP)
        await self.plane.clear(batch.sample_ids)
        self.ledger.train(len(batch.groups))
        self.version += 1
        self.ledger.check(buffered=self.buffer.ready, claimed=0)


async def groups_per_second(make, outstanding, steps):
    """Throughput with this many groups in the buffer all the while."""
    controller = Controller(make, outstanding)
    for _ in range(max(1, outstanding // GROUPS_PER_STEP)):
        await controller.dispatch()
    best = 0.0
    for _ in range(3):
        began = time.perf_counter()
        for _ in range(steps):
            await controller.dispatch()
            await controller.train()
        best = max(best, steps * GROUPS_PER_STEP / (time.perf_counter() - began))
    return best


async def commits_per_second(groups):
    """Commits from completions, which are lists of tokens."""
    plane, buffer = InProcessPlane(100_000_000), ReplayBuffer(groups + 1)
    committer = Committer(
        plane=plane, buffer=buffer, generations=GENERATIONS, overlong_filtering=False, mask_flagged=True
    )
    tokens = list(range(TOKENS))
    done = Completion(tokens, [1] * TOKENS, [-1.0] * TOKENS, [3] * TOKENS, 4, "text", 1.0)
    record = GroupRecord(Prompt(PromptRef(0, 0), ({"role": "user", "content": "x"},)), (done,) * GENERATIONS)
    slots = [
        buffer.reserve(f"g{i}", PromptRef(0, i), start_weight=0, target_step=None, attempt=0)
        for i in range(groups)
    ]
    began = time.perf_counter()
    for slot in slots:
        await committer.commit(MutationToken(), slot, record, end_weight=0, straddled=False)
    return groups / (time.perf_counter() - began)


async def measure(quick):
    report = Report(
        f"controller, {GENERATIONS} rows of {TOKENS} tokens a group, {GROUPS_PER_STEP} groups a step"
    )
    steps = 40 if quick else 300
    for name, make in SAMPLERS.items():
        rate = await groups_per_second(make, 64, steps)
        report.at_least(f"{name}: groups/s at 64 outstanding", rate, BOUND)
        many = await groups_per_second(make, 4096 if quick else 65_536, steps)
        report.at_most(f"{name}: cost at {4096 if quick else 65_536:,} outstanding / at 64", rate / many, 2.0)
    report.note("commits/s from completions", await commits_per_second(500 if quick else 5000))
    return report.exit_status()


if __name__ == "__main__":
    sys.exit(asyncio.run(measure(arguments(__doc__).quick)))
