"""Names of the per-token columns, and who needs which (SC-11.1 to 11.5).

The names are those of `ports.columns`; the two layers do not import each other.
"""

from __future__ import annotations

from asyncrl_runtime.algorithms.settings import (
    EstimatorSettings,
    GaeSettings,
    LossSettings,
    OpdSettings,
    ReinforcePlusPlusSettings,
    StageSettings,
)

GENERATION_LOGPROBS = "generation_logprobs"
PREVIOUS_LOGPROBS = "previous_logprobs"
UNFILTERED_PREVIOUS_LOGPROBS = "unfiltered_previous_logprobs"
"""Previous log-probs before top-k/top-p filtering, for the KL term in the reward."""
REFERENCE_LOGPROBS = "reference_logprobs"
TEACHER_LOGPROBS = "teacher_logprobs"
VALUES = "values"
INVALID_TOOL_CALL = "invalid_tool_call"
"""1 on every token of an assistant message with an invalid tool call."""
MALFORMED_THINKING = "malformed_thinking"
"""1 on every token of an assistant message with malformed thinking."""


def estimator_columns(settings: EstimatorSettings) -> tuple[str, ...]:
    """Per-token columns that an estimator declares; it accepts exactly these."""
    match settings:
        case OpdSettings():
            return (PREVIOUS_LOGPROBS, TEACHER_LOGPROBS)
        case ReinforcePlusPlusSettings(kl=kl) | GaeSettings(kl=kl):
            critic = (VALUES,) if isinstance(settings, GaeSettings) else ()
            if kl is None:
                return critic
            policy = UNFILTERED_PREVIOUS_LOGPROBS if settings.filtered_sampling else PREVIOUS_LOGPROBS
            return (*critic, policy, REFERENCE_LOGPROBS)
        case _:
            return ()


def needs_previous_logprobs(loss: LossSettings, *, seq_error_threshold: float | None) -> bool:
    """Whether the policy's log-probs are computed before the updates (SC-11.2)."""
    return loss.ratio != "forced" or seq_error_threshold is not None


def stage_columns(settings: StageSettings, *, has_previous_logprobs: bool) -> frozenset[str]:
    """Per-token columns that the advantage stage fetches (SC-11.5)."""
    names = set(estimator_columns(settings.estimator))
    if has_previous_logprobs:
        names |= {GENERATION_LOGPROBS, PREVIOUS_LOGPROBS}
    if settings.invalid_tool_call_advantage is not None:
        names.add(INVALID_TOOL_CALL)
    if settings.malformed_thinking_advantage is not None:
        names.add(MALFORMED_THINKING)
    return frozenset(names)
