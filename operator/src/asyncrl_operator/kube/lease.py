"""One of several operators writes: the holder of a Lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog

from asyncrl_operator.kube.api import LEASES, Api, ApiError, Object

log = structlog.get_logger("asyncrl.operator")

LEASE_SECONDS = 15
RENEW_SECONDS = 5.0
DEADLINE_SECONDS = 10.0
"""A holder that has not renewed for so long writes no more, whatever kept it: another may hold it soon."""


@dataclass(slots=True, eq=False)
class Lease:
    """Taken, renewed, and given back at the end. Deadlines are on the loop's clock, not on the cluster's."""

    api: Api
    namespace: str
    name: str
    holder: str
    taken: Callable[[], None] = lambda: None
    """Called whenever this process comes to hold it."""

    _renewed: float = field(default=-DEADLINE_SECONDS, init=False)
    _seen: tuple[str, float] = ("", 0.0)
    """Version of another holder's Lease, and since when it has not changed."""

    def holds(self) -> bool:
        """Whether this process may write now."""
        return asyncio.get_running_loop().time() - self._renewed < DEADLINE_SECONDS

    async def run(self) -> None:
        """Never returns."""
        while True:
            try:
                async with asyncio.timeout(DEADLINE_SECONDS):
                    await self._attempt()
            except (ApiError, TimeoutError) as problem:
                log.warning("the lease could not be renewed", reason=str(problem))
            await asyncio.sleep(RENEW_SECONDS if self.holds() else RENEW_SECONDS / 2)

    async def release(self) -> None:
        """Let the next one have it at once."""
        if not self.holds():
            return
        self._renewed = -DEADLINE_SECONDS
        body = {"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}}
        await self.api.patch(LEASES, self.namespace, self.name, body)

    async def _attempt(self) -> None:
        began = asyncio.get_running_loop().time()
        found = await self.api.get(LEASES, self.namespace, self.name)
        if found is None:
            await self.api.create(LEASES, self._lease({"namespace": self.namespace, "name": self.name}))
        elif self._is_free(found, began):
            version = found["metadata"]["resourceVersion"]
            body = self._lease({"resourceVersion": version})
            await self.api.patch(LEASES, self.namespace, self.name, body)
        else:
            return
        is_new = not self.holds()
        self._renewed = began
        if is_new:
            log.info("this operator holds the lease", holder=self.holder)
            self.taken()

    def _is_free(self, found: Object, now: float) -> bool:
        """Ours, given back, or unchanged for its whole duration by our own clock."""
        spec, version = found.get("spec") or {}, found["metadata"]["resourceVersion"]
        if spec.get("holderIdentity") in ("", None, self.holder):
            return True
        if self._seen[0] != version:
            self._seen = (version, now)
        return now - self._seen[1] >= float(spec.get("leaseDurationSeconds") or LEASE_SECONDS)

    def _lease(self, meta: Object) -> Object:
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": meta,
            "spec": {
                "holderIdentity": self.holder,
                "leaseDurationSeconds": LEASE_SECONDS,
                "renewTime": moment,
            },
        }
