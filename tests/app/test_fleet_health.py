"""Runs with real shards that are killed and frozen: they complete, and nothing wrong is trained on."""

import os
import signal
import time
from itertools import pairwise

from support.cli import balanced, rows, small_job, started, summary, wait_for

from asyncrl_runtime.app.state import read_state
from asyncrl_runtime.app.status import status_text

STEPS, PROMPTS_PER_STEP = 120, 4
HEALTH = {
    "enabled": True,
    "probeIntervalSeconds": 0.2,
    "probeTimeoutSeconds": 0.1,
    "unhealthyThreshold": 2,
    "onDeadShard": "restart",
    "restartBackoffBaseSeconds": 0.1,
    "restartGraceSeconds": 60,
}


def job_of(folder, *, shards=2, steps=STEPS, health=HEALTH, **changes):
    return small_job(
        folder,
        asyncRL={
            "generationFleetHealth": health,
            "refit": {"deadlineSeconds": 2.0, "unwindGraceSeconds": 5.0, "maxRetries": 2},
        },
        algorithm={"grpo": {"maxNumSteps": steps, "numPromptsPerStep": PROMPTS_PER_STEP, "maxNumEpochs": 1}},
        data={"source": {"generated": {"numPrompts": steps * PROMPTS_PER_STEP}}},
        generation={
            "shards": shards,
            "engineArgs": {"tail": {"probability": 0.2, "seconds": 0.1}},
        },
        logging={"sampleEvery": 1},
        checkpointing={"savePeriod": 20, "keepTopK": 2},
        **changes,
    )


def pid_of(folder, shard, *, healthy=True):
    """The process of a shard, once the run shows it."""

    def found():
        state = read_state(folder)
        view = state and next((s for s in state.shards if s.index == shard), None)
        return view and (not healthy or view.state == "HEALTHY") and view.weight_version > 0 and view.pid

    return wait_for(found)


def transitions(folder, shard):
    return [
        (event["old"], event["new"])
        for event in rows(folder / "events.jsonl")
        if event["kind"] == "shard_state" and event["shard"] == shard
    ]


def versions_never_fall(folder):
    """Weight versions of every sample's tokens: in order, and never above what had landed by its step."""
    landed = set()
    for event in rows(folder / "events.jsonl"):
        if event["kind"] == "refit":
            landed.add(event["version"])
    samples = rows(folder / "samples.jsonl")
    assert samples
    for sample in samples:
        seen = sample["versions"]
        assert seen
        assert all(a <= b for a, b in pairwise(seen))
        assert set(seen) <= landed
        assert min(seen) >= 0
        assert max(seen) <= sample["step"] - 1


def test_a_run_loses_one_shard_to_a_kill_and_one_to_a_freeze_and_gets_both_back(tmp_path):
    folder = tmp_path / "run"
    with started("run", job_of(tmp_path), "--output", folder, "--quiet") as process:
        os.kill(pid_of(folder, 0), signal.SIGKILL)
        wait_for(lambda: ("STALE", "HEALTHY") in transitions(folder, 0))
        os.kill(pid_of(folder, 1), signal.SIGSTOP)
        wait_for(lambda: ("STALE", "HEALTHY") in transitions(folder, 1))
        assert process.wait(120) == 0, process.stderr.read()
    end = summary(folder)
    assert (end["status"], end["steps"]) == ("complete", STEPS)
    assert balanced(end["prompts"])
    assert end["prompts"]["trained"] == STEPS * PROMPTS_PER_STEP
    versions_never_fall(folder)
    back = [("DEAD", "RESTARTING"), ("RESTARTING", "STALE"), ("STALE", "HEALTHY")]
    assert transitions(folder, 0) == [("HEALTHY", "DEAD"), *back]
    assert transitions(folder, 1)[-4:] == [("SUSPECT", "DEAD"), *back]
    state = read_state(folder)
    assert [(shard.state, shard.weight_version) for shard in state.shards] == [("HEALTHY", STEPS)] * 2
    assert "HEALTHY, weight version" in status_text(folder)


def test_sc_14_109_a_fleet_that_nobody_brings_back_ends_the_run_with_an_error(tmp_path):
    health = {**HEALTH, "onDeadShard": "fail_fast", "restartGraceSeconds": 0}
    folder = tmp_path / "run"
    with started("run", job_of(tmp_path, shards=1, health=health), "--output", folder, "--quiet") as process:
        os.kill(pid_of(folder, 0), signal.SIGKILL)
        killed = time.monotonic()
        assert process.wait(60) == 3
        assert time.monotonic() - killed < 15
        error = process.stderr.read()
    assert "0 of 1 generation shards serve (1 DEAD), fewer than" in error
    assert "killed by SIGKILL" in error
    assert balanced(summary(folder)["prompts"])
