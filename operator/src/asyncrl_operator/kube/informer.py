"""A cache of the objects of one kind: listed, then watched."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import structlog

from asyncrl_operator.kube.api import Api, ApiError, Kind, Object

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

    def get(self, namespace: str, name: str) -> Object | None:
        """One object as last seen. Nobody may change it."""
        return self._objects.get((namespace, name))

    def __iter__(self) -> Iterator[Object]:
        return iter(list(self._objects.values()))

    def take(self, found: Object) -> None:
        """Put the answer to a write of our own in, so that the next pass sees it."""
        key = _key(found)
        known = self._objects.get(key)
        if known is None or _version(known) < _version(found):
            self._objects[key] = _trimmed(found)

    def drop(self, namespace: str, name: str) -> None:
        """Forget an object that we know to be gone."""
        self._objects.pop((namespace, name), None)

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
        current = {_key(item): _trimmed(item) for item in found}
        before, self._objects = self._objects, current
        for key, item in before.items():
            if key not in current:
                self.changed(item)
        for key, item in current.items():
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
                if kind == "DELETED":
                    self._objects.pop(_key(item), None)
                elif kind != "BOOKMARK":
                    self._objects[_key(item)] = _trimmed(item)
                if kind != "BOOKMARK":
                    self.changed(item)


def _key(item: Object) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _version(item: Object) -> int:
    return int(item["metadata"].get("resourceVersion") or 0)


def _trimmed(item: Object) -> Object:
    item["metadata"].pop("managedFields", None)
    return item
