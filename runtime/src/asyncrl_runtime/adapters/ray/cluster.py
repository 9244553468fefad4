"""Places for a job's workers on a Ray cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from asyncrl_runtime.adapters.ray.connection import TOKEN, Connection, RayThread
from asyncrl_runtime.adapters.ray.errors import BundlesMissing
from asyncrl_runtime.adapters.ray.sessions import Session
from asyncrl_runtime.adapters.ray.worker import RayWorker
from asyncrl_runtime.adapters.workers.host import Host, Worker

GENERATION, TRAINING = "generation", "training"

_WATCH_SECONDS, _SILENT_SECONDS = 5.0, 20.0
"""How often a cluster is asked whether it lives, and how long it may take to answer.

Ray itself ends this process without a word once its cluster has been silent for a minute.
"""


@dataclass(frozen=True, slots=True)
class Role:
    """Places for workers of one kind: each a bundle with one unit of a resource named after the role."""

    count: int
    gpus: int = 0
    workers: int = 1
    """Processes that share a place evenly."""

    size_setting: str = ""
    """The field that says how many there are."""

    def bundle(self, name: str) -> dict[str, float]:
        """Resources of one place."""
        return {name: 1.0, "GPU": float(self.gpus)} if self.gpus else {name: 1.0}


@dataclass(slots=True, eq=False)
class Cluster:
    """Implements `Hosts` on Ray: one placement group per role, held for the whole run."""

    roles: Mapping[str, Role]
    address: str | None = None
    """Of a running cluster. None: one is started on this machine, for as long as the run lasts."""

    num_cpus: int = 1
    """Logical CPUs of a cluster that is started."""

    start_seconds: float = 300.0
    setting: str = ""
    """The field that holds `start_seconds`."""

    _connection: Connection | None = field(default=None, init=False)
    _groups: dict[str, Any] = field(default_factory=dict, init=False)
    _workers: list[RayWorker] = field(default_factory=list, init=False)
    _lost: bool = field(default=False, init=False)
    _watching: asyncio.Task[None] | None = field(default=None, init=False)

    async def start(self) -> None:
        """Connect, and wait for a place for every worker.

        Raises:
            RayMissing, ClusterUnavailable: there is no cluster.
            BundlesMissing: it has too few places, `start_seconds` long.
        """
        bound = {"start_seconds": self.start_seconds, "setting": self.setting}
        end = asyncio.get_running_loop().time() + self.start_seconds
        if self.address is None:
            resources = {name: float(role.count) for name, role in self.roles.items() if role.count}
            self._connection = await Connection.start_local(resources, num_cpus=self.num_cpus, **bound)
        else:
            self._connection = await Connection.attach(self.address, **bound)
        await self._call(self._reserve)
        for name in self._groups:
            await self._until_placed(name, end)
        self._watching = asyncio.create_task(self._watch(), name="the Ray cluster's life")

    @property
    def session(self) -> Session | None:
        """Folder of a cluster that was started here."""
        return self._connection.session if self._connection is not None else None

    @property
    def token(self) -> str:
        """Whoever connects to a cluster that was started here must know it."""
        return TOKEN

    def shard(self, index: int) -> Host:
        """In bundle `index` of the role `generation`."""
        return RayHost(self, GENERATION, index)

    def trainer(self, rank: int = 0) -> Host:
        """In the bundles of the role `training`, one after the other."""
        return RayHost(self, TRAINING, rank // self.roles[TRAINING].workers)

    def data_plane(self) -> Host:
        """Wherever Ray likes, outside the roles' places."""
        return RayHost(self, None, 0)

    async def close(self) -> None:
        """End every worker, give the places back, disconnect. Idempotent."""
        if self._connection is None:
            return
        if self._watching is not None:
            self._watching.cancel()
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.kill()
        try:
            await asyncio.gather(*(worker.ended.wait() for worker in workers))
            if not self._lost:
                async with asyncio.timeout(_SILENT_SECONDS):
                    await self._call(self._give_back)
        except TimeoutError:
            self._lost = True
        finally:
            connection, self._connection = self._connection, None
            await connection.close()

    async def launch(
        self, role: str | None, bundle: int, name: str, factory: Callable[..., Any], *args: Any, **bounds: Any
    ) -> Worker:
        """Start a worker in one bundle of a role; see `Host.launch`."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        options: dict[str, Any] = {}
        if role is not None:
            shared = self.roles[role].workers
            options = {
                "resources": {role: 1.0 / shared},
                "num_gpus": self.roles[role].gpus / shared,
                "scheduling_strategy": PlacementGroupSchedulingStrategy(
                    self._groups[role], placement_group_bundle_index=bundle
                ),
            }
        worker = RayWorker(name, options)
        self._workers = [*(known for known in self._workers if known.alive), worker]
        await worker.build(factory, *args, **bounds)
        return worker

    async def _call(self, work: Callable[[], Any]) -> Any:
        assert self._connection is not None
        return await self._connection.thread.call(work)

    def _reserve(self) -> None:
        from ray.util import placement_group

        for name, role in self.roles.items():
            if role.count:
                self._groups[name] = placement_group([role.bundle(name)] * role.count, strategy="PACK")

    async def _watch(self) -> None:
        """Give every worker up when the cluster is silent: their callers then end the run in order."""
        import ray
        from ray.exceptions import RayError

        thread = RayThread()
        try:
            while True:
                async with asyncio.timeout(_SILENT_SECONDS):
                    await thread.call(ray.nodes)
                await asyncio.sleep(_WATCH_SECONDS)
        except (TimeoutError, RayError):
            self._lost = True
            for worker in self._workers:
                worker.give_up(f"the Ray cluster did not answer within {_SILENT_SECONDS:g} s")
        finally:
            thread.end()

    async def _until_placed(self, name: str, end: float) -> None:
        """Ask in turns of a second, so that a run that is cancelled meanwhile ends."""
        group, loop = self._groups[name], asyncio.get_running_loop()
        while not await self._call(lambda: group.wait(timeout_seconds=1)):
            if loop.time() > end:
                raise await self._call(lambda: self._missing(name))

    def _missing(self, name: str) -> BundlesMissing:
        import ray

        role, bundle = self.roles[name], self.roles[name].bundle(name)
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        room = sum(min(int(node.get(kind, 0) // amount) for kind, amount in bundle.items()) for node in nodes)
        return BundlesMissing(
            role=name,
            wanted=role.count,
            missing=max(0, role.count - room),
            bundle=bundle,
            nodes=len(nodes),
            offered={kind: sum(node.get(kind, 0.0) for node in nodes) for kind in bundle},
            seconds=self.start_seconds,
            setting=self.setting,
            size_setting=role.size_setting,
        )

    def _give_back(self) -> None:
        from ray.exceptions import RayError
        from ray.util import remove_placement_group

        groups, self._groups = self._groups, {}
        for group in groups.values():
            with suppress(RayError):  # a cluster that is gone holds nothing
                remove_placement_group(group)


@dataclass(frozen=True, slots=True)
class RayHost:
    """Implements `Host` in one bundle of a role; without a role, anywhere."""

    cluster: Cluster
    role: str | None
    bundle: int

    async def launch(
        self, factory: Callable[..., Any], *args: Any, name: str, start_seconds: float, setting: str = ""
    ) -> Worker:
        """See `Host`."""
        return await self.cluster.launch(
            self.role, self.bundle, name, factory, *args, start_seconds=start_seconds, setting=setting
        )
