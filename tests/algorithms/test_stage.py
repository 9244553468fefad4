import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from algorithms.build import GAE, GRPO, MASKS, REINFORCE, STAGE, stage_input
from hypothesis import given
from hypothesis import strategies as st

from asyncrl_runtime.algorithms import settings as s
from asyncrl_runtime.algorithms.columns import stage_columns
from asyncrl_runtime.algorithms.errors import (
    ColumnsMismatch,
    MissingGroupTag,
    NonFiniteRewards,
    RewardWeightMismatch,
    ShapeError,
    TooFewComponents,
)
from asyncrl_runtime.algorithms.metrics import Totals, finalize
from asyncrl_runtime.algorithms.stage import run_stage

SCALING = s.RewardScaling(source_min=0.0, source_max=1.0, target_min=-2.0, target_max=2.0)


def logprobs(batch, errors):
    """Columns whose sequence errors are as given."""
    shape = batch.token_mask.shape
    generation = np.full(shape, -2.0, np.float32)
    previous = generation + np.log(np.array(errors))[:, None]
    return {"generation_logprobs": generation, "previous_logprobs": previous.astype(np.float32)}


def test_advantages_land_on_generated_tokens_only():
    out = run_stage(stage_input([1, 0], tokens=[2, 1]), STAGE)
    assert out.advantages.tolist() == [[0, 1, 1], [0, -1, 0]]
    assert out.advantages.dtype == np.float32
    assert out.returns is None
    assert out.has_valid_tokens
    assert out.totals() == Totals(valid_tokens=3, valid_rows=2, positive_tokens=2)
    assert out.totals([1]) == Totals(valid_tokens=1, valid_rows=1, positive_tokens=0)
    assert out.positive_tokens == 2


def test_position_0_is_never_trained_on():
    batch = stage_input([1, 0])
    batch.token_mask[:, 0] = 1
    out = run_stage(batch, STAGE)
    assert out.advantages[:, 0].tolist() == [0, 0]
    assert out.totals().valid_tokens == 2
    critic = run_stage(replace(batch, columns={"values": np.ones((2, 2))}), replace(STAGE, estimator=GAE))
    assert critic.returns.tolist() == [[0, 1], [0, 0]]


@pytest.mark.parametrize("estimator", [GRPO, GAE])
def test_sc_11_14_an_empty_chunk_skips_the_estimator_and_gives_zeros(estimator):
    columns = {"values": np.full((2, 2), np.nan)} if estimator is GAE else {}
    batch = stage_input([1, 0], sample_mask=np.zeros(2), columns=columns)
    out = run_stage(batch, replace(STAGE, estimator=estimator))
    assert not out.has_valid_tokens
    assert not out.advantages.any()
    assert (out.returns is not None) == (estimator is GAE)
    if out.returns is not None:
        assert not out.returns.any()
    metrics = finalize([out.stats])
    assert metrics["reward"] == 0.5
    assert metrics["reward_valid"] == 0
    assert metrics["advantages/min"] == metrics["advantages/max"] == -1


def test_sc_11_12_masking_comes_before_the_estimator():
    batch = stage_input([1, 0, 0, 1], tokens=[1] * 4)
    batch = replace(batch, columns=logprobs(batch, [1.0, 1.0, 1.0, 5.0]))
    settings = replace(
        STAGE,
        masks=replace(MASKS, seq_error_threshold=2.0),
        estimator=replace(GRPO, normalize=False, exclude_masked=True),
    )
    out = run_stage(batch, settings)
    assert out.sample_mask.tolist() == [1, 1, 1, 0]
    assert out.advantages[:, 1].tolist() == [1, -0.5, -0.5, 0]
    metrics = finalize([out.stats])
    assert metrics["num_masked_seqs_by_logprob_error"] == 1
    assert metrics["masked_correct_pct"] == 1
    assert metrics["max_seq_mult_prob_error"] == pytest.approx(5)
    assert metrics["max_seq_mult_prob_error_after_mask"] == pytest.approx(1)


def test_sc_11_52_the_raw_reward_decides_what_counts_as_correct():
    batch = stage_input([1, 0])
    batch = replace(batch, columns=logprobs(batch, [5.0, 5.0]))
    settings = replace(
        STAGE,
        masks=replace(MASKS, seq_error_threshold=2.0),
        rewards=s.RewardSettings(scaling=SCALING, shaping=None),
    )
    assert finalize([run_stage(batch, settings).stats])["masked_correct_pct"] == 0.5


def test_sc_14_123_reward_scaling_reaches_the_estimators_of_both_algorithms():
    rewards = s.RewardSettings(scaling=SCALING, shaping=None)
    grpo = replace(STAGE, rewards=rewards, estimator=replace(GRPO, normalize=False))
    out = run_stage(stage_input([1, 0]), grpo)
    assert out.advantages[:, 1].tolist() == [4, -4]
    metrics = finalize([out.stats])
    assert (metrics["reward"], metrics["reward_raw"]) == (0.0, 0.5)

    ppo = replace(STAGE, rewards=rewards, estimator=GAE)
    out = run_stage(stage_input([1, 0], columns={"values": np.zeros((2, 2))}), ppo)
    assert out.returns[:, 1].tolist() == [2, -2]


def test_sc_12_14_reward_metrics():
    batch = stage_input(
        [1, 3, 0.5, 0],
        sample_mask=np.array([1, 0, 1, 1]),
        components={"format": np.array([1, 2, 0, 1])},
    )
    settings = replace(STAGE, rewards=s.RewardSettings(scaling=SCALING, shaping=None))
    metrics = finalize([run_stage(batch, settings).stats])
    assert metrics["reward"] == pytest.approx((2 + 2 + 0 - 2) / 4)
    assert metrics["reward_valid"] == pytest.approx(0)
    assert metrics["reward_raw"] == pytest.approx(4.5 / 4)
    assert metrics["reward_out_of_range"] == 1
    assert metrics["reward_component/format"] == pytest.approx((2 + 2 - 2 + 2) / 4)
    assert metrics["reward_component_out_of_range/format"] == 1


def test_advantage_metrics_are_over_valid_tokens():
    batch = stage_input([1, 0, 9], groups=["a", "a", "b"], tokens=[3, 1, 2], sample_mask=np.array([1, 1, 0]))
    metrics = finalize([run_stage(batch, STAGE).stats])
    assert metrics["advantages/mean"] == pytest.approx(0.5)
    assert metrics["advantages/max"] == 1
    assert metrics["advantages/min"] == -1


def test_masked_rows_are_counted_by_reason():
    batch = stage_input([1, 0, 0, 0], truncated=np.array([1, 1, 0, 0]), flagged=np.array([0, 0, 1, 0]))
    settings = replace(STAGE, masks=replace(MASKS, overlong_filtering=True))
    out = run_stage(batch, settings)
    metrics = finalize([out.stats])
    assert out.sample_mask.tolist() == [0, 0, 0, 1]
    assert (metrics["masked_rows_overlong"], metrics["masked_rows_env"]) == (2, 1)
    metrics = finalize([run_stage(batch, replace(STAGE, masks=replace(MASKS, mask_env_flagged=False))).stats])
    assert (metrics["masked_rows_overlong"], metrics["masked_rows_env"]) == (0, 0)


def test_sc_11_61_clipping_follows_normalisation():
    settings = replace(STAGE, clip_low=-0.5, clip_high=0.75)
    out = run_stage(stage_input([1, 0, 0, 1], tokens=[2, 1, 1, 1]), settings)
    assert out.advantages.tolist() == [[0, 0.75, 0.75], [0, -0.5, 0], [0, -0.5, 0], [0, 0.75, 0]]
    only_low = run_stage(stage_input([1, 0]), replace(STAGE, clip_low=0.25))
    assert only_low.advantages.tolist() == [[0, 1], [0, 0.25]]


def test_sc_11_61_flagged_messages_get_fixed_advantages():
    settings = replace(
        STAGE, clip_low=-1.0, invalid_tool_call_advantage=-5.0, malformed_thinking_advantage=-3.0
    )
    batch = stage_input(
        [1, 0, 0],
        groups=["a", "a", "b"],
        tokens=[3, 3, 3],
        sample_mask=np.array([1, 1, 0]),
        columns={
            "invalid_tool_call": np.array([[0, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]]),
            "malformed_thinking": np.array([[0, 1, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]]),
        },
    )
    out = run_stage(batch, settings)
    assert out.advantages.tolist() == [[0, -3, -5, -5], [0, -1, -1, -3], [0, 0, 0, 0]]
    metrics = finalize([out.stats])
    assert metrics["invalid_tool_call_rate"] == pytest.approx(2 / 3)
    assert metrics["malformed_thinking_rate"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("ids", [["a"], ["a", ""], ["a", None]])
def test_sc_11_16_a_missing_group_tag_fails_here(ids):
    with pytest.raises(MissingGroupTag, match="1 of 2 rows"):
        run_stage(stage_input([1, 0], group_ids=ids), STAGE)


def test_sc_14_124_columns_are_checked():
    batch = stage_input([1, 0])
    both = logprobs(batch, [1, 1])
    renamed = {"generation_logprobs": both["generation_logprobs"], "prev_logprobs": both["previous_logprobs"]}
    settings = replace(STAGE, masks=replace(MASKS, seq_error_threshold=2.0))
    with pytest.raises(ColumnsMismatch) as caught:
        run_stage(replace(batch, columns=renamed), settings)
    assert caught.value.missing == ("previous_logprobs",)
    assert caught.value.unknown == ("prev_logprobs",)
    with pytest.raises(ColumnsMismatch, match="values"):
        run_stage(batch, replace(STAGE, estimator=GAE))


def test_columns_of_other_shapes_are_refused():
    with pytest.raises(ShapeError, match=r"truncated has shape \[3\] where \[2\]"):
        run_stage(stage_input([1, 0], truncated=np.zeros(3)), STAGE)
    wide = {"values": np.zeros((2, 5))}
    with pytest.raises(ShapeError, match="values"):
        run_stage(stage_input([1, 0], columns=wide), replace(STAGE, estimator=GAE))


def test_what_the_stage_fetches():
    assert stage_columns(STAGE, has_previous_logprobs=False) == frozenset()
    assert stage_columns(replace(STAGE, estimator=GAE), has_previous_logprobs=True) == {
        "values",
        "generation_logprobs",
        "previous_logprobs",
    }
    flags = replace(STAGE, invalid_tool_call_advantage=0.0, malformed_thinking_advantage=-1.0)
    assert stage_columns(flags, has_previous_logprobs=False) == {"invalid_tool_call", "malformed_thinking"}


def test_inputs_are_left_alone():
    batch = stage_input([1, 0], columns={"values": np.ones((2, 2))}, truncated=np.ones(2))
    before = pickle.dumps(batch)
    run_stage(batch, replace(STAGE, estimator=GAE, masks=replace(MASKS, overlong_filtering=True)))
    assert pickle.dumps(batch) == before


def test_records_and_errors_survive_the_way_to_a_worker():
    batch, settings = pickle.loads(pickle.dumps((stage_input([1, 0]), STAGE)))
    out = pickle.loads(pickle.dumps(run_stage(batch, settings)))
    assert out.advantages[:, 1].tolist() == [1, -1]
    for error in (
        ShapeError("x", (1,), (2,)),
        MissingGroupTag(2, 1),
        ColumnsMismatch("x", ("a",), (), ("a",)),
        NonFiniteRewards("reward", (1,)),
        TooFewComponents(("a",)),
        RewardWeightMismatch(1, ("a", "b")),
    ):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_stage_needs_no_torch():
    code = "import sys, asyncrl_runtime.algorithms.stage; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@given(rewards=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=16), data=st.data())
def test_sc_14_115_chunks_of_whole_groups_give_what_one_chunk_gives(rewards, data):
    groups = sorted(data.draw(st.sampled_from("abcd")) for _ in rewards)
    tokens = [data.draw(st.integers(1, 4)) for _ in rewards]
    mask = np.array([data.draw(st.sampled_from([0, 1])) for _ in rewards])
    whole = run_stage(stage_input(rewards, groups=groups, tokens=tokens, sample_mask=mask), STAGE)
    parts, picked = [], {}
    for row, group in enumerate(groups):
        picked.setdefault(group, []).append(row)
    for rows in picked.values():
        part = stage_input(
            [rewards[i] for i in rows],
            groups=[groups[i] for i in rows],
            tokens=[tokens[i] for i in rows],
            sample_mask=mask[rows],
        )
        out = run_stage(part, STAGE)
        width = out.advantages.shape[1]
        assert out.advantages == pytest.approx(whole.advantages[rows][:, :width])
        parts.append(out)
    assert finalize(p.stats for p in parts) == pytest.approx(finalize([whole.stats]))
    total = sum((p.totals() for p in parts), Totals(0, 0, 0))
    assert total == whole.totals()


def test_batch_statistics_of_a_step_are_those_of_all_its_groups():
    settings = replace(STAGE, estimator=REINFORCE)
    out = run_stage(stage_input([1, 0, 1, 1], groups=list("aabb"), tokens=[2] * 4), settings)
    assert out.advantages[:, 1] == pytest.approx([1.4142, -1.4142, 0, 0], abs=5e-5)
