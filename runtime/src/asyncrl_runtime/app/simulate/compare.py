"""Runs every setting of a comparison, one after the other, on a virtual clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from asyncrl_api.derived import Derived
from asyncrl_api.job import JobSpec
from asyncrl_runtime.adapters.virtual_clock import Stalled, run_virtual
from asyncrl_runtime.app.build import clamped_steps
from asyncrl_runtime.app.simulate.faults import Scenario
from asyncrl_runtime.app.simulate.figures import Outcome, Result, figures_of
from asyncrl_runtime.app.simulate.run import Durations, Simulation
from asyncrl_runtime.app.simulate.settings import Setting
from asyncrl_runtime.app.simulate.shards import SimulatedStall
from asyncrl_runtime.core.errors import RunError

DEFAULT_STEPS, DEFAULT_GROUPS = 400, 40_000
WARM_UP_STEPS, WARM_UP_SHARE = 20, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What every run of a comparison shares."""

    durations: Durations
    scenario: Scenario
    seed: int
    steps: int | None = None
    """None: those of the manifest, up to a cap."""

    prompts: int | None = None


Progress = Callable[[Setting, int, int], None]
"""Told the setting, steps done, steps in all."""


def steps_of(setting: Setting, plan: Plan) -> tuple[int, int]:
    """Steps of the run, and those that the manifest asks for."""
    spec, facts = setting.job.spec, Derived(setting.job.spec)
    asked = facts.valid_algorithm.max_num_steps
    if plan.prompts is not None:
        asked = clamped_steps(spec, plan.prompts)
    if plan.steps is not None:
        return (min(plan.steps, asked) if plan.prompts is not None else plan.steps), asked
    by_groups = max(20, DEFAULT_GROUPS // facts.num_prompts_per_step)
    return min(asked, DEFAULT_STEPS, by_groups), asked


def warm_up_of(steps: int) -> int:
    """First steps that do not count: the pipeline fills."""
    return min(WARM_UP_STEPS, steps // WARM_UP_SHARE)


def compare(
    settings: Sequence[Setting], plan: Plan, progress: Progress = lambda setting, done, steps: None
) -> list[Result]:
    """One result per setting, in order."""
    return [run_setting(setting, plan, progress) for setting in settings]


def run_setting(setting: Setting, plan: Plan, progress: Progress) -> Result:
    """Simulate one setting; how it ended is part of the result."""
    steps, _ = steps_of(setting, plan)
    simulation = Simulation(
        spec=_with_steps(setting, steps),
        durations=plan.durations,
        scenario=plan.scenario,
        seed=plan.seed,
        prompts=plan.prompts,
        warm_up_steps=warm_up_of(steps),
        finished=lambda step, metrics: progress(setting, step.version + 1, steps),
    )
    began = perf_counter()
    outcome, failure = _outcome(simulation)
    seconds = perf_counter() - began
    return Result(
        setting=setting,
        inputs=_inputs(setting, plan, steps, simulation),
        figures=figures_of(simulation),
        outcome=outcome,
        failure=failure,
        wall_seconds=seconds,
        groups_per_wall_second=simulation.work.totals.trained_groups / seconds,
    )


def _outcome(simulation: Simulation) -> tuple[Outcome, str | None]:
    """Run to the end. An error that the user can cause is a finding; any other is a defect and goes on."""
    try:
        end = run_virtual(simulation.run())
    except Stalled as stall:
        return "stalled", (
            f"at {stall.seconds:g} s everything waited for a rollout that never ends; set "
            "spec.asyncRL.rolloutFailure.native.generationTimeoutSeconds"
        )
    except SimulatedStall as stall:
        return "stalled", str(stall)
    except RunError as error:
        return "failed", str(error)
    if end == "data_exhausted":
        return "complete", f"the data ended after {simulation.work.totals.steps} steps"
    return "complete", None


def _with_steps(setting: Setting, steps: int) -> JobSpec:
    spec, facts = setting.job.spec, Derived(setting.job.spec)
    block = facts.valid_algorithm.model_copy(update={"max_num_steps": steps})
    algorithm = spec.algorithm.model_copy(update={"ppo" if facts.is_ppo else "grpo": block})
    return spec.model_copy(update={"algorithm": algorithm})


def _inputs(setting: Setting, plan: Plan, steps: int, simulation: Simulation) -> dict[str, object]:
    spec, facts = setting.job.spec, Derived(setting.job.spec)
    return {
        "job": setting.job.metadata.name,
        "steps": steps,
        "warm_up_steps": simulation.warm_up_steps,
        "prompts": plan.prompts,
        "seed": plan.seed,
        "generation_seconds": plan.durations.generation.text,
        "train_seconds": plan.durations.training.text,
        "refit_seconds": plan.durations.refit.text,
        "faults": list(plan.scenario.texts),
        "shards": spec.generation.shards,
        "prompts_per_step": facts.num_prompts_per_step,
        "generations_per_prompt": facts.num_generations_per_prompt,
        "smallest_chunk_groups": facts.min_groups,
        "max_inflight_prompts": spec.async_rl.max_inflight_prompts,
        "buffer_groups": facts.buffer_size,
    }
