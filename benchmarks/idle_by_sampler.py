"""B1 and B10: trainer idle time, waste and length bias of each sampler, beside a model of the ideal.

    python benchmarks/idle_by_sampler.py [--quick]

The real pumps run on a virtual clock. A step takes 32 groups and one second; 64 groups generate at a time,
each as long as the slowest of its 8 rollouts, whose durations are lognormal. rho is generation capacity over
training demand. The model is a discrete-event simulation of the same policies, written independently. It lets
a rollout that has become too old run to its end, where windowed aborts it and may therefore be better only.
"""

import math
import sys
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist, mean, stdev

from common import Report, arguments

from asyncrl_api.parse import parse
from asyncrl_api.resolve import resolve
from asyncrl_runtime.adapters.virtual_clock import run_virtual
from asyncrl_runtime.app.simulate.durations import read_duration
from asyncrl_runtime.app.simulate.run import Durations, Simulation

GROUPS_PER_STEP, SLOTS, ROLLOUTS = 32, 64, 8
WARM_UP, STEPS, MODEL_SEEDS = 20, 160, 3
SEEDS = {0.5: 3, 1.0: 6}

CASES = [(0.5, 1.0), (0.5, 1.25), (0.5, 2.0), (1.0, 1.0), (1.0, 1.25), (1.0, 2.0)]
"""(sigma, rho)."""

MODEL = {
    ("in_order", 0): (0.795, 0.757, 0.660, 0.876, 0.850, 0.779),
    ("in_order", 1): (0.601, 0.526, 0.339, 0.772, 0.723, 0.593),
    ("in_order", 2): (0.423, 0.316, 0.082, 0.682, 0.615, 0.439),
    ("weight_fifo", 2): (0.423, 0.316, 0.082, 0.682, 0.615, 0.439),
    ("in_order", 4): (0.147, 0.036, 0.000, 0.531, 0.436, 0.206),
    ("ready_first", 1): (0.530, 0.458, 0.286, 0.502, 0.431, 0.289),
    ("ready_first", 2): (0.178, 0.057, 0.000, 0.171, 0.048, 0.000),
    ("ready_first", 4): (0.004, 0.000, 0.000, 0.009, 0.000, 0.000),
    ("windowed", 2): (0.260, 0.090, 0.000, 0.266, 0.099, 0.000),
    ("windowed", 4): (0.033, 0.000, 0.000, 0.092, 0.000, 0.000),
}
"""Idle fraction of the trainer, per case."""


@cache
def slowest_of_group(sigma):
    """Mean of the longest of a group's rollouts, for rollouts whose median is 1."""
    normal, points = NormalDist(), 200_000
    quantiles = (((i + 0.5) / points) ** (1 / ROLLOUTS) for i in range(points))
    return sum(math.exp(sigma * normal.inv_cdf(q)) for q in quantiles) / points


def spec_of(sampler, window, steps):
    knob = "maxLookaheadVersions" if sampler == "in_order" else "maxStalenessVersions"
    loss = {"useImportanceSamplingCorrection": True} if sampler == "ready_first" else {}
    manifest = {
        "apiVersion": "asyncrl.io/v1alpha1",
        "kind": "AsyncRLJob",
        "metadata": {"name": "idle"},
        "spec": {
            "model": {"init": {}, "dtype": "float32", "maxTotalSequenceLength": 32},
            "data": {"source": {"generated": {}}, "shuffle": False},
            "environment": {"arithmetic": {}},
            "algorithm": {
                "grpo": {
                    "numPromptsPerStep": GROUPS_PER_STEP,
                    "numGenerationsPerPrompt": ROLLOUTS,
                    "maxNumSteps": steps,
                    "maxNumEpochs": None,
                },
            },
            **({"loss": loss} if loss else {}),
            "generation": {"backend": "torch", "gpusPerShard": 0, "shards": 1},
            "training": {"backend": "torch", "gpusPerHost": 0, "optimizer": {"lr": 0.001}},
            "dataPlane": {"backend": "inProcess"},
            "checkpointing": {"enabled": False},
            "asyncRL": {
                "sampler": {"name": sampler, knob: window},
                "maxBufferedRollouts": GROUPS_PER_STEP * (window + 1),
                "maxInflightPrompts": SLOTS,
            },
        },
    }
    return resolve(parse(manifest)).spec


@dataclass
class Measured:
    """What one simulated run shows after its warm-up."""

    sampler: str
    window: int
    sigma: float
    rho: float
    seed: int
    steps: int

    def run(self):
        scale = SLOTS / GROUPS_PER_STEP / self.rho / slowest_of_group(self.sigma)
        simulation = Simulation(
            spec=spec_of(self.sampler, self.window, WARM_UP + self.steps),
            seed=self.seed,
            warm_up_steps=WARM_UP,
            durations=Durations(
                generation=read_duration("", f"lognormal:median={scale},sigma={self.sigma}"),
                training=read_duration("", "1"),
                refit=read_duration("", "0"),
            ),
        )
        run_virtual(simulation.run())
        self.totals, self.lag = simulation.measured, max(simulation.work.lags)
        self.discarded = simulation.parts.ledger.discarded.total() / simulation.parts.ledger.taken
        return self

    @property
    def idle_fraction(self):
        return self.totals.idle_seconds / self.totals.step_seconds

    @property
    def length_bias(self):
        """Mean duration of trained over dispatched groups."""
        totals = self.totals
        trained = totals.trained_longest / totals.trained_groups
        return trained / (totals.dispatched_longest / totals.dispatched_groups)


def tolerance(runs):
    """A point, and twice the standard error of the difference: both sides are means over seeds (percent)."""
    spread = 100 * stdev(run.idle_fraction for run in runs)
    return 1 + 2 * spread * math.sqrt(1 / len(runs) + 1 / MODEL_SEEDS)


def compare(report, runs, expected, bound):
    """One cell of the table."""
    first = runs[0]
    name = f"{first.sampler} K={first.window} sigma={first.sigma} rho={first.rho}"
    idle = 100 * mean(run.idle_fraction for run in runs)
    bias = mean(run.length_bias for run in runs)
    if first.sampler == "windowed":
        report.at_most(f"{name}: idle", idle, 100 * expected + bound, "%")
        report.note(f"{name}: trained / dispatched duration", bias)
    else:
        report.near(f"{name}: idle", idle, 100 * expected, bound, "%")
        report.near(f"{name}: trained / dispatched duration", bias, 1.0, 0.02)
    lag, discarded = max(run.lag for run in runs), 100 * mean(run.discarded for run in runs)
    print(f"    largest lag {lag}, discarded {discarded:.1f} %")
    return idle


def main():
    quick = arguments(__doc__).quick
    report = Report("trainer idle time, real pumps on a virtual clock beside the model")
    sync = {}
    for (sampler, window), table in MODEL.items():
        for (sigma, rho), expected in zip(CASES, table, strict=True):
            if quick and (sigma, rho) != (0.5, 1.0):
                continue
            steps, seeds = (30, 2) if quick else (STEPS, SEEDS[sigma])
            runs = [Measured(sampler, window, sigma, rho, seed, steps).run() for seed in range(seeds)]
            idle = compare(report, runs, expected, 8.0 if quick else tolerance(runs))
            if sync.setdefault((sigma, rho), idle) < idle:
                report.at_most(f"{sampler} K={window}: idle beside sync", idle, sync[sigma, rho], "%")
    return report.exit_status()


if __name__ == "__main__":
    sys.exit(main())
