"""A fleet of scripted shards with everything that watches and repairs it, in loop time."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from asyncrl_api.derived import Derived
from asyncrl_runtime.adapters.directory_store import DirectoryStore
from asyncrl_runtime.adapters.scripted import ScriptedEnvironment
from asyncrl_runtime.adapters.scripted_fleet import ScriptedGenerator, ScriptedSync
from asyncrl_runtime.core.fleet import FleetLedger, FleetSettings
from asyncrl_runtime.ports.generator import GenerationRequest, Sampling
from asyncrl_runtime.pumps.fleet import Fleet
from asyncrl_runtime.pumps.probe import ProbePump, ReadmissionPump, RestartPump
from asyncrl_runtime.pumps.transfer import TransferSettings, WeightTransfer
from support.jobs import scripted_parts
from support.runs import Events, Records


def request(name, seed=0):
    return GenerationRequest(name, (1, 2), Sampling(), seed)


@dataclass
class Watched:
    """Shards under watch. Every figure is in seconds of loop time."""

    shards: int = 2
    seconds: object = lambda request: 1.0
    failing: object = lambda request: None
    on_dead: str = "fail_fast"
    interval: float = 5.0
    timeout: float = 2.0
    backoff: float = 10.0
    start_seconds: float = 30.0
    start_failing: object = lambda number: None
    thresholds: dict = field(default_factory=dict)
    deadline: float | None = 20.0
    max_retries: int = 1
    invalidates: bool = False
    sync: dict = field(default_factory=dict)

    def __post_init__(self):
        self.events = Events()
        self.generators = [
            ScriptedGenerator(
                index=i,
                seconds=self.seconds,
                failing=self.failing,
                start_seconds=self.start_seconds,
                start_failing=self.start_failing,
            )
            for i in range(self.shards)
        ]
        for shard in self.generators:
            shard.starts = 1
        self.ledger = FleetLedger(
            num_shards=self.shards,
            settings=FleetSettings(**self.thresholds),
            clock=asyncio.get_running_loop().time,
        )
        self.fleet = Fleet(
            shards=self.generators, ledger=self.ledger, observer=self.events, on_dead_shard=self.on_dead
        )
        self.transport = ScriptedSync(shards=self.generators, deadline_seconds=self.deadline, **self.sync)
        self.transfer = WeightTransfer(
            sync=self.transport,
            fleet=self.fleet,
            observer=self.events,
            settings=TransferSettings(
                deadline_seconds=self.deadline,
                unwind_grace_seconds=60.0,
                max_retries=self.max_retries,
                recompute_kv_cache=self.invalidates,
                ping_seconds=self.timeout,
            ),
        )
        self.probe = ProbePump(
            fleet=self.fleet,
            ledger=self.ledger,
            interval_seconds=self.interval,
            timeout_seconds=self.timeout,
            after_round=self.fleet.check_exhausted,
        )

    @property
    def states(self):
        return [shard.state.value for shard in self.ledger.shards]

    @property
    def versions(self):
        return [shard.weight_version for shard in self.ledger.shards]

    def moves(self, shard):
        """States that a shard went through."""
        return [event["new"] for event in self.events.of("shard_state") if event["shard"] == shard]

    @asynccontextmanager
    async def pumps(self):
        """Probe and restarts run inside."""
        restarts = RestartPump(fleet=self.fleet, ledger=self.ledger, backoff_base_seconds=self.backoff)
        tasks = [asyncio.create_task(pump.run()) for pump in (self.probe, restarts)]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for error in ended:
            if not isinstance(error, asyncio.CancelledError):
                raise error

    def readmission(self, readmit):
        return ReadmissionPump(fleet=self.fleet, ledger=self.ledger, readmit=readmit)


@dataclass
class WatchedRun:
    """A whole run of scripted engines whose job watches its fleet, put together by the application."""

    spec: object
    folder: Path
    prompts: int = 40
    seconds: object = lambda request: 1.0
    restart_seconds: float = 3.0
    sync_failing: object = lambda version: False
    finished: object = lambda parts, step, metrics: None
    events: Events = field(default_factory=Events, init=False)
    records: Records = field(default_factory=Records, init=False)

    async def run(self):
        self.parts = self._connect()
        return await self.parts.run(self._prepare)

    async def _prepare(self):
        await self.parts.refit.run()

    def _connect(self):
        spec = self.spec
        shards = [
            ScriptedGenerator(index=i, seconds=self.seconds, start_seconds=self.restart_seconds)
            for i in range(spec.generation.shards)
        ]
        for shard in shards:
            shard.starts = 1
        sync = ScriptedSync(
            shards=shards,
            seconds=lambda version: 0.1,
            failing=self.sync_failing,
            deadline_seconds=spec.async_rl.refit.deadline_seconds,
        )
        self.store = DirectoryStore(self.folder)
        self.store.claim()
        return scripted_parts(
            self,
            self.store,
            shards=shards,
            sync=sync,
            environment=ScriptedEnvironment(),
            train_seconds=lambda step: 0.5,
        )

    def moves(self, shard):
        return [event["new"] for event in self.events.of("shard_state") if event["shard"] == shard]

    @property
    def whole(self):
        """Every prompt was trained on once, and the ledger balances."""
        rows = self.parts.trainer.trained[:: Derived(self.spec).num_generations_per_prompt]
        trained = sorted(int(row.split("_")[0].split("p")[1]) for row in rows)
        return trained == list(range(self.prompts)) and self.balanced

    @property
    def balanced(self):
        parts = self.parts
        return parts.ledger.counts(buffered=parts.buffer.ready, claimed=len(parts.train.claims)).balanced
