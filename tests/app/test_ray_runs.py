"""Whole runs whose shards and trainer are actors of a Ray cluster that the run starts itself."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.cli import rows, small_job, summary, wait_for
from support.ray_clusters import shared_memory

from asyncrl_runtime.adapters.ray.sessions import processes_of, sessions_folder
from asyncrl_runtime.app.chaos.processes import descendants
from asyncrl_runtime.app.state import read_state

START_SECONDS = 30.0
"""Bound on the time from the command to the first trained step."""

HEALTH = {
    "enabled": True,
    "probeIntervalSeconds": 1.0,
    "probeTimeoutSeconds": 0.8,
    "unhealthyThreshold": 2,
    "onDeadShard": "restart",
    "restartBackoffBaseSeconds": 0.1,
    "restartGraceSeconds": 120,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ray")


@pytest.fixture(scope="module")
def job(folder):
    steps = 20_000
    return small_job(
        folder,
        asyncRL={"generationFleetHealth": HEALTH, "refit": {"deadlineSeconds": 5.0, "maxRetries": 2}},
        algorithm={"grpo": {"maxNumSteps": steps, "maxNumEpochs": 1}},
        data={"source": {"generated": {"numPrompts": steps * 4}}},
        generation={"shards": 2},
        checkpointing={"savePeriod": 10, "keepTopK": 2},
    )


@contextmanager
def ray_run(job, folder):
    """A run on a Ray cluster of its own; gives its process, once it has trained a step, and its session."""
    before, steps = set(sessions_folder().glob("*")), _steps(folder)
    process = subprocess.Popen(
        [sys.executable, "-m", "support.ray_run", "run", str(job), "--output", str(folder), "--quiet"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(lambda: process.poll() is not None or _steps(folder) > steps, seconds=120)
        assert process.poll() is None, process.stderr.read()
        mine = {path for path in set(sessions_folder().glob("*")) - before if _is_of(process.pid, path)}
        assert len(mine) == 1
        yield process, mine.pop()
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _is_of(pid, session):
    return any(pid == below.pid for below in descendants(os.getpid())) and any(
        below.pid in processes_of(session) for below in descendants(pid)
    )


def _steps(folder):
    path = folder / "events.jsonl"
    return path.read_text().count('"step_trained"') if path.exists() else 0


def pid_of(folder, shard):
    """The process of a shard that serves with weights of this run."""

    def found():
        state = read_state(folder)
        view = state and next((s for s in state.shards if s.index == shard), None)
        return view and view.state == "HEALTHY" and view.weight_version > 0 and view.pid

    return wait_for(found, seconds=120)


def trainer_pid(root):
    """Found by the name of its thread."""
    for process in descendants(root):
        for comm in Path(f"/proc/{process.pid}/task").glob("*/comm"):
            if comm.read_text() == "trainer\n":
                return process.pid
    raise AssertionError("no trainer runs")


def moves(folder, shard):
    events = rows(folder / "events.jsonl")
    return [e["new"] for e in events if e["kind"] == "shard_state" and e["shard"] == shard]


def goes_on(folder, process):
    steps = _steps(folder)
    wait_for(lambda: _steps(folder) >= steps + 3 or process.poll() is not None)
    assert process.poll() is None


def until_replaced(folder, shard, pid):
    wait_for(lambda: moves(folder, shard)[-1:] == ["HEALTHY"], seconds=120)
    assert pid_of(folder, shard) != pid


def test_killed_and_frozen_shards_are_replaced_and_a_killed_trainer_ends_the_run_resumably(job, folder):
    out, memory = folder / "faults", shared_memory()
    with ray_run(job, out) as (process, session):
        first_step = rows(out / "events.jsonl")[0]["time"]
        assert first_step > 0
        killed = pid_of(out, 0)
        os.kill(killed, signal.SIGKILL)
        goes_on(out, process)
        until_replaced(out, 0, killed)
        frozen = pid_of(out, 1)
        os.kill(frozen, signal.SIGSTOP)
        wait_for(lambda: "DEAD" in moves(out, 1))
        goes_on(out, process)
        until_replaced(out, 1, frozen)
        os.kill(trainer_pid(process.pid), signal.SIGKILL)
        assert process.wait(60) == 3
        told = process.stderr.read()

    assert "run the job again, it goes on from its newest checkpoint" in told
    assert moves(out, 0)[:4] == ["DEAD", "RESTARTING", "STALE", "HEALTHY"]
    assert {"SUSPECT", "DEAD", "RESTARTING", "STALE", "HEALTHY"} == set(moves(out, 1))
    told = summary(out)
    assert told["status"] == "failed"
    assert told["seconds_to_first_step"] < START_SECONDS
    assert not session.exists()
    assert processes_of(session) == []
    assert shared_memory() <= memory


def test_what_a_killed_controller_leaves_is_ended_by_the_next_start_which_resumes(job, folder):
    out, memory = folder / "killed", shared_memory()
    with ray_run(job, out) as (process, session):
        wait_for(lambda: (out / "checkpoints" / "step_10").exists())
        frozen, others = pid_of(out, 0), [pid_of(out, 1), trainer_pid(process.pid)]
        os.kill(frozen, signal.SIGSTOP)
        process.kill()
        process.wait()
        wait_for(lambda: not any(map(_runs, others)), seconds=20)
    assert processes_of(session)  # Ray's own parts may have ended the frozen worker before they ended
    assert session.exists()

    with ray_run(job, out) as (process, second):
        assert not session.exists()
        assert processes_of(session) == []
        assert not _runs(frozen)
        resumed = [row for row in rows(out / "events.jsonl") if row["kind"] == "resumed"]
        assert len(resumed) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 75

    assert not second.exists()
    assert processes_of(second) == []
    assert shared_memory() <= memory
    assert summary(out)["status"] == "stopped"


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_run_whose_cluster_dies_ends_in_order_and_resumably(job, folder):
    out = folder / "lost"
    with ray_run(job, out) as (process, session):
        (gcs,) = (below.pid for below in descendants(process.pid) if below.name == "gcs_server")
        os.kill(gcs, signal.SIGKILL)
        assert process.wait(90) == 3
        told = process.stderr.read()

    assert "the Ray cluster did not answer within 20 s" in told
    assert "run the job again, it goes on from its newest checkpoint" in told
    assert summary(out)["status"] == "failed"
    assert not session.exists()
    assert processes_of(session) == []
