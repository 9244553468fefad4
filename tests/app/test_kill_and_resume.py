"""A real run, killed with SIGKILL and started again, trains on every prompt exactly once."""

import signal
import time
from collections import Counter

import pytest
from support.cli import balanced, rows, small_job, started, summary
from support.kills import kill_until_complete, run_to_the_end, snapshot_is_newest

from asyncrl_runtime.app.summary import Tally

STEPS, PROMPTS_PER_STEP = 40, 4
GENERATED = STEPS * PROMPTS_PER_STEP * 4
JOB = {
    "algorithm": {"grpo": {"maxNumSteps": STEPS, "numPromptsPerStep": PROMPTS_PER_STEP}},
    "data": {"source": {"generated": {"numPrompts": STEPS * PROMPTS_PER_STEP}}},
    "checkpointing": {"savePeriod": 1, "keepTopK": 2},
}


SNAPSHOTS = {
    "tokenCapture": {"enabled": True},
    "rolloutCheckpointing": {"snapshotAttemptIntervalSeconds": 0.05},
    "asyncRL": {"maxInflightGenerations": 12},
}


@pytest.mark.parametrize("more", [{}, SNAPSHOTS], ids=["checkpoints", "snapshots"])
def test_killed_runs_consume_what_an_undisturbed_one_does(more, tmp_path):
    job = small_job(tmp_path, **JOB, **more)
    calm = run_to_the_end(job, tmp_path / "calm")
    killed = kill_until_complete(
        job,
        tmp_path / "killed",
        seed=1,
        max_kills=5,
        seconds_of_work=0.3,
        first=snapshot_is_newest if more else None,
    )

    assert killed.kills_after_a_step >= 2
    assert killed.summary["status"] == "complete"
    assert killed.steps == calm.steps
    assert killed.consumed == {f"e0p{k}": 1 for k in range(STEPS * PROMPTS_PER_STEP)}
    assert balanced(killed.summary["prompts"])
    resumed = [row["path"] for row in rows(tmp_path / "killed" / "events.jsonl") if row["kind"] == "resumed"]
    assert any("snapshot_" in path for path in resumed) == bool(more)
    assert killed.summary["prompts"] == calm.summary["prompts"]
    for folder in (tmp_path / "calm", tmp_path / "killed"):
        lines = rows(folder / "metrics.jsonl")
        assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
        assert sums_of(lines) == (summary(folder)["tokens"]["trained"], summary(folder)["staleness"])
        assert summary(folder)["tokens"]["generated"] >= summary(folder)["tokens"]["trained"]
    assert killed.summary["seconds_to_first_step"] < killed.summary["seconds"]


def sums_of(lines):
    """Tokens trained on, and staleness over all rows, from the steps' own numbers."""
    lags, prefix = Counter(), "train/staleness/lag_hist/"
    for line in lines:
        lags.update({int(k.removeprefix(prefix)): int(n) for k, n in line.items() if k.startswith(prefix)})
    tokens = sum(int(line["train/global_valid_toks"]) for line in lines)
    return tokens, Tally(lags=lags).staleness()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["stopped", "killed"])
def test_a_run_in_two_starts_has_the_sums_of_an_undisturbed_one(number, tmp_path):
    # Completions of one token, so that their lengths do not depend on what was learned when.
    job = small_job(tmp_path, **JOB, generation={"sampling": {"maxNewTokens": 1}})
    calm = run_to_the_end(job, tmp_path / "calm").summary
    folder = tmp_path / "twice"
    with started("run", job, "--output", folder, "--quiet") as process:
        wait_for_step(process, folder, 5)
        process.send_signal(number)
        process.wait(60)
    first = rows(folder / "metrics.jsonl")
    twice = run_to_the_end(job, folder).summary

    assert 5 <= len(first) < STEPS
    assert twice["tokens"] == calm["tokens"] == {"generated": GENERATED, "trained": GENERATED}
    assert twice["prompts"] == calm["prompts"]
    assert 0 < twice["trainer_idle_fraction"] < 1
    assert twice["seconds"] > twice["seconds_to_first_step"] + sum(
        line["timing/train/total_step_time"] for line in first[1:4]
    )


def wait_for_step(process, folder, step):
    path = folder / "metrics.jsonl"
    while not path.exists() or len(path.read_bytes().splitlines()) < step:
        assert process.poll() is None
        time.sleep(0.005)
