"""Weight sync through a folder that trainer and shards share: slower than a network, needs nothing else."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from asyncrl_runtime.adapters.torch.entry import Bound
from asyncrl_runtime.adapters.torch.staged_sync import Failures, Member, Published, StagedSync
from asyncrl_runtime.adapters.workers import Worker
from asyncrl_runtime.core.errors import RefitAborted

_PREFIX = "weights-"


class FilesSync(StagedSync):
    """One file for each version, removed once everybody has read it or given up.

    Every file has a name of its own: what a network file system remembers of an older one cannot be read
    in its place, and the digest would tell.
    """

    def __init__(
        self,
        trainer: Callable[[], Worker],
        members: Callable[[], Sequence[Member]],
        *,
        directory: Path,
        bound: Bound = Bound(),  # noqa: B008 - immutable
    ) -> None:
        """`directory` has the same path for all of them; this job alone uses it."""
        super().__init__(trainer, members, bound=bound)
        self._directory = directory

    async def _link(self, receivers: Sequence[Member]) -> Failures:
        try:
            await asyncio.to_thread(_emptied, self._directory)
        except OSError as problem:
            raise RefitAborted(-1, str(problem)) from problem
        return await self._stage(receivers)

    async def _deliver(self, published: Published, receivers: Sequence[Member]) -> Failures:
        path = self._directory / f"{_PREFIX}{published.version}-{secrets.token_hex(4)}"
        try:
            await self._ask_trainer("write_weights", str(path), version=published.version)
            _, failed = await self._all(receivers, "read_weights", str(path))
        finally:
            await asyncio.to_thread(path.unlink, missing_ok=True)
        return failed


def _emptied(directory: Path) -> None:
    """Make it, without what a killed controller left in it."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in directory.glob(f"{_PREFIX}*"):
        path.unlink(missing_ok=True)
