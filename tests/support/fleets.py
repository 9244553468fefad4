"""A fleet of scripted shards with everything that watches and repairs it, in loop time."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from asyncrl_runtime.adapters.scripted import ScriptedGenerator, ScriptedSync
from asyncrl_runtime.core.fleet import FleetLedger, FleetSettings
from asyncrl_runtime.ports.generator import GenerationRequest, Sampling
from asyncrl_runtime.pumps.fleet import Fleet
from asyncrl_runtime.pumps.probe import ProbePump, ReadmissionPump, RestartPump
from asyncrl_runtime.pumps.transfer import TransferSettings, WeightTransfer
from support.runs import Events


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
