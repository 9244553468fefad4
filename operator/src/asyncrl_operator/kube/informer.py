"""A cache of the objects of one kind: listed, then watched."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import structlog

from asyncrl_operator.kube.api import Api, ApiError, Kind, Object
from asyncrl_operator.manifests.names import JOB_UID_LABEL

log = structlog.get_logger("asyncrl.operator")

Changed = Callable[[Object], None]
_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.5, 30.0


@dataclass(slots=True, eq=False)
class Informer:
    """Lists again whenever the server has forgotten the version; what vanished meanwhile is told, too."""

    api: Api
    kind: Kind
    changed: Changed
    """Called with each object that came, changed or went."""

    labels: str = ""
    namespace: str | None = None
    synced: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set once the first list is in."""

    heard: float = field(default=0.0, init=False)
    """Loop time of the last sign of life."""

    _objects: dict[tuple[str, str], Object] = field(default_factory=dict, init=False)
    _by_job: dict[str, dict[tuple[str, str], Object]] = field(default_factory=dict, init=False)
    """Those with the label of a job, by the job's UID."""

    def get(self, namespace: str, name: str) -> Object | None:
        """One object as last seen. Nobody may change it."""
        return self._objects.get((namespace, name))

    def of_job(self, uid: str) -> list[Object]:
        """All objects of one job."""
        return list(self._by_job.get(uid, {}).values())

    def __iter__(self) -> Iterator[Object]:
        return iter(list(self._objects.values()))

    def take(self, found: Object) -> None:
        """Put the answer to a write of our own in, so that the next pass sees it."""
        key = _key(found)
        known = self._objects.get(key)
        if known is None or _version(known) < _version(found):
            self._put(found)

    def drop(self, namespace: str, name: str) -> None:
        """Forget an object that we know to be gone."""
        self._remove((namespace, name))

    async def run(self) -> None:
        """Never returns."""
        wait, loop = _FIRST_RETRY_SECONDS, asyncio.get_running_loop()
        while True:
            try:
                version = await self._list()
                wait = _FIRST_RETRY_SECONDS
                self.synced.set()
                await self._follow(version)
            except ApiError as error:
                if error.status == 410:
                    continue
                self.heard = self.heard or loop.time()
                log.warning("a watch was cut off", kind=self.kind.name, reason=str(error))
                await asyncio.sleep(wait * random.uniform(0.5, 1.0))
                wait = min(_LONGEST_RETRY_SECONDS, 2 * wait)

    async def _list(self) -> str:
        found, version = await self.api.all(self.kind, labels=self.labels, namespace=self.namespace)
        self.heard = asyncio.get_running_loop().time()
        before, self._objects, self._by_job = self._objects, {}, {}
        for item in found:
            self._put(item)
        for key, item in before.items():
            if key not in self._objects:
                self.changed(item)
        for key, item in list(self._objects.items()):
            if key not in before or _version(before[key]) != _version(item):
                self.changed(item)
        return version

    async def _follow(self, version: str) -> None:
        """Watch after watch, each from where the last one ended."""
        loop = asyncio.get_running_loop()
        while True:
            async for kind, item in self.api.watch(
                self.kind, version, labels=self.labels, namespace=self.namespace
            ):
                self.heard = loop.time()
                version = item["metadata"]["resourceVersion"]
                if kind == "BOOKMARK":
                    continue
                if kind == "DELETED":
                    self._remove(_key(item))
                else:
                    self._put(item)
                self.changed(item)

    def _put(self, item: Object) -> None:
        """A known object keeps its place, so that passes see objects in the same order."""
        key, uid = _key(item), _job(item)
        known = self._objects.get(key)
        if known is not None and _job(known) != uid:
            self._remove(key)
        item["metadata"].pop("managedFields", None)
        self._objects[key] = item
        if uid is not None:
            self._by_job.setdefault(uid, {})[key] = item

    def _remove(self, key: tuple[str, str]) -> None:
        item = self._objects.pop(key, None)
        uid = _job(item) if item is not None else None
        if uid is not None:
            left = self._by_job[uid]
            del left[key]
            if not left:
                del self._by_job[uid]


def _key(item: Object) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _version(item: Object) -> int:
    return int(item["metadata"].get("resourceVersion") or 0)


def _job(item: Object) -> str | None:
    return (item["metadata"].get("labels") or {}).get(JOB_UID_LABEL)
