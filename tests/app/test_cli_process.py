"""Runs as processes of their own: signals, the lock, the metrics endpoint, lost workers."""

import json
import os
import signal
import socket
import urllib.request
from pathlib import Path

import pytest
from support.cli import asyncrl, balanced, rows, small_job, started, summary, wait_for

LONG = {"algorithm": {"grpo": {"maxNumSteps": 100_000, "maxNumEpochs": 1_000}}}
SLOW = {
    "data": {"validation": {"generated": {"task": "copy", "numDigits": 2, "numPrompts": 4}}},
    "validation": {"atStart": True},
    "generation": {"engineArgs": {"tail": {"probability": 1.0, "seconds": 8.0}}},
}
"""A validation of eight seconds, which a first signal waits for."""


def state(folder):
    path = folder / "state.json"
    return json.loads(path.read_text()) if path.exists() else {}


def after_step(folder, number):
    wait_for(lambda: state(folder).get("step", 0) >= number)


def gone(pid):
    """Not there, or a zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def workers(process):
    """Process ids of the fork server and its workers."""
    found = []
    for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()):
        try:
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except FileNotFoundError:
            continue
        found.append((pid, parent))
    servers = [pid for pid, parent in found if parent == process.pid]
    return servers + [pid for pid, parent in found if parent in servers]


def named(pids, name):
    return next(pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().startswith(name))


def test_a_run_serves_metrics_keeps_others_out_and_stops_on_sigterm(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    job, folder = small_job(tmp_path, observability={"metricsPort": port}, **LONG), tmp_path / "run"
    with started("run", job, "--output", folder) as process:
        after_step(folder, 2)
        children = workers(process)
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
        names = {line.split("{")[0].split(" ")[0] for line in page.splitlines() if not line.startswith("#")}
        shown = asyncrl("status", folder).stdout
        with started("run", job, "--output", folder) as other:
            _, refused = other.communicate(timeout=60)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)

    assert {"asyncrl_train_reward", "asyncrl_train_loss", "asyncrl_job_info"} <= names
    assert f"Running (process {process.pid}, updated" in shown
    assert other.returncode == 3
    assert refused.splitlines()[-1].startswith("error: ")
    assert f"is in use by process {process.pid}" in refused

    assert process.returncode == 75
    assert "SIGTERM: finishing the step and saving, within 120 s; once more to leave at once" in out
    assert err == ""
    told = summary(folder)
    assert (told["status"], told["failure"]) == ("stopped", None)
    assert balanced(told["prompts"])
    assert (folder / "checkpoints" / f"step_{told['steps']}").exists()
    wait_for(lambda: all(gone(pid) for pid in children), seconds=10)

    steps = f"spec.algorithm.grpo.maxNumSteps={told['steps'] + 1}"
    with started("run", job, "--output", folder, "--set", steps, "--json") as process:
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert json.loads(out) == summary(folder)
    assert [e["step"] for e in rows(folder / "events.jsonl") if e["kind"] == "resumed"] == [told["steps"]]


def test_cli_22_a_second_signal_leaves_at_once(tmp_path):
    job, folder = small_job(tmp_path, **SLOW), tmp_path / "run"
    with started("run", job, "--output", folder) as process:
        wait_for(lambda: state(folder).get("phase") == "Running")
        children = workers(process)
        process.send_signal(signal.SIGINT)
        wait_for(lambda: "stop_requested" in (folder / "events.jsonl").read_text())
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=10)

    assert process.returncode == 130
    assert "SIGINT: leaving at once" in out
    wait_for(lambda: all(gone(pid) for pid in children), seconds=10)


def test_a_signal_before_the_start_is_no_traceback(tmp_path):
    with started("run", small_job(tmp_path), "--output", tmp_path / "run") as process:
        wait_for(lambda: workers(process))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)

    assert process.returncode == 75
    assert "Traceback" not in err


@pytest.mark.parametrize("victim", ["trainer", "fork server", "generation"])
def test_sc_14_109_a_lost_worker_ends_the_run_with_one_error_and_no_process_left(victim, tmp_path):
    job, folder = small_job(tmp_path, **LONG), tmp_path / "run"
    with started("run", job, "--output", folder) as process:
        after_step(folder, 1)
        children = workers(process)
        os.kill(children[0] if victim == "fork server" else named(children, victim), signal.SIGKILL)
        _, err = process.communicate(timeout=30)

    assert process.returncode == 3
    assert len(err.splitlines()) == 1
    assert "run the job again, it goes on from its newest checkpoint" in err
    assert summary(folder)["failure"]["message"] in err
    assert balanced(summary(folder)["prompts"])
    wait_for(lambda: all(gone(pid) for pid in children), seconds=10)


def test_a_lost_shard_costs_throughput_only(tmp_path):
    steps = {"algorithm": {"grpo": {"maxNumSteps": 80, "maxNumEpochs": 10}}}
    job, folder = small_job(tmp_path, **{**steps, "generation": {"shards": 2}}), tmp_path / "run"
    with started("run", job, "--output", folder, "--quiet") as process:
        after_step(folder, 1)
        os.kill(named(workers(process), "generation"), signal.SIGKILL)
        process.communicate(timeout=60)

    assert process.returncode == 0
    assert summary(folder)["steps"] == 80
    assert sorted(shard["state"] for shard in state(folder)["shards"]) == ["DEAD", "HEALTHY"]
