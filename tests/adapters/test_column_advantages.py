"""The advantage stage over columns of rows."""

import numpy as np
from adapters.torch_bench import columns_of, meta_of, rows_of

from asyncrl_runtime.adapters.advantages import ColumnAdvantages
from asyncrl_runtime.adapters.torch.advantage_worker import AdvantageWorkers
from asyncrl_runtime.algorithms.settings import GrpoSettings, MaskSettings, RewardSettings, StageSettings
from asyncrl_runtime.ports import columns as col
from asyncrl_runtime.ports.columns import Jagged

SETTINGS = StageSettings(
    rewards=RewardSettings(scaling=None, shaping=None),
    masks=MaskSettings(overlong_filtering=False, mask_env_flagged=False, seq_error_threshold=None),
    estimator=GrpoSettings(leave_one_out=False, normalize=False, exclude_masked=False),
    clip_low=None,
    clip_high=None,
    invalid_tool_call_advantage=None,
    malformed_thinking_advantage=None,
)


def columns_with_flags(count):
    flags = Jagged.scalars(np.zeros(count), np.int8)
    return columns_of(count) | {col.TRUNCATED: flags, col.FLAGGED: flags}


async def test_two_chunks_write_and_report_what_one_would():
    stage = ColumnAdvantages(SETTINGS, has_previous_logprobs=False, runner=AdvantageWorkers(0))
    await stage.start()
    columns = columns_with_flags(12)
    parts = [rows_of(columns, range(8)), rows_of(columns, range(8, 12))]
    whole = await stage.run(meta_of(columns), columns)
    first, second = [await stage.run(meta_of(part), part) for part in parts]
    await stage.close()

    joined = Jagged.join([first.columns[col.ADVANTAGES], second.columns[col.ADVANTAGES]])
    np.testing.assert_array_equal(joined.values, whole.columns[col.ADVANTAGES].values)
    assert stage.metrics([first, second]) == stage.metrics([whole])


async def test_the_metrics_hold_percentiles_of_the_lengths_of_all_rows():
    stage = ColumnAdvantages(SETTINGS, has_previous_logprobs=False, runner=AdvantageWorkers(0))
    columns = columns_with_flags(20)
    made = sorted(int(row.sum()) for row in columns[col.TOKEN_MASK].rows())
    metrics = stage.metrics([await stage.run(meta_of(columns), columns)])

    assert metrics["response_length/p50"] == made[9]
    assert metrics["response_length/p95"] == made[18]
    assert metrics["response_length/p50"] < metrics["response_length/p95"]
