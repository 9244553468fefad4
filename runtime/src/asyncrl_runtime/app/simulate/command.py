"""`asyncrl simulate`: samplers and settings compared before anything is paid for (CLI-3)."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from asyncrl_api.derived import Derived
from asyncrl_runtime.adapters.sinks.lines import write_whole
from asyncrl_runtime.app.beside import import_from
from asyncrl_runtime.app.manifest import ManifestError
from asyncrl_runtime.app.simulate.compare import Plan, Progress, compare, steps_of, warm_up_of
from asyncrl_runtime.app.simulate.durations import read_duration
from asyncrl_runtime.app.simulate.faults import check_shards, read_faults
from asyncrl_runtime.app.simulate.figures import Result
from asyncrl_runtime.app.simulate.reading import reading
from asyncrl_runtime.app.simulate.run import Durations
from asyncrl_runtime.app.simulate.settings import Setting, settings
from asyncrl_runtime.app.simulate.table import show
from asyncrl_runtime.app.simulate.words import OptionInvalid
from asyncrl_runtime.core.errors import RunError

OK, LOSSES, INVALID, FAILED, INTERRUPTED = 0, 1, 2, 3, 130
JSON_FILE = "simulate.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The command line."""

    path: Path
    sets: Sequence[str]
    sweeps: Sequence[str]
    generation_seconds: str
    train_seconds: str
    refit_seconds: str
    faults: Sequence[str]
    steps: int | None
    prompts: int | None
    seed: int
    output: Path | None
    as_json: bool
    quiet: bool
    verbose: bool


def simulate_command(request: Request) -> int:
    """Simulate and show; the exit status."""
    try:
        plan, found = _prepare(request)
    except ManifestError as error:
        sys.stderr.write(f"{error}\n")
        return INVALID
    except OptionInvalid as error:
        sys.stderr.write(f"error: {error}\n")
        return INVALID
    try:
        with _progress(request) as progress:
            results = compare(found, plan, progress)
        lines = reading(results)
        written = _write(results, request.output)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: nothing was written\n")
        return INTERRUPTED
    except (RunError, OSError) as error:
        if request.verbose:
            traceback.print_exception(error, file=sys.stderr)
        out = "; choose another folder with --output" if isinstance(error, OSError) else ""
        sys.stderr.write(f"error: {error}{out}\n")
        return FAILED
    if request.as_json:
        sys.stdout.write(json.dumps([result.to_json() for result in results], indent=2) + "\n")
    else:
        show(results, lines, preamble=_preamble(found, plan))
        if written and not request.quiet:
            sys.stdout.write(f"written: {', '.join(map(str, written))}\n")
    return _status(results)


def _prepare(request: Request) -> tuple[Plan, list[Setting]]:
    """Everything that can be wrong on the command line or in the manifest is found here."""
    durations = Durations(
        generation=read_duration("--generation-seconds", request.generation_seconds),
        training=read_duration("--train-seconds", request.train_seconds),
        refit=read_duration("--refit-seconds", request.refit_seconds),
    )
    scenario = read_faults(request.faults)
    import_from(request.path.resolve().parent)
    found = settings(request.path, request.sets, request.sweeps, scenario)
    for setting in found:
        check_shards(scenario, setting.job.spec.generation.shards)
        least = Derived(setting.job.spec).num_prompts_per_step
        if request.prompts is not None and request.prompts < least:
            raise OptionInvalid(
                "--prompts", str(request.prompts), f"a step takes {least} (numPromptsPerStep); give that many"
            )
    return (
        Plan(
            durations=durations,
            scenario=scenario,
            seed=request.seed,
            steps=request.steps,
            prompts=request.prompts,
        ),
        found,
    )


def _preamble(found: Sequence[Setting], plan: Plan) -> str:
    """What was simulated, and what of it was cut."""
    first, facts = found[0].job, Derived(found[0].job.spec)
    shards, inflight = first.spec.generation.shards, first.spec.async_rl.max_inflight_prompts
    steps, asked = steps_of(found[0], plan)
    cut = f" of {asked} (--steps N for more)" if steps < asked and plan.steps is None else ""
    durations = plan.durations
    faults = f"; faults: {' '.join(plan.scenario.texts)}" if plan.scenario.texts else ""
    return (
        f"{first.metadata.name}: {steps} steps{cut}, the first {warm_up_of(steps)} not counted, of "
        f"{facts.num_prompts_per_step} groups × {facts.num_generations_per_prompt}; "
        f"{shards} shard(s), {inflight} groups in flight; "
        f"generation {durations.generation.text}, training {durations.training.text}, "
        f"refit {durations.refit.text} s; seed {plan.seed}{faults}"
    )


def _write(results: Sequence[Result], folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    from asyncrl_runtime.app.simulate.chart import write_charts

    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps([result.to_json() for result in results], indent=2) + "\n"
    write_whole(folder / JSON_FILE, text.encode())
    return [folder / JSON_FILE, *write_charts(results, folder)]


def _status(results: Sequence[Result]) -> int:
    """3 if nothing came through, with the cause on the last line; 1 if something did not."""
    ended = [result for result in results if result.outcome != "complete"]
    if not ended:
        return OK
    if len(ended) == len(results):
        sys.stderr.write(f"error: {ended[0].setting.name}: {ended[0].failure}\n")
        return FAILED
    return LOSSES


@contextmanager
def _progress(request: Request) -> Iterator[Progress]:
    """A bar on a terminal, nothing elsewhere: the whole takes seconds."""
    if request.quiet or request.as_json or not sys.stderr.isatty():
        yield lambda setting, done, steps: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("steps"),
               TimeRemainingColumn())  # fmt: skip
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[int, int] = {}

        def tell(setting: Setting, done: int, steps: int) -> None:
            task = tasks.get(id(setting))
            if task is None:
                task = tasks[id(setting)] = bars.add_task(setting.name, total=steps)
            bars.update(task, completed=done)  # type: ignore[arg-type]

        yield tell
