"""What goes wrong in the algorithms; each ends the run."""

from __future__ import annotations

from dataclasses import dataclass

from asyncrl_runtime.core.errors import RunError


@dataclass(eq=False)
class ShapeError(RunError):
    """An array does not have the shape that its role asks for."""

    array: str
    shape: tuple[int, ...]
    expected: tuple[int, ...]

    def __str__(self) -> str:
        return (
            f"{self.array} has shape {list(self.shape)} where {list(self.expected)} is needed; "
            "pass columns of the same rows"
        )


@dataclass(eq=False)
class MissingGroupTag(RunError):
    """Rows without a group id cannot be compared with their siblings (SC-11.16)."""

    rows: int
    tagged: int

    def __str__(self) -> str:
        return (
            f"{self.rows - self.tagged} of {self.rows} rows carry no group id; "
            "tag each row with group_id at commit"
        )


@dataclass(eq=False)
class ColumnsMismatch(RunError):
    """A consumer got other columns than those it declares (SC-11.17)."""

    consumer: str
    missing: tuple[str, ...]
    unknown: tuple[str, ...]
    declared: tuple[str, ...]

    def __str__(self) -> str:
        parts = [f"lacks {', '.join(self.missing)}"] if self.missing else []
        parts += [f"does not know {', '.join(self.unknown)}"] if self.unknown else []
        declared = ", ".join(self.declared) or "none"
        return f"{self.consumer} {' and '.join(parts)}; pass exactly the columns it declares: {declared}"


@dataclass(eq=False)
class NonFiniteRewards(RunError):
    """A reward is NaN or infinite, which would spoil every baseline it enters."""

    column: str
    rows: tuple[int, ...]

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.rows[:5])) + (" …" if len(self.rows) > 5 else "")
        return (
            f"{self.column} is NaN or infinite in {len(self.rows)} rows ({shown}); "
            "make the environment return finite rewards, or raise an error for completions it cannot score"
        )


@dataclass(eq=False)
class TooFewComponents(RunError):
    """GDPO combines reward components and has fewer than two (SC-11.28)."""

    components: tuple[str, ...]

    def __str__(self) -> str:
        found = ", ".join(self.components) or "none"
        return (
            f"estimator gdpo needs at least 2 reward components and found {len(self.components)} ({found}); "
            "let the environment return named components, or set spec.algorithm.grpo.advEstimator.name: grpo"
        )


@dataclass(eq=False)
class RewardWeightMismatch(RunError):
    """There is not one weight per reward component (SC-2.307)."""

    weights: int
    components: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"spec.algorithm.grpo.advEstimator.rewardWeights has {self.weights} entries for "
            f"{len(self.components)} reward components; give one per component in this order: "
            f"{', '.join(self.components)}"
        )


@dataclass(eq=False)
class TotalsMissing(RunError):
    """The likelihood term needs the counts of the optimizer step before its first micro-batch (SC-11.64)."""

    weight: float

    def __str__(self) -> str:
        return (
            f"spec.loss.positiveExampleNllWeight is {self.weight:g}, and the loss got no totals of the "
            "optimizer step; count them over all of its rows first"
        )


@dataclass(eq=False)
class NothingToNormalize(RunError):
    """No valid token is left to normalise by (SC-5.68)."""

    what: str

    def __str__(self) -> str:
        return (
            f"the optimizer step holds no valid {self.what}: every row is masked; check overlongFiltering, "
            "maskEnvFlaggedSamples, seqLogprobErrorThreshold and the loss multipliers of the data"
        )


@dataclass(eq=False)
class StatMismatch(RunError):
    """Parts of one metric were declared with different reductions (SC-11.69)."""

    metric: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"metric {self.metric} is declared as {self.first} and as {self.second}; give it one reduction"


@dataclass(eq=False)
class UnresolvedSetting(RunError):
    """A field whose default depends on others is unset."""

    path: str

    def __str__(self) -> str:
        return f"{self.path} is unset; resolve the spec before settings are taken from it"
