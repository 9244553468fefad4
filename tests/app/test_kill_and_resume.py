"""A real run, killed with SIGKILL and started again, trains on every prompt exactly once."""

import pytest
from support.cli import balanced, rows, small_job
from support.kills import kill_until_complete, run_to_the_end

STEPS, PROMPTS_PER_STEP = 40, 4
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
    killed = kill_until_complete(job, tmp_path / "killed", seed=1, max_kills=5, seconds_of_work=0.3)

    assert killed.kills_after_a_step >= 2
    assert killed.summary["status"] == "complete"
    assert killed.steps == calm.steps
    assert killed.consumed == {f"e0p{k}": 1 for k in range(STEPS * PROMPTS_PER_STEP)}
    assert balanced(killed.summary["prompts"])
    resumed = [row["path"] for row in rows(tmp_path / "killed" / "events.jsonl") if row["kind"] == "resumed"]
    assert any("snapshot_" in path for path in resumed) == bool(more)
    assert killed.summary["prompts"] == calm.summary["prompts"]
    assert [row["step"] for row in rows(tmp_path / "calm" / "metrics.jsonl")] == list(range(1, STEPS + 1))
