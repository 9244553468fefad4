"""What every weight sync keeps; a test module subclasses it, with fixtures `sync`, `shards`, `break_sync`.

`shards` are the generators that take part; `break_sync()` makes the next transfer fail.
"""

import pytest

from asyncrl_runtime.core.errors import RefitAborted, RefitIncomplete


class WeightSyncContract:
    async def test_it_is_stale_until_the_first_transfer_lands(self, sync, shards):
        assert sync.is_stale
        await sync.init_communicator()
        assert sync.is_stale
        report = await sync.sync_weights(3)

        assert not sync.is_stale
        assert report.version == 3
        assert set(report.participants) == {shard.index for shard in shards}
        assert set(report.pause_seconds) <= set(report.participants)
        assert {(await shard.probe()).weight_version for shard in shards} == {3}

    async def test_later_transfers_replace_earlier_ones(self, sync, shards):
        await sync.init_communicator()
        for version in range(3):
            await sync.sync_weights(version)

        assert {(await shard.probe()).weight_version for shard in shards} == {2}

    async def test_a_transfer_that_does_not_land_everywhere_is_aborted(self, sync, break_sync):
        await sync.init_communicator()
        break_sync()

        with pytest.raises(RefitAborted, match="weights of version 4 did not land"):
            await sync.sync_weights(4)
        assert sync.is_stale

    async def test_absent_shards_get_no_weights_and_cost_one_rebuild(self, sync, shards):
        await sync.init_communicator()
        await sync.sync_weights(1)
        last = shards[-1].index

        assert await sync.reconcile(frozenset()) == "unchanged"
        assert await sync.reconcile(frozenset({last})) == "rebuilt"
        assert await sync.reconcile(frozenset({last})) == "unchanged"
        report = await sync.sync_weights(2)
        assert set(report.participants) == {shard.index for shard in shards[:-1]}
        assert (await shards[-1].probe()).weight_version == 1
        assert await sync.reconcile(frozenset()) == "rebuilt"
        assert last in (await sync.sync_weights(3)).participants

    async def test_a_forced_reconcile_builds_anew_though_nobody_left(self, sync):
        await sync.init_communicator()
        assert await sync.reconcile(frozenset(), force=True) == "rebuilt"
        await sync.sync_weights(1)

    async def test_a_receiver_that_ended_is_told_from_those_that_are_complete(self, sync, shards):
        await sync.init_communicator()
        shards[-1].kill()
        with pytest.raises(RefitIncomplete) as caught:
            await sync.sync_weights(2)

        assert set(caught.value.acknowledged) == {shard.index for shard in shards[:-1]}
        assert caught.value.died == (shards[-1].index,)
        assert {(await shard.probe()).weight_version for shard in shards[:-1]} == {2}

    async def test_standing_down_needs_no_transfer(self, sync):
        sync.stand_down()

    async def test_scales_that_cannot_be_carried_are_refused(self, sync):
        await sync.init_communicator()
        with pytest.raises(ValueError, match="scales"):
            await sync.sync_weights(0, kv_scales={"layer": 1.0})

    async def test_shutdown_is_idempotent(self, sync):
        await sync.init_communicator()
        await sync.shutdown()
        await sync.shutdown()
