"""Shards and trainers in processes of their own, for as long as a test lasts."""

import asyncio
from contextlib import asynccontextmanager


@asynccontextmanager
async def serving(shards):
    """Started side by side; killed in the end, since a test may have frozen them."""
    await asyncio.gather(*(shard.start() for shard in shards))
    yield shards
    for shard in shards:
        shard.kill()
        await shard.close()


@asynccontextmanager
async def training(trainer):
    """Started, and closed in the end."""
    await trainer.start()
    yield trainer
    await trainer.close()
