"""A run without engines: the real controller, with durations in place of generation and training."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import gettempdir

from asyncrl_api.derived import Derived
from asyncrl_api.job import JobSpec
from asyncrl_runtime.adapters.directory_store import DirectoryStore
from asyncrl_runtime.adapters.in_process_plane import InProcessPlane
from asyncrl_runtime.adapters.scripted import (
    ScriptedAdvantages,
    ScriptedEnvironment,
    ScriptedGenerator,
    ScriptedSource,
    ScriptedSync,
    ScriptedTokenizer,
    ScriptedTrainer,
)
from asyncrl_runtime.app.build import Outside, Parts, clamped_steps
from asyncrl_runtime.app.samplers import build_sampler
from asyncrl_runtime.core.replay import ReplayBuffer
from asyncrl_runtime.ports.generator import GenerationRequest
from asyncrl_runtime.ports.metrics import MetricRecord
from asyncrl_runtime.pumps.step import OpenStep
from asyncrl_runtime.pumps.supervisor import supervise
from asyncrl_runtime.pumps.train import RunEnd


@dataclass(slots=True)
class Silent:
    """An observer and a sink of whoever looks at the run itself."""

    def event(self, kind: str, **facts: object) -> None:
        """Not written down."""

    def log(self, record: MetricRecord) -> None:
        """Not written down."""

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """What engines would take, in seconds of loop time."""

    generation: Callable[[GenerationRequest], float]
    training: Callable[[int], float]
    """By RL step."""

    weight_sync: Callable[[int], float] = lambda version: 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class Simulation:
    """One simulated run of a resolved spec; checkpoints and validation are left out."""

    spec: JobSpec
    prompts: int
    durations: Durations
    finished: Callable[[OpenStep, Mapping[str, float]], None] = lambda step, metrics: None
    """Told about every step."""

    observer: Silent = field(default_factory=Silent)
    parts: Parts = field(init=False)

    async def run(self) -> RunEnd:
        """From the first prompt to the end, on the running loop's clock."""
        self.parts = self._connect()
        await self.parts.refit.run()
        return await supervise(self.parts.train.run(), {"rollout": self.parts.rollout.run()})

    def _connect(self) -> Parts:
        spec = self.spec.model_copy(
            update={"checkpointing": self.spec.checkpointing.model_copy(update={"enabled": False})}
        )
        plane, buffer = (
            InProcessPlane(spec.data_plane.storage_capacity),
            ReplayBuffer(Derived(spec).buffer_size),
        )
        shards = [
            ScriptedGenerator(index=index, seconds=self.durations.generation)
            for index in range(spec.generation.shards)
        ]
        outside = Outside(
            source=ScriptedSource(length=self.prompts),
            validation=None,
            tokenizer=ScriptedTokenizer(),
            environment=ScriptedEnvironment(),
            observer=self.observer,
            sink=self.observer,
            store=DirectoryStore(Path(gettempdir())),
            config_yaml="",
            began=asyncio.get_running_loop().time(),
            finished_step=self.finished,
        )
        return Parts(
            spec=spec,
            outside=outside,
            plane=plane,
            buffer=buffer,
            sampler=build_sampler(spec, buffer),
            shards=list(shards),
            trainer=ScriptedTrainer(plane=plane, seconds=self.durations.training),
            sync=ScriptedSync(shards=shards, seconds=self.durations.weight_sync),
            advantages=ScriptedAdvantages(),
            max_steps=clamped_steps(spec, self.prompts),
        )
