from dataclasses import replace

import numpy as np
import pytest
from algorithms.build import MASKS
from hypothesis import given
from hypothesis import strategies as st

from asyncrl_runtime.algorithms.masks import (
    compose_sample_mask,
    sequence_error_mask,
    sequence_errors,
    token_weights,
)
from asyncrl_runtime.algorithms.metrics import finalize


def test_sc_11_50_and_sc_14_122_the_sample_mask_carries_every_reason():
    multiplier = np.array([1, 0, 1, 1])
    truncated, flagged = np.array([0, 0, 1, 0]), np.array([0, 0, 0, 1])
    both = replace(MASKS, overlong_filtering=True)

    def mask(settings):
        return compose_sample_mask(
            multiplier, truncated=truncated, flagged=flagged, settings=settings
        ).tolist()

    assert mask(both) == [1, 0, 0, 0]
    assert mask(MASKS) == [1, 0, 1, 0]
    assert mask(replace(both, mask_env_flagged=False)) == [1, 0, 0, 1]
    assert multiplier.tolist() == [1, 0, 1, 1]


def test_composing_twice_changes_nothing():
    settings = replace(MASKS, overlong_filtering=True)
    truncated, flagged = np.array([0, 1, 0]), np.array([0, 0, 1])
    once = compose_sample_mask(np.array([0.5, 1, 1]), truncated=truncated, flagged=flagged, settings=settings)
    twice = compose_sample_mask(once, truncated=truncated, flagged=flagged, settings=settings)
    assert once.tolist() == twice.tolist() == [0.5, 0, 0]


def test_sc_11_6_position_0_is_in_no_mask():
    assert token_weights(np.ones((2, 3)), np.array([1, 0])).tolist() == [[0, 1, 1], [0, 0, 0]]


def test_sc_11_51_sequence_error_of_a_row():
    mask = np.array([[False, True, True], [False, False, False]])
    generation = np.array([[0, -1.0, -2.0], [0, 0, 0]])
    previous = np.array([[0, -1.2, -2.0], [9, 9, 9]])
    errors = sequence_errors(generation, previous, mask)
    assert errors[0] == pytest.approx(1.1107, abs=5e-5)
    assert np.isnan(errors[1])


def test_a_filtered_token_counts_as_no_difference_and_nan_is_noticed():
    mask = np.ones((2, 2), bool)
    generation = np.array([[-1.0, -1.0], [-1.0, -1.0]])
    previous = np.array([[-np.inf, -1.0], [np.nan, -1.0]])
    errors = sequence_errors(generation, previous, mask)
    assert errors[0] == 1.0
    assert np.isnan(errors[1])


def masked(errors, *, threshold, rewards=None, valid=None):
    count = len(errors)
    return sequence_error_mask(
        np.array(errors, float),
        valid_rows=np.ones(count, bool) if valid is None else np.array(valid, bool),
        raw_rewards=np.zeros(count) if rewards is None else np.array(rewards, float),
        threshold=threshold,
    )


def test_sc_11_52_rows_above_the_threshold_are_masked():
    kept, stats = masked([1.0, 2.0, 2.5, 9.0], threshold=2.0, rewards=[1, 1, 1, 0.5], valid=[1, 1, 1, 0])
    assert kept.tolist() == [True, True, False, True]
    assert finalize([stats]) == pytest.approx(
        {
            "max_seq_mult_prob_error": 2.5,
            "mean_seq_mult_prob_error": 5.5 / 3,
            "min_seq_mult_prob_error": 1.0,
            "max_seq_mult_prob_error_after_mask": 2.0,
            "mean_seq_mult_prob_error_after_mask": 1.5,
            "min_seq_mult_prob_error_after_mask": 1.0,
            "num_masked_seqs_by_logprob_error": 1,
            "masked_correct_pct": 1.0,
        }
    )


def test_sc_11_52_without_a_threshold_it_only_reports():
    kept, stats = masked([1.0, 50.0], threshold=None)
    assert kept.tolist() == [True, True]
    metrics = finalize([stats])
    assert metrics["max_seq_mult_prob_error"] == metrics["max_seq_mult_prob_error_after_mask"] == 50
    assert metrics["num_masked_seqs_by_logprob_error"] == 0


def test_sc_11_51_and_11_53_nothing_seen_is_0():
    _, nothing = masked([np.nan], threshold=2.0, valid=[0])
    assert set(finalize([nothing]).values()) == {0.0}
    _, all_masked = masked([3.0], threshold=2.0)
    metrics = finalize([all_masked])
    assert metrics["min_seq_mult_prob_error"] == 3
    assert metrics["min_seq_mult_prob_error_after_mask"] == 0


@given(
    errors=st.lists(st.floats(1, 10), min_size=1, max_size=12),
    data=st.data(),
    threshold=st.sampled_from([None, 1.5, 4.0]),
)
def test_sc_11_53_chunks_pool_to_the_statistics_of_the_step(errors, data, threshold):
    valid = data.draw(st.lists(st.booleans(), min_size=len(errors), max_size=len(errors)))
    rewards = data.draw(st.lists(st.sampled_from([0, 1]), min_size=len(errors), max_size=len(errors)))
    cut = data.draw(st.integers(0, len(errors)))

    def stats(part):
        return masked(errors[part], threshold=threshold, rewards=rewards[part], valid=valid[part])[1]

    whole = finalize([stats(slice(None))])
    assert finalize([stats(slice(cut)), stats(slice(cut, None))]) == pytest.approx(whole)
