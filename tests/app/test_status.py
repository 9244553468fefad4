import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from asyncrl_runtime.adapters.sinks.events import EventLog
from asyncrl_runtime.app.state import RunState, ShardView, read_state, write_state
from asyncrl_runtime.app.status import (
    NoRun,
    find_run,
    follow_events,
    last_events,
    read_status,
    status_json,
    status_text,
)

STATE = RunState(
    name="digits",
    phase="Running",
    step=120,
    max_steps=300,
    trainer_version=120,
    reward_mean=0.9125,
    eta_seconds=90,
    sampler="in_order",
    knobs="maxLookaheadVersions=1",
    staleness_p50=0,
    staleness_p95=1,
    staleness_max=1,
    staleness_bound=1,
    buffered=19,
    ready=3,
    inflight=16,
    capacity=64,
    shards=[
        ShardView(index=0, state="HEALTHY", weight_version=120, pid=17),
        ShardView(index=1, state="DEAD"),
    ],
    tokens_per_second=52_000.0,
    trainer_idle_fraction=0.12,
    last_checkpoint_step=110,
    prompts={"admitted": 1943, "committed": 1927, "trained": 1920, "dropped": 1, "discarded": 3, "live": 19}
    | {"discarded_by_cause": {"evicted": 2, "left_over": 1, "aborted": 0}},
    pid=os.getpid(),
    updated_at=1000.0,
)
SUMMARY = {
    "status": "complete",
    "steps": 300,
    "reward_mean": 0.995,
    "seconds": 75.0,
    "prompts": {"admitted": 4800, "trained": 4800, "dropped": 0, "discarded": 0, "live": 0},
    "trainer_idle_fraction": 0.2,
    "failure": None,
}


def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    return process.pid


def test_a_state_is_read_as_it_was_written(tmp_path):
    write_state(tmp_path, STATE)

    assert read_state(tmp_path) == STATE
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_keys_of_later_versions_are_left_out():
    assert RunState.from_json(json.dumps({**json.loads(STATE.to_json()), "new": 1})) == STATE
    with pytest.raises(ValueError, match="no state of a run"):
        RunState.from_json('{"step": 1}')


def test_a_running_run_is_told_in_words(tmp_path):
    write_state(tmp_path, STATE)
    text = status_text(tmp_path, now=1002.0)

    for part in [
        "Name:                   digits",
        f"Phase:                  Running (process {os.getpid()}, updated 2 s ago)",
        "  Step:                 120 of 300",
        "  Reward mean:          0.912",
        "  Trainer idle:         12 %",
        "  Time left:            1 min 30 s",
        "  Knobs:                maxLookaheadVersions=1",
        "  Staleness:            p50 0, p95 1, max 1 of 1 versions (at bound)",
        "  Buffer:               19 held: 3 ready, 16 in flight, capacity 64 groups",
        "  Shards:               1 HEALTHY, 1 DEAD",
        "  Shard 0:              HEALTHY, weight version 120, process 17",
        "  Last step:            110",
        "Prompts:                1943 admitted = 1920 trained + 1 dropped + 3 discarded + 19 live",
        "  Discarded, left over: 1",
    ]:
        assert part in text
    assert "Failure" not in text
    assert "aborted" not in text


def test_a_ledger_that_does_not_balance_is_said(tmp_path):
    write_state(tmp_path, replace(STATE, prompts={"admitted": 2, "trained": 1}))
    assert "does not balance" in status_text(tmp_path)


def test_a_run_whose_process_died_is_lost(tmp_path):
    pid = dead_pid()
    write_state(tmp_path, replace(STATE, pid=pid))
    status = read_status(tmp_path)

    assert status.phase == "Lost"
    assert f"process {pid} ended 5 min ago without a summary; run the job again" in status_text(
        tmp_path, now=1300.0
    )


@pytest.mark.parametrize(
    ("status", "phase"), [("complete", "Succeeded"), ("failed", "Failed"), ("stopped", "Suspended")]
)
def test_the_summary_tells_how_a_run_ended(tmp_path, status, phase):
    write_state(tmp_path, replace(STATE, pid=dead_pid()))
    failure = {"message": "step 3 kept 1 prompt groups"} if status == "failed" else None
    (tmp_path / "summary.json").write_text(json.dumps({**SUMMARY, "status": status, "failure": failure}))
    text = status_text(tmp_path)

    assert f"Phase:                  {phase}\n" in text
    assert "300 of 300" in text
    assert "Reward mean:          0.995" in text
    assert "Duration:             1 min 15 s" in text
    assert "4800 admitted = 4800 trained" in text
    assert ("Failure:                step 3 kept" in text) == (status == "failed")


def test_a_summary_alone_is_enough(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY))
    assert "Step:                 300" in status_text(tmp_path)


def test_the_summary_of_an_earlier_start_does_not_hide_a_run(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY))
    os.utime(tmp_path / "summary.json", (900, 900))
    write_state(tmp_path, STATE)

    assert read_status(tmp_path).phase == "Running"


def test_the_run_written_last_is_shown_by_default(tmp_path):
    for number, name in enumerate(["old", "new"]):
        (tmp_path / name).mkdir()
        write_state(tmp_path / name, STATE)
        os.utime(tmp_path / name / "state.json", (number, number))

    assert find_run(None, runs=tmp_path).name == "new"
    assert find_run(tmp_path / "old") == tmp_path / "old"
    with pytest.raises(NoRun, match="absent holds no run"):
        find_run(tmp_path / "absent")
    with pytest.raises(NoRun, match="asyncrl run"):
        find_run(None, runs=tmp_path / "none")


def test_the_json_form_holds_the_same(tmp_path):
    write_state(tmp_path, STATE)
    found = json.loads(status_json(tmp_path))

    assert (found["phase"], found["state"]["step"], found["summary"]) == ("Running", 120, None)


def test_following_shows_new_events_across_a_replaced_file(tmp_path):
    events = EventLog(tmp_path / "events.jsonl", max_bytes=600)
    events.write("old", {})
    rounds = iter(range(100))

    def wait(_seconds):
        for _ in range(3):
            events.write("refit", {"version": next(rounds)})

    followed = follow_events(tmp_path, ended=lambda: False, wait=wait)
    seen = [next(followed) for _ in range(40)]
    versions = [row["version"] for row in seen if row["kind"] == "refit"]

    assert set(range(20)) <= set(versions)
    assert "old" not in [row["kind"] for row in seen[:5]]


def test_following_ends_with_the_run_and_skips_torn_lines(tmp_path):
    path = tmp_path / "events.jsonl"
    states = iter([False, False, True])
    texts = iter(['{"kind": "a"}\n{"ki', 'nd": "b"}\n'])

    def wait(_seconds):
        with path.open("a") as file:
            file.write(next(texts))

    kinds = [row["kind"] for row in follow_events(tmp_path, ended=lambda: next(states), wait=wait)]
    assert kinds == ["a", "b"]


def test_the_last_events_are_the_newest(tmp_path):
    events = EventLog(tmp_path / "events.jsonl")
    for number in range(5):
        events.write("refit", {"version": number})

    assert [row["version"] for row in last_events(tmp_path, 2)] == [3, 4]
    assert last_events(tmp_path, 0) == []
