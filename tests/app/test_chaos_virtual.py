"""Random jobs under random faults: each ends by itself, with every prompt in exactly one place (SC-9.93)."""

from collections import Counter

import pytest
from support.chaos import BOUND_SECONDS, SHARD_FAULTS, Case, Lost, check, facts_of, fast_disk, run_case

SEEDS = range(40)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    root, found = tmp_path_factory.mktemp("chaos"), {}
    with fast_disk():
        for seed in SEEDS:
            case = Case(seed)
            found[seed] = case, run_case(case, root / str(seed))
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_sc_9_93_no_prompt_is_lost_or_trained_twice_whatever_goes_wrong(seed, outcomes):
    case, outcome = outcomes[seed]
    try:
        check(case, outcome)
    except Lost as lost:
        pytest.fail(f"{lost}: {facts_of(case)}")


def test_enough_went_wrong(outcomes):
    happened = sum((outcome.happened for _, outcome in outcomes.values()), Counter())
    assert set(SHARD_FAULTS) | {"TrainerFailure"} <= set(happened)
    assert min(happened[what] for what in SHARD_FAULTS) > 5
    assert sum(outcome.killed for _, outcome in outcomes.values()) > 30
    assert sum(outcome.resumed for _, outcome in outcomes.values()) > 20


def test_the_same_seed_gives_the_same_run(outcomes, tmp_path):
    with fast_disk():
        again = run_case(Case(1), tmp_path)
    _, first = outcomes[1]
    assert again.start.parts.trainer.trained == first.start.parts.trainer.trained
    assert (again.starts, again.seconds, again.happened) == (first.starts, first.seconds, first.happened)


def test_what_is_checked_can_be_broken(outcomes):
    case, outcome = outcomes[0]
    parts = outcome.start.parts
    trained = parts.trainer.trained
    parts.trainer.trained = [*trained, *trained[: case.generations]]
    try:
        with pytest.raises(Lost, match="trained on twice; the ledger counts other groups"):
            check(case, outcome)
    finally:
        parts.trainer.trained = trained
    assert outcome.seconds < BOUND_SECONDS
