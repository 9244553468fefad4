"""`asyncrl chaos`: what it refuses, what it plans, how it reads the books, and real runs of it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from support.cli import asyncrl, small_job

from asyncrl_runtime.app.chaos.books import verdict
from asyncrl_runtime.app.chaos.faults import KINDS, WORDS, UnknownFault, kinds_for, plan
from asyncrl_runtime.app.chaos.processes import Process, descendants
from asyncrl_runtime.app.manifest import read_job

STEPS, PROMPTS_PER_STEP = 60, 4
HEALTH = {
    "enabled": True,
    "probeIntervalSeconds": 0.3,
    "probeTimeoutSeconds": 0.2,
    "unhealthyThreshold": 2,
    "onDeadShard": "restart",
    "maxRestartAttemptsPerShard": 50,
    "restartBackoffBaseSeconds": 0.1,
    "restartGraceSeconds": 60,
}


def stormy_job(folder, **changes):
    """A job that can survive everything but the loss of environment processes, which it has not."""
    async_rl = {
        "generationFleetHealth": HEALTH,
        "refit": {"deadlineSeconds": 3.0, "unwindGraceSeconds": 5.0, "maxRetries": 3},
        "rolloutFailure": {"maxInfraAttemptsPerPrompt": 20, "backoffBaseSeconds": 0.1},
    }
    spec = {
        "asyncRL": async_rl,
        "algorithm": {
            "grpo": {"maxNumSteps": STEPS, "numPromptsPerStep": PROMPTS_PER_STEP, "maxNumEpochs": 1}
        },
        "data": {"source": {"generated": {"numPrompts": STEPS * PROMPTS_PER_STEP}}},
        "generation": {"shards": 2, "engineArgs": {"tail": {"probability": 0.1, "seconds": 0.05}}},
        "tokenCapture": {"enabled": True},
        "rolloutCheckpointing": {"snapshotAttemptIntervalSeconds": 0.2},
        "checkpointing": {"savePeriod": 1, "keepTopK": 4},
    }
    return small_job(folder, **(spec | changes))


def spec_of(folder, **changes):
    return read_job(stormy_job(folder, **changes)).spec


# ── the plan ────────────────────────────────────────────────────────────────────────────────────────


def test_a_seed_gives_one_plan_and_another_seed_another():
    plans = [plan(seed, WORDS, count=50, mean_gap_seconds=2.0) for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]
    assert len({fault.word for fault in plans[0]}) > 8
    assert all(0 < fault.after_seconds <= 8.0 and 0 <= fault.choice < 1 for fault in plans[0])
    assert plan(1, [], count=50, mean_gap_seconds=2.0) == []


def test_a_longer_plan_begins_with_the_shorter_one():
    assert plan(3, WORDS, count=9, mean_gap_seconds=1.0)[:4] == plan(3, WORDS, count=4, mean_gap_seconds=1.0)


def test_unknown_words_name_those_that_exist(tmp_path):
    answer = asyncrl("chaos", stormy_job(tmp_path), "--faults", "kill-shard,unplug,trip")
    assert answer.exit_code == 2
    assert "unplug, trip are no faults; there are kill-shard, freeze-shard" in answer.stderr
    with pytest.raises(UnknownFault, match="unplug is no fault"):
        kinds_for(spec_of(tmp_path), ["unplug"])


def test_the_help_lists_every_word():
    text = asyncrl("chaos", "--help").stdout
    assert all(word in text for word in WORDS)


def test_everything_that_the_job_can_survive_is_planned(tmp_path):
    words, left_out = kinds_for(spec_of(tmp_path), [])
    assert set(left_out) == {"kill-environment", "freeze-environment"}
    assert words == [word for word in WORDS if word not in left_out]


@pytest.mark.parametrize(
    ("changes", "words", "reason"),
    [
        ({"generation": {"shards": 1}}, {"kill-shard", "freeze-shard"}, "the job has one shard"),
        ({"asyncRL": {}}, {"kill-shard", "freeze-shard"}, "generationFleetHealth.enabled is false"),
        (
            {"asyncRL": {"generationFleetHealth": HEALTH | {"onDeadShard": "quarantine"}}},
            {"kill-shard", "freeze-shard"},
            "onDeadShard is quarantine",
        ),
        (
            {"checkpointing": {"enabled": False}, "rolloutCheckpointing": {}},
            {"kill-run", "stop-run", "kill-trainer", "kill-advantages", "corrupt-checkpoint"},
            "checkpointing.enabled is false",
        ),
        ({"checkpointing": {"keepTopK": 1}}, {"corrupt-checkpoint"}, "keepTopK is 1"),
        ({"rolloutCheckpointing": {}}, {"corrupt-snapshot"}, "there are no snapshots"),
        ({"asyncRL": {"advantageWorkers": 0}}, {"kill-advantages"}, "advantageWorkers is 0"),
    ],
)
def test_words_that_the_job_cannot_survive_are_left_out_with_the_reason(changes, words, reason, tmp_path):
    _, left_out = kinds_for(spec_of(tmp_path, **changes), [])
    assert words <= set(left_out)
    assert all(reason in left_out[word] for word in words)


def test_every_word_says_what_it_does():
    assert all(kind.help and kind.help[0].islower() == (kind.help[:3] != "SIG") for kind in KINDS)


def test_a_folder_with_something_in_it_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes").write_text("mine")
    answer = asyncrl("chaos", stormy_job(tmp_path), "--output", tmp_path / "run")
    assert answer.exit_code == 2
    assert "is not empty: choose another folder with --output" in answer.stderr
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes"]


# ── the books ───────────────────────────────────────────────────────────────────────────────────────


def books(folder, *events, status="complete", steps=2, **prompts):
    """A run folder by hand: two steps of two groups unless told otherwise."""
    counts = {"admitted": 4, "trained": 4, "dropped": 0, "discarded": 0, "live": 0} | prompts
    failure = {"type": "Stalled", "message": "it stood still"} if status == "failed" else None
    (folder / "summary.json").write_text(
        json.dumps({"status": status, "steps": steps, "prompts": counts, "failure": failure})
    )
    lines = [json.dumps({"time": 1.0, **event}) + "\n" for event in events]
    (folder / "events.jsonl").write_text("".join(lines))
    return verdict(folder)


def step(number, *groups):
    return {"kind": "step_trained", "step": number, "groups": list(groups)}


def resumed(number):
    return {"kind": "resumed", "step": number}


def test_books_that_are_in_order(tmp_path):
    found = books(tmp_path, step(1, "a", "b"), step(2, "c", "d"))
    assert (found.problem, found.lost, found.trained_twice, found.steps_missing) == (None, 0, (), ())


def test_a_prompt_in_no_class_is_lost(tmp_path):
    found = books(tmp_path, step(1, "a", "b"), step(2, "c", "d"), admitted=7, dropped=1)
    assert found.lost == 2
    assert found.problem == "2 prompts are in no class of the ledger"


def test_a_group_of_two_steps_was_trained_twice(tmp_path):
    found = books(tmp_path, step(1, "a", "b"), step(2, "a", "d"))
    assert found.trained_twice == ("a",)
    assert found.problem == "groups a were trained on twice"


@pytest.mark.parametrize("tell", [[resumed(1)], []], ids=["resumed", "anew"])
def test_a_step_that_was_rolled_back_counts_as_it_was_trained_the_last_time(tell, tmp_path):
    events = [step(1, "a", "b"), step(2, "c", "x"), step(3, "d", "y")]
    again = [step(2, "c", "d"), step(3, "e", "f")]
    assert books(tmp_path, *events, *tell, *again, steps=3, admitted=6, trained=6).problem is None


def test_a_group_that_a_rollback_did_not_take_back_is_found(tmp_path):
    found = books(tmp_path, step(1, "a", "b"), step(2, "c", "d"), resumed(1), step(2, "a", "d"))
    assert found.trained_twice == ("a",)


def test_a_step_in_no_record_is_missing(tmp_path):
    found = books(tmp_path, step(2, "c", "d"), trained=2, admitted=2)
    assert found.steps_missing == (1,)
    found = books(tmp_path, step(1, "a", "b"), step(2, "c", "d"), resumed(0), step(1, "a", "b"))
    assert found.steps_missing == (2,)


def test_groups_that_the_ledger_counts_and_nobody_trained_on_are_found(tmp_path):
    found = books(tmp_path, step(1, "a", "b"), step(2, "c"))
    assert (found.unrecorded, found.problem) == (1, "ledger and events differ by 1 trained groups")


def test_events_of_which_the_older_half_is_gone_are_read_from_their_first_step(tmp_path):
    gone = {"kind": "earlier_events_dropped", "count": 9}
    assert books(tmp_path, gone, step(2, "c", "d")).problem is None
    assert books(tmp_path, gone, step(2, "c", "d"), step(4, "e"), steps=4).steps_missing == (3,)


def test_a_run_that_failed_or_left_nothing_is_not_good(tmp_path):
    assert books(tmp_path, status="failed").problem == "it stood still"
    assert books(tmp_path, status="stopped").problem == "it ended stopped"
    (tmp_path / "summary.json").unlink()
    assert verdict(tmp_path).problem == "the run left no summary"


def test_a_line_that_is_being_written_is_left_for_later(tmp_path):
    books(tmp_path, step(1, "a", "b"), step(2, "c", "d"))
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"kind": "step_tra')
    assert verdict(tmp_path).problem is None


# ── processes ───────────────────────────────────────────────────────────────────────────────────────


def test_descendants_are_found_and_known_to_be_gone():
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    with subprocess.Popen([sys.executable, "-c", script], start_new_session=True) as parent:
        try:
            end = time.monotonic() + 20
            while not (below := descendants(parent.pid)) and time.monotonic() < end:
                time.sleep(0.05)
            (child,) = below
            assert child.alive
            assert not Process(child.pid, child.name, child.started + 1).alive
            child.send(signal.SIGSTOP)
            assert child.alive
            child.send(signal.SIGKILL)
            parent.wait(20)
            assert not child.alive
            assert not child.send(signal.SIGKILL)
        finally:
            if parent.poll() is None:
                os.killpg(parent.pid, signal.SIGKILL)


# ── real runs ───────────────────────────────────────────────────────────────────────────────────────


def chaos(folder, job, *options):
    command = [sys.executable, "-m", "asyncrl_runtime", "chaos", job, "--output", folder / "run", *options]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=280)


def test_a_real_run_comes_through_good(tmp_path):
    words = "kill-shard,freeze-shard,kill-run,corrupt-checkpoint"
    options = ("--faults", words, "--count", "6", "--mean-gap-seconds", "0.4", "--seed", "1", "--json")
    answer = chaos(tmp_path, stormy_job(tmp_path), *options)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    found = json.loads(answer.stdout)
    assert found["good"]
    assert found["problem"] is None
    assert (found["prompts_lost"], found["groups_trained_twice"], found["steps_missing"]) == (0, [], [])
    assert (found["groups_unrecorded"], found["processes_left"], found["timed_out"]) == (0, [], False)
    assert found["prompts"]["trained"] == STEPS * PROMPTS_PER_STEP
    done = Counter(fault["word"] for fault in found["faults"] if fault["target"])
    assert set(done) <= set(words.split(","))
    assert done.total() >= 3
    assert found["starts"] == 1 + done["kill-run"] + done["corrupt-checkpoint"] >= 2
    assert all(fault["at_seconds"] > 0 for fault in found["faults"])


def test_a_run_that_does_not_end_in_time_is_killed_and_not_good(tmp_path):
    options = ("--faults", "slow-shard", "--count", "1", "--timeout-seconds", "1")
    answer = chaos(tmp_path, stormy_job(tmp_path), *options)
    assert answer.returncode == 3
    assert "NOT GOOD: it had not ended after 1 s (--timeout-seconds), and was killed" in answer.stdout
