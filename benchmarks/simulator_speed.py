"""How fast the simulator is, and how near its idle fractions are to the model.

    python benchmarks/simulator_speed.py [--quick]

A fleet of 64 shards has 4,096 groups of 8 completions outstanding. Wall time counts from the moment at which
the pipeline is full; a group is counted when it is committed. With ten times as many groups outstanding a
group must cost no more. The table of the model is that of idle_by_sampler.py, in its own cases.
"""

import math
import sys
import time
from statistics import mean, stdev

from common import Report, arguments
from idle_by_sampler import CASES, MODEL, MODEL_SEEDS, Measured

from asyncrl_api.parse import parse
from asyncrl_api.resolve import resolve
from asyncrl_runtime.adapters.virtual_clock import run_virtual
from asyncrl_runtime.app.simulate.durations import read_duration
from asyncrl_runtime.app.simulate.run import Durations, Simulation

SHARDS, OUTSTANDING, GENERATIONS = 64, 4096, 8
BOUND = 10_000
POINTS = 1.0
COST_RATIO = 1.25
"""Caches of the machine hold the smaller of the two; what the bound excludes is a cost that grows."""


def spec_of(sampler, outstanding, groups_per_step, steps):
    window = outstanding // groups_per_step - 1
    knob = "maxLookaheadVersions" if sampler == "in_order" else "maxStalenessVersions"
    loss = {"loss": {"useImportanceSamplingCorrection": True}} if sampler == "ready_first" else {}
    manifest = {
        "apiVersion": "asyncrl.io/v1alpha1",
        "kind": "AsyncRLJob",
        "metadata": {"name": "speed"},
        "spec": {
            "model": {"init": {}, "dtype": "float32", "maxTotalSequenceLength": 32},
            "data": {"source": {"generated": {}}},
            "environment": {"arithmetic": {}},
            "algorithm": {
                "grpo": {
                    "numPromptsPerStep": groups_per_step,
                    "numGenerationsPerPrompt": GENERATIONS,
                    "maxNumSteps": steps,
                    "maxNumEpochs": None,
                }
            },
            **loss,
            "generation": {"backend": "torch", "gpusPerShard": 0, "shards": SHARDS},
            "training": {"backend": "torch", "gpusPerHost": 0, "optimizer": {"lr": 0.001}},
            "dataPlane": {"backend": "inProcess", "storageCapacity": 10_000_000},
            "checkpointing": {"enabled": False},
            "asyncRL": {
                "sampler": {"name": sampler, knob: window},
                "maxBufferedRollouts": outstanding,
                "maxInflightPrompts": outstanding,
            },
        },
    }
    return resolve(parse(manifest)).spec


def groups_per_second(sampler, outstanding, groups_per_step, *, full, counted):
    """Groups committed per second of wall time, after `full` steps and over `counted` more."""
    clock, groups = {}, {}

    def finished(step, metrics):
        clock[step.version + 1] = time.perf_counter()
        groups[step.version + 1] = simulation.parts.ledger.committed

    simulation = Simulation(
        spec=spec_of(sampler, outstanding, groups_per_step, full + counted),
        durations=Durations(
            generation=read_duration("", "lognormal:median=8,sigma=0.5"),
            training=read_duration("", "1"),
            refit=read_duration("", "0.1"),
        ),
        finished=finished,
    )
    run_virtual(simulation.run())
    last = full + counted
    return (groups[last] - groups[full]) / (clock[last] - clock[full])


def best_of(times, *args, **options):
    """The fastest of several runs: others use the machine, too."""
    return max(groups_per_second(*args, **options) for _ in range(times))


def speed(report, quick):
    times, counted = (1, 40) if quick else (3, 300)
    for sampler in ("in_order", "ready_first", "windowed"):
        rate = best_of(times, sampler, OUTSTANDING, 64, full=20, counted=counted)
        report.at_least(f"{sampler}: groups/s, {OUTSTANDING:,} outstanding", rate, BOUND)
    few = best_of(times, "in_order", OUTSTANDING, 512, full=20, counted=max(20, counted // 8))
    many = best_of(times, "in_order", 10 * OUTSTANDING, 512, full=20, counted=max(20, counted // 8))
    report.note("in_order: groups/s, steps of 512", few)
    report.at_most("cost of a group with ten times as many outstanding", few / many, COST_RATIO)


def idle(report, quick):
    for (sampler, window), table in MODEL.items():
        for (sigma, rho), expected in zip(CASES, table, strict=True):
            if quick and (sigma, rho) != (0.5, 1.25):
                continue
            runs = [
                Measured(sampler, window, sigma, rho, seed, 160).run() for seed in range(2 if quick else 8)
            ]
            seen = 100 * mean(run.idle_fraction for run in runs)
            chance = (
                200 * stdev(run.idle_fraction for run in runs) * math.sqrt(1 / len(runs) + 1 / MODEL_SEEDS)
            )
            name = f"{sampler} K={window} sigma={sigma} rho={rho}: idle"
            if sampler == "windowed":
                report.at_most(name, seen, 100 * expected + POINTS + chance, "%")
            else:
                report.near(name, seen, 100 * expected, POINTS + chance, "%")


def main():
    quick = arguments(__doc__).quick
    report = Report(f"simulator: {SHARDS} shards, {GENERATIONS} completions a group; idle beside the model")
    speed(report, quick)
    idle(report, quick)
    return report.exit_status()


if __name__ == "__main__":
    sys.exit(main())
