"""B6: seconds from the command to a reward of 0.98 on copying four digits, beside TRL's GRPOTrainer.

    python benchmarks/time_to_reward.py [--quick]

Both start from the same weights (132,800 parameters), with the same tokenizer, reward, optimizer and 16 x 16
samples of 4 tokens a step, and run as whole processes: imports count. The reward is reached when the mean of
5 steps is. TRL 1.16 (synchronous, generating with transformers) runs with each of its settings below, and the
best of its times counts. Sides take turns, so that both see the same machine, and our best counts too.

Then asynchronous against synchronous at equal samples: the job as it is, whose generation is one batch ahead,
and without lookahead, three seeds each. Rewards agree when the means of the last 10 steps, averaged over
seeds, differ by no more than twice the standard error of their difference, or 0.01 if that is more.

TRL is no dependency of the product: uv pip install --group bench
"""

import asyncio
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from common import Report, arguments

from asyncrl_runtime.adapters.sources.build import training_prompts
from asyncrl_runtime.adapters.tokenizers.character import DIGIT_SYMBOLS, CharacterTokenizer
from asyncrl_runtime.adapters.torch.loading import build_model
from asyncrl_runtime.app.backends import torch_model
from asyncrl_runtime.app.manifest import read_job
from asyncrl_runtime.app.support import refuse_unbuilt
from asyncrl_runtime.core.records import PromptRef

HERE = Path(__file__).parent
MANIFEST = HERE / "copy-four-digits.yaml"
ASYNCRL = Path(sys.executable).parent / "asyncrl"
REWARD, WINDOW, LIMIT_SECONDS, SPEED_UP = 0.98, 5, 180.0, 3.0
SEEDS, STEPS, LAST = 3, 250, 10
THREADS = os.cpu_count() or 1
TRL_SETTINGS = {
    "lr 1.5e-3": {"lr": 0.0015, "threads": THREADS},
    "lr 1.5e-3, one thread": {"lr": 0.0015, "threads": 1},
    "lr 1e-3": {"lr": 0.001, "threads": THREADS},
}
"""The first has the job's own learning rate. A rate of 2e-3 stays below the reward on both sides."""


@dataclass(frozen=True)
class Reached:
    """When a run's reward was there: seconds from the command, steps; None if it never was."""

    first_step: float | None
    seconds: float | None
    steps: int


def rewards_in(lines):
    """Rewards of whole lines, by step; other lines are left out."""
    for line in lines:
        if line.startswith('{"') and line.endswith("}\n"):
            row = json.loads(line)
            yield row["train/reward_raw"] if "train/reward_raw" in row else row["reward"]


def until_rewarded(command, output, log, env=None):
    """Start a command, look at its output file every 10 ms, and end it once the reward is reached."""
    began, first = time.perf_counter(), None
    with open(log, "w") as errors, open(output if output.name == "stdout" else os.devnull, "w") as out:
        process = subprocess.Popen(
            [str(part) for part in command], stdout=out, stderr=errors, start_new_session=True, env=env
        )
        try:
            while True:
                ended = process.poll() is not None
                lines = output.read_text().splitlines(keepends=True) if output.exists() else []
                rewards = list(rewards_in(lines))
                now = time.perf_counter() - began
                first = first or (now if rewards else None)
                if len(rewards) >= WINDOW and mean(rewards[-WINDOW:]) >= REWARD:
                    return Reached(first, now, len(rewards))
                if ended or now > LIMIT_SECONDS:
                    if not rewards:
                        raise SystemExit(f"{command[0]} trained no step:\n{log.read_text()[-2000:]}")
                    return Reached(first, None, len(rewards))
                time.sleep(0.01)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()


def ours(folder):
    """One timed run of the job."""
    run = folder / "run"
    return until_rewarded(
        [ASYNCRL, "run", MANIFEST, "--output", run, "--fresh", "--quiet"],
        run / "metrics.jsonl",
        folder / "log",
    )


def theirs(folder, shared, job, setting):
    """One timed run of TRL."""
    grpo = job.spec.algorithm.grpo
    command = [sys.executable, HERE / "peers" / "trl_grpo.py", shared]
    facts = {
        "prompts": grpo.num_prompts_per_step,
        "generations": grpo.num_generations_per_prompt,
        "new-tokens": job.spec.generation.sampling.max_new_tokens,
        "steps": grpo.max_num_steps,
        "seed": 0,
        "steps-per-generation": 1,
        "weight-decay": job.spec.training.optimizer.weight_decay,
        **setting,
    }
    for name, value in facts.items():
        command += [f"--{name}", value]
    env = {**os.environ, "OMP_NUM_THREADS": str(setting["threads"])}
    return until_rewarded(command, folder / "stdout", folder / "log", env)


def write_shared(folder, job):
    """The job's initial weights, its tokenizer and its prompts, for TRL."""
    tokenizer = CharacterTokenizer(DIGIT_SYMBOLS)
    model = folder / "model"
    model.mkdir(parents=True)
    build_model(torch_model(job.spec, tokenizer, gpus=0)).save(model)
    tokenizer.save(str(model))
    source = training_prompts(job.spec.data)
    prompts = asyncio.run(source.fetch([PromptRef(0, position) for position in range(len(source))]))
    rows = ({"prompt": prompt.text, "answer": prompt.answer} for prompt in prompts)
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def shown(report, name, reached):
    """Lines of one side's run."""
    if reached.first_step is not None:
        report.note(f"{name}: command to first step", reached.first_step, "s")
    if reached.seconds is None:
        print(f"  {name}: {REWARD} was not reached in {reached.steps} steps", flush=True)
    else:
        report.note(f"{name}: command to reward, {reached.steps} steps", reached.seconds, "s")


def best(runs):
    """Seconds of the quickest that got there; infinite if none did."""
    return min((run.seconds for run in runs if run.seconds is not None), default=math.inf)


def against_trl(report, job, rounds, settings):
    """Both sides in turns."""
    with tempfile.TemporaryDirectory() as parent:
        shared = Path(parent) / "shared"
        write_shared(shared, job)
        mine, others = [], []
        for at in range(rounds):
            for name, setting in settings.items():
                for side, found, call in (
                    ("asyncrl", mine, ours),
                    (f"TRL, {name}", others, lambda f, s=setting: theirs(f, shared, job, s)),
                ):
                    folder = Path(tempfile.mkdtemp(dir=parent))
                    found.append(call(folder))
                    shown(report, f"{side}, round {at + 1}", found[-1])
    report.note("asyncrl: best", best(mine), "s")
    report.note("TRL: best", best(others), "s")
    report.at_least("TRL / asyncrl", best(others) / best(mine), SPEED_UP, "x")


def final_reward(lookahead, seed, steps):
    """Mean reward of the last steps of a whole run, and its seconds."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        sets = {
            "algorithm.grpo.maxNumSteps": steps,
            "asyncRL.sampler.maxLookaheadVersions": lookahead,
            "algorithm.grpo.seed": seed,
            "data.seed": seed,
        }
        command = [ASYNCRL, "run", MANIFEST, "--output", folder, "--quiet"]
        for path, value in sets.items():
            command += ["--set", f"spec.{path}={value}"]
        subprocess.run(command, check=True, capture_output=True)
        summary = json.loads((folder / "summary.json").read_text())
        rewards = list(rewards_in((folder / "metrics.jsonl").read_text().splitlines(keepends=True)))
        return mean(rewards[-LAST:]), summary["seconds"], summary["staleness"]["max"]


def async_against_sync(report, job, seeds, steps):
    """Equal samples, with generation ahead and without."""
    ahead = job.spec.async_rl.sampler.max_lookahead_versions
    found = {ahead: [], 0: []}
    for seed in range(1, seeds + 1):
        for lookahead, rewards in found.items():
            reward, seconds, lag = final_reward(lookahead, seed, steps)
            rewards.append(reward)
            name = f"lookahead {lookahead}, seed {seed}: lag at most {lag}, {seconds:.0f} s"
            report.note(f"{name}: reward of the last {LAST} steps", reward)
    means = {lookahead: mean(rewards) for lookahead, rewards in found.items()}
    error = math.sqrt(sum(stdev(rewards) ** 2 / seeds for rewards in found.values()))
    report.at_most("sync less async: final reward", means[0] - means[ahead], max(0.01, 2 * error))


def main():
    quick = arguments(__doc__).quick
    if importlib.util.find_spec("trl") is None:
        raise SystemExit("TRL is not installed here: uv pip install --group bench")
    job = refuse_unbuilt(read_job(MANIFEST, []), MANIFEST)
    report = Report(f"copy four digits: seconds to a reward of {REWARD}")
    against_trl(report, job, 1, dict([next(iter(TRL_SETTINGS.items()))]) if quick else TRL_SETTINGS)
    steps = 40 if quick else STEPS
    print(f"asynchronous against synchronous, {steps} steps of 256 samples")
    async_against_sync(report, job, 2 if quick else SEEDS, steps)
    return report.exit_status()


if __name__ == "__main__":
    sys.exit(main())
