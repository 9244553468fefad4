"""A job of scripted engines, put together by the application itself, that can be killed and started again."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from asyncrl_api.derived import Derived
from asyncrl_api.parse import parse
from asyncrl_api.resolve import resolve
from asyncrl_runtime.adapters.directory_snapshots import DirectorySnapshots
from asyncrl_runtime.adapters.directory_store import DirectoryStore
from asyncrl_runtime.adapters.in_process_plane import InProcessPlane
from asyncrl_runtime.adapters.scripted import (
    ScriptedAdvantages,
    ScriptedEnvironment,
    ScriptedSource,
    ScriptedTokenizer,
    ScriptedTrainer,
)
from asyncrl_runtime.adapters.scripted_fleet import ScriptedGenerator, ScriptedSync
from asyncrl_runtime.adapters.virtual_clock import VirtualClockLoop
from asyncrl_runtime.app.build import Outside, Parts, clamped_steps
from asyncrl_runtime.app.resume import newest_usable, resume
from asyncrl_runtime.app.samplers import build_sampler
from asyncrl_runtime.core.fingerprint import identity_of
from asyncrl_runtime.core.replay import ReplayBuffer
from asyncrl_runtime.pumps.supervisor import supervise
from support.runs import Events, Records


def job_spec(*, groups_per_step=2, generations=2, async_rl=None, checkpointing=None, more=None, **grpo):
    """A resolved spec that only the scripted parts read."""
    raw = {
        "apiVersion": "asyncrl.io/v1alpha1",
        "kind": "AsyncRLJob",
        "metadata": {"name": "scripted"},
        "spec": {
            "model": {"init": {}, "dtype": "float32", "maxTotalSequenceLength": 32},
            "data": {"source": {"generated": {}}, "shuffle": True},
            "environment": {"arithmetic": {}},
            "algorithm": {
                "grpo": {
                    "numPromptsPerStep": groups_per_step,
                    "numGenerationsPerPrompt": generations,
                    "maxNumEpochs": 1,
                    "maxNumSteps": 10_000,
                    **grpo,
                }
            },
            "generation": {"backend": "torch", "gpusPerShard": 0, "shards": 2},
            "training": {"backend": "torch", "gpusPerHost": 0, "optimizer": {"lr": 0.001}},
            "dataPlane": {"backend": "inProcess"},
            "asyncRL": async_rl or {},
            "checkpointing": {"enabled": True, "savePeriod": 1, **(checkpointing or {})},
            **(more or {}),
        },
    }
    return resolve(parse(raw)).spec


def scripted_parts(run, store, *, shards, sync, environment, train_seconds):
    """The parts of a run, connected by the application.

    `run` has the spec, the number of prompts, who hears of events and metrics, and what follows a step.
    """
    spec, plane = run.spec, InProcessPlane(100_000)
    buffer = ReplayBuffer(Derived(spec).buffer_size)
    outside = Outside(
        source=ScriptedSource(length=run.prompts),
        validation=None,
        tokenizer=ScriptedTokenizer(),
        environment=environment,
        observer=run.events,
        sink=run.records,
        store=store,
        config_yaml="{}\n",
        began=asyncio.get_running_loop().time(),
        finished_step=lambda step, metrics: run.finished(run.parts, step, metrics),
    )
    return Parts(
        spec=spec,
        outside=outside,
        plane=plane,
        buffer=buffer,
        sampler=build_sampler(spec, buffer),
        shards=shards,
        trainer=ScriptedTrainer(plane=plane, seconds=train_seconds),
        sync=sync,
        advantages=ScriptedAdvantages(),
        max_steps=clamped_steps(spec, run.prompts),
    )


@dataclass
class ScriptedStart:
    """One start of a job in a folder."""

    spec: object
    folder: Path
    prompts: int = 20
    seconds: object = lambda request: 1.0
    failing: object = lambda request: None
    train_seconds: object = lambda step: 0.5
    finished: object = lambda parts, step, metrics: None
    stop_after: float | None = None
    """Seconds after which it is asked to stop."""

    events: Events = field(default_factory=Events, init=False)
    records: Records = field(default_factory=Records, init=False)
    parts: Parts | None = field(default=None, init=False)
    found: object = field(default=None, init=False)

    async def run(self):
        """From the newest checkpoint, if there is one, to the end; how the run ended."""
        store = DirectoryStore(self.folder)
        store.claim()
        store.sweep()
        snapshots = DirectorySnapshots(store)
        snapshots.sweep()
        self.identity = identity_of(self.spec.model_dump(mode="json", by_alias=True))
        self.found = newest_usable(
            store,
            snapshots=snapshots,
            mode=self.spec.rollout_checkpointing.restore_mode,
            identity=self.identity,
        )
        if self.found is None and self.spec.rollout_checkpointing.snapshot_attempt_interval_seconds:
            snapshots.write_bootstrap(self.identity.to_json())
        parts = self.parts = self._connect(store)
        if self.found is not None:
            await resume(parts, self.found)
        return await self._go(parts)

    async def _go(self, parts):
        await parts.refit.run()
        if self.stop_after is not None:
            asyncio.get_running_loop().call_later(self.stop_after, parts.ask_to_stop)
        beside = {"rollout": parts.rollout.run(), "snapshots": parts.snapshots.run()}
        return await supervise(parts.train.run(), beside)

    def _shards(self):
        return [ScriptedGenerator(index=i, seconds=self.seconds, failing=self.failing) for i in range(2)]

    def _sync(self, shards):
        return ScriptedSync(shards=shards, seconds=lambda version: 0.1)

    def _environment(self):
        return ScriptedEnvironment()

    def _connect(self, store):
        shards = self._shards()
        return scripted_parts(
            self,
            store,
            shards=shards,
            sync=self._sync(shards),
            environment=self._environment(),
            train_seconds=self.train_seconds,
        )

    def trained_positions(self):
        """Dataset positions of every group that was trained on, in order."""
        rows = self.parts.trainer.trained[:: Derived(self.spec).num_generations_per_prompt]
        return [int(row.split("_")[0].split("p")[1]) for row in rows]

    def counts(self):
        parts = self.parts
        return parts.ledger.counts(buffered=parts.buffer.ready, claimed=len(parts.train.claims))


class Killed(BaseException):
    """The process ended between two awaits."""


class MortalLoop(VirtualClockLoop):
    """Dies at its n-th turn."""

    def __init__(self, turns):
        super().__init__()
        self.turns = turns

    def _run_once(self):
        self.turns -= 1
        if self.turns == 0:
            raise Killed
        super()._run_once()


def run_until_killed(start, turns, loop_class=MortalLoop):
    """The end of the run, or None if it was killed at that turn of the loop."""
    loop = loop_class(turns)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        try:
            return runner.run(start.run())
        except Killed:
            loop.stop()
            loop.run_forever()  # takes what asyncio had already queued out of the way of its own clean-up
            return None
        finally:
            loop.turns = 0
