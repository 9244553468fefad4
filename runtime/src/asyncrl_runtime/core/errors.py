"""Errors that the runtime raises on purpose, and the two classes of rollout failures."""

from __future__ import annotations

from dataclasses import dataclass


class RunError(Exception):
    """Ends the run; its text is the last line that the user sees: what happened, the bound, the way out."""


class RolloutFailure(Exception):
    """A rollout attempt failed."""


class InfraFailure(RolloutFailure):
    """The machinery failed: worth another attempt elsewhere after a while (SC-8.20)."""


class DataFailure(RolloutFailure):
    """The prompt, its completion or the code that judges it is at fault."""


@dataclass(eq=False)
class WorkerDied(InfraFailure):
    """A worker process ended while it was needed."""

    worker: str
    exit_code: int | None
    detail: str = ""

    def __str__(self) -> str:
        code = "without an exit code" if self.exit_code is None else f"with exit code {self.exit_code}"
        return f"{self.worker} ended {code}{': ' + self.detail if self.detail else ''}"


@dataclass(eq=False)
class DeadlinePassed(InfraFailure):
    """Something outside this process did not answer in time."""

    what: str
    seconds: float
    setting: str
    """The field that holds the bound."""

    def __str__(self) -> str:
        return (
            f"{self.what} did not answer within {self.seconds:g} s; raise {self.setting} if that is too short"
        )


@dataclass(eq=False)
class _Unjudged(RolloutFailure):
    """A completion was not scored."""

    environment: str
    function: str
    prompt: str
    problem: str

    def __str__(self) -> str:
        return f"{self.function} of environment {self.environment} {self.problem} for prompt {self.prompt}"


class EnvironmentFailure(_Unjudged, DataFailure):
    """A user's or an environment's function could not score a completion."""


class EnvironmentUnavailable(_Unjudged, InfraFailure):
    """The function did not answer in time, or its process ended: another attempt may be judged (SC-8.20)."""


@dataclass(eq=False)
class SourceFailure(RunError):
    """A dataset cannot be read."""

    source: str
    problem: str

    def __str__(self) -> str:
        return f"{self.source}: {self.problem}"


@dataclass(eq=False)
class TrainerFailure(RunError):
    """A call of the trainer failed."""

    call: str
    problem: str

    def __str__(self) -> str:
        return (
            f"the trainer failed in {self.call}: {self.problem}; "
            "run the job again, it goes on from its newest checkpoint"
        )


@dataclass(eq=False)
class NonFiniteStep(TrainerFailure):
    """Loss or gradient is NaN or infinite; the step was not applied."""

    def __str__(self) -> str:
        return (
            f"{self.problem}; the optimizer step was not applied and the parameters are unchanged; "
            "lower spec.training.optimizer.lr, or check rewards and advantages of the step"
        )


@dataclass(eq=False)
class ShardUnavailable(InfraFailure):
    """A generation could not be completed on its shard; another one may do it."""

    shard: int
    state: str
    """Of the shard, after the failure."""

    problem: str
    uncharged: bool = False
    """A refit is being repaired: the attempt costs its prompt nothing (SC-6.52)."""

    def __str__(self) -> str:
        return f"generation shard {self.shard} ({self.state}): {self.problem}"


@dataclass(eq=False)
class NoServingShard(InfraFailure):
    """No shard receives requests at the moment."""

    states: str
    last: str

    def __str__(self) -> str:
        return f"no generation shard serves ({self.states}); the last error was: {self.last}"


@dataclass(eq=False)
class FleetExhausted(RunError):
    """Too few generation shards are left (SC-8.47)."""

    shards: int
    last: str
    """Why a shard was lost."""

    serving: int = 0
    minimum: int = 1
    states: str = ""
    """Shards by state; empty when their health is not watched."""

    def __str__(self) -> str:
        out = "run the job again, it goes on from its newest checkpoint"
        if not self.states:
            return f"all {self.shards} generation shards have ended ({self.last}); {out}"
        return (
            f"{self.serving} of {self.shards} generation shards serve ({self.states}), fewer than "
            f"spec.asyncRL.generationFleetHealth.minHealthyShards {self.minimum}; the last error was: "
            f"{self.last}; {out}"
        )


@dataclass(eq=False)
class RefitAborted(RunError):
    """A weight transfer did not land: whoever received may hold a mixture of old and new weights."""

    version: int
    problem: str

    def __str__(self) -> str:
        return (
            f"weights of version {self.version} did not land: {self.problem}; "
            "run the job again, it goes on from its newest checkpoint"
        )


@dataclass(eq=False)
class RefitIncomplete(RefitAborted):
    """A weight transfer ended without the acknowledgement of some receivers; the others are whole."""

    acknowledged: tuple[int, ...] = ()
    """Shards that hold the complete new weights."""

    died: tuple[int, ...] = ()
    """Shards that are known to have ended; the others without acknowledgement were silent or refused."""


@dataclass(eq=False)
class RefitFailed(RefitAborted):
    """A weight transfer did not land in spite of all repairs (SC-8.48). Its causes are chained."""

    attempts: int = 1

    def __str__(self) -> str:
        return (
            f"weights of version {self.version} did not land in {self.attempts} attempts: {self.problem}; "
            "repair the fleet or raise spec.asyncRL.refit.maxRetries, then run the job again: it goes on "
            "from its newest checkpoint"
        )


@dataclass(eq=False)
class RowsMissing(RunError):
    """The data plane lacks rows or columns that were asked for."""

    missing: tuple[str, ...]
    held: int

    def __str__(self) -> str:
        shown = ", ".join(self.missing[:5]) + (" …" if len(self.missing) > 5 else "")
        return (
            f"the data plane lacks {len(self.missing)} of the rows or columns asked for ({shown}); "
            f"it holds {self.held} rows"
        )


@dataclass(eq=False)
class PromptFailed(RunError):
    """A prompt used up its attempts."""

    prompt: str
    attempts: int
    kind: str
    setting: str
    """The field that bounds the attempts."""

    budget_setting: str
    """The field that bounds how many prompts may be given up."""

    budget: int
    cause: str

    def __str__(self) -> str:
        return (
            f"prompt {self.prompt} failed for good after {self.attempts} attempts ({self.kind}): "
            f"{self.cause}; repair the cause, raise {self.setting}, or let the run give prompts up with "
            f"{self.budget_setting} (now {self.budget}, spent)"
        )


@dataclass(eq=False)
class StepBelowFloor(RunError):
    """A step lost more groups than it may close without (SC-5.51, 8.43)."""

    step: int
    lost: int
    remaining: int
    floor: int
    fraction: float

    def __str__(self) -> str:
        return (
            f"step {self.step} lost {self.lost} prompt groups, leaving {self.remaining}, and may not close "
            f"on fewer than {self.floor} "
            f"(spec.asyncRL.rolloutFailure.minStepBatchFraction {self.fraction:g}): "
            "repair what makes prompts fail (events.jsonl names each), lower the fraction, or set "
            "onDroppedPrompt to replace"
        )


@dataclass(eq=False)
class NothingToTrain(RunError):
    """Every token of a step is masked (SC-5.68)."""

    step: int
    groups: int
    masked: str

    def __str__(self) -> str:
        return (
            f"step {self.step} has no token to train on in {self.groups} prompt groups ({self.masked}); "
            "check overlongFiltering, maskEnvFlaggedSamples, seqLogprobErrorThreshold and the data"
        )


@dataclass(eq=False)
class DataExhausted(RunError):
    """The data ended inside a step (SC-5.59, 8.45)."""

    step: int
    groups: int
    target: int
    buffered: int
    sampler: str

    def __str__(self) -> str:
        return (
            f"the data ended in step {self.step} with {self.groups}/{self.target} prompt groups and "
            f"{self.buffered} buffered under sampler {self.sampler}; add prompts or epochs, or set "
            "spec.asyncRL.finalPartialStep to train or discard"
        )


@dataclass(eq=False)
class ValidationFailed(RunError):
    """A validation could not be carried out and failureAction is abort (SC-5.96)."""

    step: int
    cause: str

    def __str__(self) -> str:
        return (
            f"validation after step {self.step} failed: {self.cause}; repair the cause, or set "
            "spec.validation.failureAction to warn"
        )
