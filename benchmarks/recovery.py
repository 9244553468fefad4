"""B7: recovery after the loss of a shard. Kills and freezes one of two real shards in a run that trains.

    PYTHONPATH=tests python benchmarks/recovery.py [--quick]

Per loss: time until it was noticed, until the groups of the lost shard were trained on all the same, until
the shard served again, and the goodput (groups trained per second) while it was out of service against
that before the loss. With the time in which nobody had noticed yet the dip is larger for a freeze: groups
have siblings on both shards, and wait. Requests are held back to a fixed duration, so that a shard's
capacity is its slots and not the machine's.
"""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from common import Report, arguments
from support.cli import balanced, rows, small_job, started, summary, wait_for

from asyncrl_runtime.app.state import read_state

INTERVAL, TIMEOUT, THRESHOLD, BACKOFF = 0.5, 0.3, 2, 4.0
FREEZE_DEADLINE = INTERVAL * THRESHOLD + TIMEOUT
SHARDS, SLOTS, SECONDS = 2, 16, 0.25
PROMPTS_PER_STEP = 4


def job_of(folder):
    """Endless steps; two shards that are always full."""
    return small_job(
        folder,
        asyncRL={
            "sampler": {"name": "ready_first", "maxStalenessVersions": 4},
            "maxInflightPrompts": 64,
            "maxBufferedRollouts": 256,
            "rolloutFailure": {"backoffBaseSeconds": 0.1, "maxInfraAttemptsPerPrompt": 20},
            "generationFleetHealth": {
                "enabled": True,
                "probeIntervalSeconds": INTERVAL,
                "probeTimeoutSeconds": TIMEOUT,
                "unhealthyThreshold": THRESHOLD,
                "onDeadShard": "restart",
                "restartBackoffBaseSeconds": BACKOFF,
                "maxRestartAttemptsPerShard": 100,
            },
            "refit": {"deadlineSeconds": 5.0, "unwindGraceSeconds": 5.0},
        },
        algorithm={"grpo": {"maxNumSteps": 100_000, "numPromptsPerStep": PROMPTS_PER_STEP}},
        data={"source": {"generated": {"numPrompts": 100_000}}},
        generation={
            "shards": SHARDS,
            "engineArgs": {
                "maxRunningRequests": SLOTS,
                "tail": {"medianSeconds": SECONDS, "sigma": 0.0},
            },
        },
        logging={"sampleEvery": 1},
        checkpointing={"enabled": False},
    )


def events(folder, kind=None):
    """What the run wrote so far, whole lines only."""
    text = (folder / "events.jsonl").read_text()
    found = rows_of(text[: text.rfind("\n") + 1])
    return [event for event in found if kind is None or event["kind"] == kind]


def rows_of(text):
    """Objects of complete lines."""
    import json

    return [json.loads(line) for line in text.splitlines()]


def moved_at(folder, shard, state, since):
    """When the shard entered a state after `since`, or None."""
    found = (
        event["time"]
        for event in events(folder, "shard_state")
        if event["shard"] == shard and event["new"] == state and event["time"] >= since
    )
    return next(found, None)


def goodput(folder, begin, end):
    """Groups trained on per second."""
    steps = [e for e in events(folder, "step_trained") if begin <= e["time"] < end]
    return sum(len(step["groups"]) for step in steps) / (end - begin)


def re_run_seconds(folder, since):
    """Until every group that was redispatched right after the loss had been trained on."""
    lost = {
        e["group"]
        for e in events(folder, "prompt_redispatched")
        if since <= e["time"] < since + FREEZE_DEADLINE + 1
    }
    last = since
    for step in events(folder, "step_trained"):
        if step["time"] >= since and lost & set(step["groups"]):
            last = step["time"]
            lost -= set(step["groups"])
    return len(lost), last - since


def lose(folder, shard, how, *, calm_seconds):
    """Take one shard away; the figures."""
    time.sleep(calm_seconds)
    state = read_state(folder)
    pid = next(view.pid for view in state.shards if view.index == shard)
    lost = time.time()
    os.kill(pid, how)
    dead = wait_for(lambda: moved_at(folder, shard, "DEAD", lost), seconds=60)
    back = wait_for(lambda: moved_at(folder, shard, "HEALTHY", lost), seconds=120)
    time.sleep(1.0)
    unfinished, re_run = re_run_seconds(folder, lost)
    before = goodput(folder, lost - calm_seconds, lost)
    during = goodput(folder, lost, back)
    return {
        "detect": dead - lost,
        "re_run": re_run,
        "unfinished": unfinished,
        "back": back - lost,
        "before": before,
        "dip": 1 - goodput(folder, dead, back) / before,
        "whole_dip": 1 - during / before,
    }


def wrong_versions(folder):
    """Completions with a token of weights that had not landed, or in falling order."""
    landed = {event["version"] for event in events(folder, "refit")}
    wrong = 0
    for sample in rows(folder / "samples.jsonl"):
        seen = sample["versions"]
        wrong += not (seen and set(seen) <= landed and max(seen) < sample["step"])
    return wrong


def main():
    """Kill and freeze in turn, one shard after the other."""
    asked = arguments(__doc__)
    rounds, calm = (1, 4.0) if asked.quick else (3, 8.0)
    report = Report(f"Recovery: {SHARDS} shards of {SLOTS} slots, {SECONDS:g} s a request")
    killed, frozen = [], []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        with started("run", job_of(Path(scratch)), "--output", folder, "--quiet") as process:
            wait_for(
                lambda: folder.joinpath("events.jsonl").exists() and len(events(folder, "step_trained")) > 20
            )
            for number in range(rounds):
                killed.append(lose(folder, number % SHARDS, signal.SIGKILL, calm_seconds=calm))
                frozen.append(lose(folder, (number + 1) % SHARDS, signal.SIGSTOP, calm_seconds=calm))
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        end = summary(folder)
        wrong, samples = wrong_versions(folder), len(rows(folder / "samples.jsonl"))
    share = 1 / SHARDS
    for name, found, bound in (("kill", killed, 1.0), ("freeze", frozen, FREEZE_DEADLINE + 1.0)):
        report.at_most(
            f"{name}: noticed after, worst of {rounds}", max(f["detect"] for f in found), bound, "s"
        )
        report.note(f"{name}: its groups trained all the same after", max(f["re_run"] for f in found), "s")
        report.note(
            f"{name}: serving again after (back-off {BACKOFF:g} s and more)",
            max(f["back"] for f in found),
            "s",
        )
        report.note(f"{name}: goodput before", sum(f["before"] for f in found) / rounds, "groups/s")
        report.at_most(f"{name}: dip in goodput out of service", sum(f["dip"] for f in found) / rounds, share)
        report.note(f"{name}: the same from the loss on", sum(f["whole_dip"] for f in found) / rounds)
        report.at_most(f"{name}: groups never trained on", sum(f["unfinished"] for f in found), 0)
    report.at_most(f"completions with a token of a wrong version, of {samples}", wrong, 0)
    report.at_most("ledger does not balance", int(not balanced(end["prompts"])), 0)
    return report.exit_status()


if __name__ == "__main__":
    sys.exit(main())
