"""Sums over a run, and over the starts of one."""

import json
from collections import Counter

from support.groups import group

from asyncrl_runtime.app.summary import Tally, read_summary, write_early_failure


def of_two_steps():
    return Tally(
        generated_tokens=100,
        trained_tokens=60,
        lags=Counter({0: 5, 1: 3, 4: 1}),
        reward_mean=0.5,
        validation_mean=0.25,
        seconds_to_first_step=2.5,
    )


def test_sums_come_back_from_what_a_checkpoint_stores():
    restored = Tally()
    restored.restore(json.loads(json.dumps(of_two_steps().to_json(()))), ())

    assert restored == of_two_steps()
    assert restored.staleness() == {"p50": 0, "p95": 4, "max": 4}


def test_groups_that_wait_for_training_count_where_they_come_back():
    tally, waiting = of_two_steps(), [group(0), group(1), group(2)]
    tokens = [each.generated_tokens for each in waiting]
    tally.generated_tokens += sum(tokens)
    saved, restored = tally.to_json(waiting), Tally()
    restored.restore(saved, waiting[:1])

    assert min(tokens) > 0
    assert saved["generated_tokens"] == 100
    assert restored.generated_tokens == 100 + tokens[0]


def test_restoring_keeps_the_object_that_others_hold():
    tally = Tally()
    held = tally
    tally.restore(of_two_steps().to_json(()), ())

    assert held.trained_tokens == 60


def test_a_checkpoint_without_sums_begins_at_zero():
    tally = Tally()
    tally.restore({}, ())

    assert tally == Tally()


def test_a_start_that_fails_early_keeps_what_earlier_ones_took(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps({"status": "complete", "steps": 3, "seconds": 12.5}))
    write_early_failure(tmp_path, failure={"message": "no space left"}, seconds=0.3)

    assert read_summary(tmp_path) == {
        "status": "failed",
        "steps": 3,
        "seconds": 12.5,
        "reason": "no space left",
        "failure": {"message": "no space left"},
    }
