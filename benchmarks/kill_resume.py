"""B9: resume exactness. Kills real runs with SIGKILL at seeded random moments until they are complete.

    PYTHONPATH=tests python benchmarks/kill_resume.py [--kills 200] [--seed 0]

Per sampler: kills, steps trained again because of them, prompts lost and trained twice (bound: 0 each)
against an undisturbed run of the same job, and whether the prompt ledger balances.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from support.cli import balanced, rows, small_job
from support.kills import kill_until_complete, run_to_the_end

STEPS, PROMPTS_PER_STEP = 240, 4
SAMPLERS = {
    "in_order": {"name": "in_order", "maxLookaheadVersions": 1},
    "weight_fifo": {"name": "weight_fifo", "maxStalenessVersions": 1},
    "ready_first": {"name": "ready_first", "maxStalenessVersions": 1},
    "windowed": {"name": "windowed", "maxStalenessVersions": 4},
}


def job_of(folder, sampler):
    """Every prompt once, a checkpoint after every step, a tail so that groups finish out of order."""
    return small_job(
        folder,
        asyncRL={"sampler": SAMPLERS[sampler], "finalPartialStep": "train"},
        algorithm={
            "grpo": {"maxNumSteps": STEPS, "numPromptsPerStep": PROMPTS_PER_STEP, "maxNumEpochs": 1},
        },
        data={"source": {"generated": {"numPrompts": STEPS * PROMPTS_PER_STEP}}},
        generation={"shards": 2, "engineArgs": {"tail": {"probability": 0.02, "seconds": 0.05}}},
        checkpointing={"savePeriod": 1, "keepTopK": 2},
    )


def measure(folder, sampler, *, seed, kills):
    """One line; whether it holds."""
    job = job_of(folder, sampler)
    calm = run_to_the_end(job, folder / "calm")
    began = time.monotonic()
    killed = kill_until_complete(job, folder / "killed", seed=seed, max_kills=kills)
    seconds = time.monotonic() - began
    prompts, steps = killed.summary["prompts"], len(killed.steps)
    lost = max(0, len(set(calm.consumed) - set(killed.consumed)) - prompts["discarded"])
    twice = sum(count > 1 for count in killed.consumed.values())
    events = sum(event["kind"] == "step_trained" for event in rows(folder / "killed" / "events.jsonl"))
    holds = killed.summary["status"] == "complete" and balanced(prompts) and lost == twice == 0
    holds &= prompts["trained"] == len(killed.consumed)
    print(
        f"{sampler:<12} kills {killed.kills:>3} ({killed.kills_after_a_step} while it trained)  "
        f"steps {steps}, trained again {events - steps}  lost {lost} (0)  twice {twice} (0)  "
        f"discarded {prompts['discarded']}  "
        f"ledger {'balances' if balanced(prompts) else 'DOES NOT BALANCE'}  {seconds:.0f} s",
        flush=True,
    )
    return holds, killed.kills


def main():
    """Go round the samplers until there were enough kills."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--kills", type=int, default=200)
    arguments.add_argument("--seed", type=int, default=0)
    asked = arguments.parse_args()
    total, all_hold, number = 0, True, 0
    while total < asked.kills:
        sampler = list(SAMPLERS)[number % len(SAMPLERS)]
        with tempfile.TemporaryDirectory() as folder:
            holds, kills = measure(Path(folder), sampler, seed=asked.seed + number, kills=asked.kills - total)
        total, all_hold, number = total + kills, all_hold and holds, number + 1
    print(f"{total} kills, {'all hold' if all_hold else 'NOT EXACT'}")
    return 0 if all_hold else 1


if __name__ == "__main__":
    sys.exit(main())
