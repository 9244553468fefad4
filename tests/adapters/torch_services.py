"""Services that the torch tests run in worker processes in place of the product's."""

import torch


def poisonable_shard(settings):
    from asyncrl_runtime.adapters.torch.shard_service import ShardService

    class Poisonable(ShardService):
        @torch.no_grad()
        def poison(self):
            for parameter in self._engine.model.parameters():
                parameter.fill_(float("nan"))

    return Poisonable(settings)


def hanging_shard(settings):
    """A shard whose decoding can stop for good while its calls are answered."""
    import asyncio

    from asyncrl_runtime.adapters.torch.shard_service import ShardService

    class Hanging(ShardService):
        def hang(self):
            self._loop_task.cancel()
            self._loop_task = asyncio.ensure_future(asyncio.Event().wait())

    return Hanging(settings)


def misreading_shard(settings):
    """A shard that can be made to read weights wrongly."""
    from asyncrl_runtime.adapters.torch.shard_service import ShardService

    class Misreading(ShardService):
        def misread(self, wrongly):
            load = type(self._weights).load

            def misread(buffer, checksum):
                load(self._weights, buffer, checksum + "x" if wrongly else checksum)

            self._weights.load = misread

    return Misreading(settings)
