"""What old data does to learning, by loss: rollouts always come from weights K updates old.

    python benchmarks/staleness_lab.py [--quick] [--table] [--seeds 2] [--output FOLDER]

One policy learns to reverse two digits (132,800 parameters, 16 x 16 samples a step, 400 steps, gradient norm
clipped at 1) through the engine, the advantage stage and the trainer of the product, a process per run. Only
the order of calls is forced: the engine samples with the weights of step t - K. Losses:

    none    policy gradient without a ratio
    ppo     ratio against the policy that sampled, clipped to 0.8..1.28
    is      ratio as an unbounded weight
    tis     ratio as a weight of at most 2
    icepop  ratio as a weight, 0 outside 0.5..2

By default K = 16 at learning rate 3e-3 with two seeds each, in about two minutes on two idle cores; it also
draws staleness-lab.png, the mean reward by step. --table adds K = 0, 4 and 16 at 1e-3, and K = 32 at 3e-3.
"""

import argparse
import asyncio
import multiprocessing
import os
import sys
import time
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean

import numpy as np
from common import Report

from asyncrl_runtime.adapters.environments.arithmetic import share_of_right_positions
from asyncrl_runtime.adapters.sources.generated import GeneratedPrompts
from asyncrl_runtime.adapters.tokenizers.character import DIGIT_SYMBOLS, CharacterTokenizer
from asyncrl_runtime.adapters.torch.settings import (
    EngineSettings,
    OptimizerSettings,
    TorchModelSettings,
    TrainerSettings,
)
from asyncrl_runtime.adapters.torch.shape import DecoderShape
from asyncrl_runtime.algorithms import settings as algorithm
from asyncrl_runtime.algorithms.stage import StageInput, run_stage
from asyncrl_runtime.app.report.charts import Chart, Line, smoothed
from asyncrl_runtime.app.report.png import write_pngs
from asyncrl_runtime.core.records import PromptRef
from asyncrl_runtime.ports import columns as col
from asyncrl_runtime.ports.columns import Jagged
from asyncrl_runtime.ports.generator import Sampling

PROMPTS, GENERATIONS, STEPS, HELD_OUT = 16, 16, 400, 256
AGE, OTHERS = 16, ((1e-3, 0), (1e-3, 4), (1e-3, 16), (3e-3, 32))
"""Age of the weights in updates; learning rates and ages of --table."""

NONE_BELOW, PPO_ABOVE = 0.6, 0.85

PLAIN = algorithm.LossSettings(
    ratio="forced",
    clip_min=0.2,
    clip_max=0.28,
    dual_clip=None,
    cispo=False,
    token_level=True,
    correction=False,
    truncation=None,
    kl=None,
    on_policy_kl=False,
    nll_weight=0.0,
)
LOSSES = {
    "none": PLAIN,
    "ppo": replace(PLAIN, ratio="token"),
    "is": replace(PLAIN, correction=True),
    "tis": replace(
        PLAIN, correction=True, truncation=algorithm.Truncation(kind="tis", lower=None, upper=2.0)
    ),
    "icepop": replace(
        PLAIN, correction=True, truncation=algorithm.Truncation(kind="icepop", lower=0.5, upper=2.0)
    ),
}
STAGE = algorithm.StageSettings(
    rewards=algorithm.RewardSettings(scaling=None, shaping=None),
    masks=algorithm.MaskSettings(overlong_filtering=False, mask_env_flagged=True, seq_error_threshold=None),
    estimator=algorithm.GrpoSettings(leave_one_out=False, normalize=True, exclude_masked=False),
    clip_low=None,
    clip_high=None,
    invalid_tool_call_advantage=None,
    malformed_thinking_advantage=None,
)


@dataclass(frozen=True)
class Case:
    """One run."""

    loss: str
    lr: float
    age: int
    seed: int
    steps: int
    task: str
    digits: int


@dataclass(frozen=True)
class Learned:
    """What one run showed."""

    rewards: list = field(repr=False)
    exact: float
    """Greedy exact match on held-out prompts, after the last step."""

    @property
    def steps_to_nine_tenths(self):
        """Steps until the mean reward of 5 steps was 0.9; None if it never was."""
        for at in range(5, len(self.rewards) + 1):
            if mean(self.rewards[at - 5 : at]) >= 0.9:
                return at
        return None


class Lab:
    """Engine, trainer and prompts of one run."""

    def __init__(self, case):
        import torch

        from asyncrl_runtime.adapters.torch.engine import Engine
        from asyncrl_runtime.adapters.torch.loading import build_model
        from asyncrl_runtime.adapters.torch.policy import PolicyTrainer

        torch.set_num_threads(1)
        self.tokenizer = CharacterTokenizer(DIGIT_SYMBOLS)
        shape = DecoderShape(
            vocab_size=self.tokenizer.vocab_size,
            hidden_size=64,
            num_layers=2,
            num_heads=4,
            num_kv_heads=4,
            head_dim=16,
            intermediate_size=256,
            max_positions=16,
        )
        model = TorchModelSettings(shape=shape, seed=case.seed)
        settings = EngineSettings(
            model=model, max_sequence_tokens=16, end_token_ids=(self.tokenizer.eos_token_id,)
        )
        self.sampler = build_model(model).requires_grad_(False)
        self.engine = Engine(self.sampler, settings, clock=time.monotonic)
        self.trainer = PolicyTrainer(
            build_model(model),
            TrainerSettings(
                model=model,
                loss=LOSSES[case.loss],
                optimizer=OptimizerSettings(lr=case.lr),
                micro_batch_rows=PROMPTS * GENERATIONS,
            ),
        )
        self.case = case
        self.source = GeneratedPrompts(case.task, case.digits, case.steps * PROMPTS + HELD_OUT, case.seed)
        self.old = deque([self.weights()], maxlen=case.age + 1)

    def weights(self):
        """The trainer's, now."""
        return {name: tensor.clone() for name, tensor in self.trainer.model.state_dict().items()}

    def prompts(self, first, count):
        """Prompts by position."""
        return asyncio.run(self.source.fetch([PromptRef(0, first + at) for at in range(count)]))

    def generate(self, prompts, weights, *, temperature=1.0, first_seed=0):
        """(prompt, its tokens, output, reward, exact) of each prompt's turn."""
        self.sampler.load_state_dict(weights)
        done = {}
        asked = Sampling(max_new_tokens=self.case.digits, temperature=temperature)
        for at, prompt in enumerate(prompts):
            token_ids = tuple(self.tokenizer.render(prompt.messages))
            self.engine.submit(
                token_ids,
                asked,
                first_seed + at,
                lambda out, at=at, ids=token_ids: done.update({at: (ids, out)}),
            )
        while self.engine.busy:
            self.engine.step()
        made = []
        for at, prompt in enumerate(prompts):
            token_ids, output = done[at]
            text = self.tokenizer.decode(output[0]).strip()
            reward = share_of_right_positions(text, prompt.answer)
            made.append((prompt, token_ids, output, reward, text == prompt.answer))
        return made

    def step(self, number):
        """Roll out with old weights, train on it; the mean reward."""
        prompts = [p for p in self.prompts(number * PROMPTS, PROMPTS) for _ in range(GENERATIONS)]
        made = self.generate(prompts, self.old[0], first_seed=number * len(prompts))
        columns = self.columns(made)
        self.trainer.begin(None)
        self.trainer.accumulate(columns)
        self.trainer.finish()
        self.old.append(self.weights())
        return float(columns[col.REWARD].values.mean())

    def columns(self, made):
        """Rows with their advantages. The policy that sampled is the one that ratios are taken against."""
        masks = [[0] * len(ids) + [1] * len(output[0]) for _, ids, output, _, _ in made]
        logprobs = Jagged.of([[0.0] * len(ids) + output[1] for _, ids, output, _, _ in made], np.float32)
        columns = {
            col.TOKEN_IDS: Jagged.of([[*ids, *output[0]] for _, ids, output, _, _ in made], np.int64),
            col.TOKEN_MASK: Jagged.of(masks, np.int8),
            col.GENERATION_LOGPROBS: logprobs,
            col.PREVIOUS_LOGPROBS: logprobs,
            col.REWARD: Jagged.scalars([reward for *_, reward, _ in made], np.float64),
        }
        rows = len(made)
        output = run_stage(
            StageInput(
                group_ids=[str(at // GENERATIONS) for at in range(rows)],
                rewards=columns[col.REWARD].values,
                token_mask=columns[col.TOKEN_MASK].padded(),
                sample_mask=np.ones(rows, np.float32),
                truncated=np.zeros(rows, np.int8),
                flagged=np.zeros(rows, np.int8),
                response_tokens=np.asarray([sum(mask) for mask in masks]),
            ),
            STAGE,
        )
        columns[col.ADVANTAGES] = Jagged.unpadded(output.advantages, columns[col.TOKEN_IDS].lengths)
        columns[col.SAMPLE_MASK] = Jagged.scalars(output.sample_mask, np.float32)
        return columns


def learn(case):
    """One run, in a process of its own."""
    lab = Lab(case)
    rewards = [lab.step(number) for number in range(case.steps)]
    held_out = lab.prompts(case.steps * PROMPTS, HELD_OUT)
    answers = lab.generate(held_out, lab.weights(), temperature=0.0)
    return Learned(rewards, mean(exact for *_, exact in answers))


def learn_all(cases):
    """Runs side by side, one per core."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        return dict(zip(cases, pool.map(learn, cases), strict=True))


def chart_of(found, lr, age):
    """Mean reward by step and loss, averaged over seeds."""
    lines = []
    for at, loss in enumerate(LOSSES):
        runs = [
            learned.rewards
            for case, learned in found.items()
            if (case.loss, case.lr, case.age) == (loss, lr, age)
        ]
        means = [mean(values) for values in zip(*runs, strict=True)]
        lines.append(Line(loss, range(1, len(means) + 1), smoothed(means), f"s{at + 1}"))
    title = f"Learning from rollouts that are {age} updates old, learning rate {lr:g}"
    return Chart("staleness-lab", title, "", unit="mean reward", lines=lines)


def table(report, found, lr, age):
    """Lines of one setting: both seeds of each loss; the means of exact match by loss."""
    means = {}
    for loss in LOSSES:
        runs = [
            learned for case, learned in found.items() if (case.loss, case.lr, case.age) == (loss, lr, age)
        ]
        means[loss] = mean(run.exact for run in runs)
        for run in runs:
            steps = run.steps_to_nine_tenths
            name = f"lr {lr:g}, K={age}, {loss}: exact match, mean reward of the last 20"
            reached = f"0.9 at step {steps}" if steps else "0.9 never"
            report.note(f"{name} {mean(run.rewards[-20:]):.2f}, {reached}", run.exact)
    return means


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run of 20 steps; bounds are not judged")
    parser.add_argument("--table", action="store_true", help="every setting; about ten minutes")
    parser.add_argument("--task", choices=("copy", "reverse", "sort"), default="reverse")
    parser.add_argument("--digits", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("runs"), help="folder of the chart")
    asked = parser.parse_args()
    judged = (asked.lr, AGE)
    settings = (*(other for other in OTHERS if other != judged), judged) if asked.table else (judged,)
    steps = 20 if asked.quick else STEPS
    cases = [
        Case(loss, lr, age, seed, steps, asked.task, asked.digits)
        for lr, age in settings
        for loss in LOSSES
        for seed in range(asked.seeds)
    ]
    report = Report(f"{asked.task} {asked.digits} digits, rollouts from weights K updates old, {steps} steps")
    began = time.perf_counter()
    found = learn_all(cases)
    means = {setting: table(report, found, *setting) for setting in settings}[judged]
    if not asked.quick:
        report.at_most(f"K={AGE}, lr {asked.lr:g}: exact match of none", means["none"], NONE_BELOW)
        report.at_least(f"K={AGE}, lr {asked.lr:g}: exact match of ppo", means["ppo"], PPO_ABOVE)
    report.note("whole command", time.perf_counter() - began, "s")
    print(f"  {write_pngs([chart_of(found, *judged)], asked.output)[0]}")
    return report.exit_status()


if __name__ == "__main__":
    sys.exit(main())
