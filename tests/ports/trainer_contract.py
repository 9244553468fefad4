"""What every trainer keeps; a test module subclasses it, with fixtures `trainer`, `plane`, `batch`.

`trainer` is started and reads from `plane`; `batch` is the metadata of committed groups with advantages.
"""

import pytest

from asyncrl_runtime.core.errors import TrainerFailure
from asyncrl_runtime.core.records import BatchMeta
from asyncrl_runtime.ports import columns as col


class TrainerContract:
    async def test_a_step_in_two_chunks_reports_all_its_rows(self, trainer, batch):
        await trainer.begin()
        for group in batch.groups:
            await trainer.accumulate(BatchMeta((group,)))
        report = await trainer.finish()

        assert report.valid_rows == len(batch.sample_ids)
        assert report.valid_tokens >= report.valid_rows
        assert "loss" in report.metrics

    async def test_calls_out_of_order_are_refused(self, trainer, batch):
        with pytest.raises(TrainerFailure, match="accumulate"):
            await trainer.accumulate(batch)
        with pytest.raises(TrainerFailure, match="finish"):
            await trainer.finish()
        await trainer.begin()
        with pytest.raises(TrainerFailure, match="begin"):
            await trainer.begin()

    async def test_an_aborted_step_leaves_room_for_the_next(self, trainer, batch):
        await trainer.abort()
        await trainer.begin()
        await trainer.accumulate(batch)
        await trainer.abort()
        await trainer.begin()
        await trainer.accumulate(BatchMeta(batch.groups[:1]))

        assert (await trainer.finish()).valid_rows == len(batch.groups[0].sample_ids)

    async def test_logprobs_are_written_for_every_token_of_the_rows(self, trainer, plane, batch):
        await trainer.logprobs(batch, models=frozenset({"policy", "reference"}))
        columns = await plane.get(batch.sample_ids, [col.PREVIOUS_LOGPROBS, col.REFERENCE_LOGPROBS])

        for column in columns.values():
            assert column.lengths.tolist() == batch.lengths
            assert (column.values <= 0).all()

    @pytest.mark.parametrize("optimizer", [True, False])
    async def test_what_was_saved_can_be_loaded(self, trainer, batch, tmp_path, optimizer):
        await trainer.begin()
        await trainer.accumulate(batch)
        await trainer.finish()
        await trainer.save(tmp_path, optimizer=optimizer)

        assert any((tmp_path / "weights").iterdir())
        assert await trainer.load(tmp_path, optimizer=False)
        assert await trainer.load(tmp_path, optimizer=True) is optimizer

    async def test_close_is_idempotent(self, trainer):
        await trainer.close()
        await trainer.close()
