"""The command line. Each command imports what it needs when it is called: `--help` must be quick."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

STARTED = time.monotonic()
"""When the command was given."""

app = typer.Typer(
    name="asyncrl",
    help="Asynchronous RL post-training of language models, from an AsyncRLJob manifest.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Manifest = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The AsyncRLJob manifest.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="PATH=VALUE", help="Override a field, e.g. spec.training.optimizer.lr=0.001."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only what must be seen.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Show tracebacks and details.")]


@app.command(epilog="Example: asyncrl run crds/samples/reverse-digits.yaml --set spec.data.seed=7")
def run(
    job: Manifest,
    sets: Sets = None,
    output: Annotated[
        Path | None, typer.Option(help="Run folder. Default: runs/<metadata.name>.", file_okay=False)
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start anew, in a new folder; deletes nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json at the end.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run a job on this machine; resumes from its newest valid checkpoint."""
    from asyncrl_runtime.app.commands import run_command

    raise typer.Exit(
        run_command(job, sets or [], output, fresh=fresh, as_json=as_json, quiet=quiet, verbose=verbose)
    )


@app.command(epilog="Example: asyncrl validate job.yaml --json")
def validate(job: Manifest, sets: Sets = None, as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Check a manifest as the cluster would, and print what follows from it."""
    from asyncrl_runtime.app.validate import validate_command

    raise typer.Exit(validate_command(job, sets or [], as_json=as_json, verbose=verbose))


@app.command(
    epilog="Example: asyncrl simulate job.yaml --generation-seconds 'lognormal:median=8,p99=60' "
    "--train-seconds 10 --sweep asyncRL.sampler.maxLookaheadVersions=0,1,2,4"
)
def simulate(
    job: Manifest,
    generation_seconds: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="Of one completion, all of its turns together.",
        ),
    ] = "lognormal:median=8,p99=60",
    train_seconds: Annotated[
        str, typer.Option(metavar="DURATION", help="Of an RL step without waiting for data.")
    ] = "10",
    refit_seconds: Annotated[str, typer.Option(metavar="DURATION", help="Of a weight transfer.")] = "1",
    fail: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FAULT",
            help="What goes wrong; repeatable.",
        ),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH=V1,V2", help="Compare values of a field; several make a grid.", show_default=False
        ),
    ] = None,
    sets: Sets = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="RL steps. Default: the manifest's, up to 400.")
    ] = None,
    prompts: Annotated[
        int | None, typer.Option(min=1, help="Size of the data set. Default: the data do not end.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same figures.")] = 0,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for simulate.json, simulate.svg and simulate.png.", file_okay=False),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Compare samplers and settings on a virtual clock, without engines.

    The real controller, pumps and samplers run; generation, training and weight transfers only take time.
    The fleet serves up to asyncRL.maxInflightPrompts groups at once, and a completion takes as long however
    many run beside it; a group takes as long as the slowest of its completions. Every setting meets the same
    durations. Unless the sampler is swept, the manifest's is compared with the others at the same window.

    \b
    DURATION, in seconds:
      10, constant:10
      lognormal:median=8,p99=60   or median and sigma, or mean and sigma
      exponential:mean=10
      pareto:min=5,alpha=1.5
      bimodal:short=5,long=60,share=0.1
      uniform:min=5,max=15
      trace:FILE                  one number a line

    \b
    FAULT:
      rollout-error:probability=0.01     also kind=data
      hang:probability=0.001
      shard-death:shard=0,at=600         or every=3600; restart=60
      shard-freeze:every=3600,for=120    or shard=0,at=600
      shard-slow:shard=0,factor=3        also at=600,for=120
      refit-error:probability=0.01
      train-step-error:probability=0.01
    """
    from asyncrl_runtime.app.simulate.command import Request, simulate_command

    raise typer.Exit(
        simulate_command(
            Request(
                path=job,
                sets=sets or [],
                sweeps=sweep or [],
                generation_seconds=generation_seconds,
                train_seconds=train_seconds,
                refit_seconds=refit_seconds,
                faults=fail or [],
                steps=steps,
                prompts=prompts,
                seed=seed,
                output=output,
                as_json=as_json,
                quiet=quiet,
                verbose=verbose,
            )
        )
    )


@app.command(epilog="Example: asyncrl chaos job.yaml --seed 3 --faults kill-shard,freeze-shard,kill-run")
def chaos(
    job: Manifest,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same plan of faults.")] = 0,
    faults: Annotated[
        str, typer.Option(metavar="WORD,…", help="What may go wrong. Default: all that the job can survive.")
    ] = "",
    count: Annotated[int, typer.Option(min=0, help="Faults in all.")] = 8,
    mean_gap_seconds: Annotated[float, typer.Option(min=0.01, help="Mean time between two of them.")] = 3.0,
    timeout_seconds: Annotated[
        float, typer.Option(min=1, help="The run must have ended by itself by then.")
    ] = 600.0,
    sets: Sets = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Run folder, empty. Default: runs/<metadata.name>-chaos-<seed>.", file_okay=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a job while its processes are killed, frozen and slowed, and its checkpoints corrupted.

    For developers. Prints what was done, in what time the run noticed and recovered, and the prompt ledger;
    status 0 means that the run was completed, no prompt was lost and none was trained on twice. Ends only
    processes of the run that it started.

    \b
    WORD:
      kill-shard, freeze-shard, slow-shard
      kill-environment, freeze-environment
      kill-trainer, freeze-trainer, slow-trainer
      kill-advantages
      kill-run, stop-run, freeze-run
      corrupt-checkpoint, corrupt-snapshot
    """
    from asyncrl_runtime.app.chaos.command import chaos_command

    raise typer.Exit(
        chaos_command(
            job,
            sets or [],
            seed=seed,
            faults=[word.strip() for word in faults.split(",") if word.strip()],
            count=count,
            mean_gap_seconds=mean_gap_seconds,
            timeout_seconds=timeout_seconds,
            output=output,
            as_json=as_json,
        )
    )


@app.command(epilog="Example: asyncrl controller --job /etc/asyncrl/job.json --output /checkpoints/digits")
def controller(
    job: Annotated[Path, typer.Option(help="The AsyncRLJob manifest, YAML or JSON.")],
    output: Annotated[
        Path | None, typer.Option(help="Run folder. Default: runs/<metadata.name>.", file_okay=False)
    ] = None,
    address: Annotated[str, typer.Option(help="Where the servers listen.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="Of the control API.")] = 8091,
    health_port: Annotated[int, typer.Option(help="Of the health service, which asks for no token.")] = 8092,
    token_file: Annotated[
        Path | None, typer.Option(help="Holds the bearer token. Default: $ASYNCRL_CONTROL_TOKEN.")
    ] = None,
    tls_certificate: Annotated[Path | None, typer.Option(help="Encrypt the control API.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Key of the certificate.")] = None,
    generation: Annotated[
        int, typer.Option(help="metadata.generation of the manifest. Default: as it stands there.")
    ] = 0,
    ray_folder: Annotated[
        Path, typer.Option(help="In a pod: shared with Ray's container, which waits for the controller.")
    ] = Path("/tmp/ray"),
    in_pod: Annotated[
        bool | None,
        typer.Option(
            "--in-pod/--no-in-pod",
            help="End with 0 whenever the run is over; the real code is in the termination message. "
            "Default: whether $ASYNCRL_POD is set.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a job under the control API: what the controller container of a job's head pod runs."""
    from asyncrl_runtime.app.control.command import ControllerOptions, controller_command

    raise typer.Exit(
        controller_command(
            ControllerOptions(
                job=job,
                output=output,
                address=address,
                port=port,
                health_port=health_port,
                token_file=token_file,
                tls_certificate=tls_certificate,
                tls_key=tls_key,
                generation=generation,
                ray_folder=ray_folder,
                in_pod=bool(os.environ.get("ASYNCRL_POD")) if in_pod is None else in_pod,
            )
        )
    )


@app.command(epilog="Example: asyncrl init reverse > job.yaml")
def init(
    task: Annotated[
        str | None, typer.Argument(help="What to learn; without it the tasks are listed.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="File to write. Default: the terminal.")] = None,
) -> None:
    """Write a commented starter manifest that runs as it is."""
    from asyncrl_runtime.app.commands import init_command

    raise typer.Exit(init_command(task, output))


@app.command(name="import", epilog="Example: asyncrl import grpo.yaml --output job.yaml")
def import_(
    config: Annotated[Path, typer.Argument(metavar="NEMO.yaml", help="The reference's YAML.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write. Default: the terminal.")
    ] = None,
    lossy: Annotated[
        bool, typer.Option("--lossy", help="Exit with 0 even if settings that change the run were lost.")
    ] = False,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the job. Default: that of the file.")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Make a manifest of the reference's YAML, and list what could not be carried over."""
    from asyncrl_runtime.app.nemo.command import import_command

    raise typer.Exit(import_command(config, output, lossy=lossy, name=name, verbose=verbose))


@app.command(epilog="Example: asyncrl explain spec.asyncRL.sampler")
def explain(path: Annotated[str, typer.Argument(help="A field, e.g. spec.asyncRL.sampler.")] = "") -> None:
    """Show the documentation of a field."""
    from asyncrl_runtime.app.commands import explain_command

    raise typer.Exit(explain_command(path))


@app.command(epilog="Example: asyncrl report runs/reverse-digits runs/reverse-digits-2")
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; several are compared.")],
    output: Annotated[
        Path | None, typer.Option(help="HTML file. Default: report.html in the first folder.")
    ] = None,
    png: Annotated[bool, typer.Option("--png", help="Write PNG pictures beside it.")] = False,
) -> None:
    """Write one self-contained HTML file about a run."""
    from asyncrl_runtime.app.commands import report_command

    raise typer.Exit(report_command(runs, output, png=png))


@app.command(epilog="Example: asyncrl status runs/reverse-digits")
def status(
    run_dir: Annotated[
        Path | None, typer.Argument(help="Run folder. Default: the newest under runs/.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Describe a running or finished run."""
    from asyncrl_runtime.app.commands import status_command

    raise typer.Exit(status_command(run_dir, as_json=as_json))


@app.command(epilog="Example: asyncrl tail runs/reverse-digits")
def tail(
    run_dir: Annotated[
        Path | None, typer.Argument(help="Run folder. Default: the newest under runs/.")
    ] = None,
) -> None:
    """Follow the events of a run."""
    from asyncrl_runtime.app.commands import tail_command

    raise typer.Exit(tail_command(run_dir))


@app.command(epilog="Example: asyncrl crd | kubectl apply -f -")
def crd(as_json: AsJson = False) -> None:
    """Print the CustomResourceDefinition."""
    from asyncrl_runtime.app.commands import crd_command

    raise typer.Exit(crd_command(as_json=as_json))


@app.command(epilog="Example: asyncrl schema > asyncrljob.schema.json")
def schema() -> None:
    """Print a JSON schema for editors."""
    from asyncrl_runtime.app.commands import schema_command

    raise typer.Exit(schema_command())
