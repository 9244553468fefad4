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
