"""Settings of the torch adapters: plain data that travels to worker processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from asyncrl_runtime.adapters.torch.shape import DecoderShape

Device = Literal["cpu", "cuda", "auto"]
"""`auto` is cuda where there is one, else cpu."""

DType = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True)
class TorchModelSettings:
    """Which model, and where it computes. Either `folder` or `shape`."""

    folder: str | None = None
    """A Hugging Face folder, or a name that the Hub or its local cache resolves."""

    shape: DecoderShape | None = None
    """Weights drawn at random from `seed`."""

    seed: int = 0
    dtype: DType = "float32"
    device: Device = "cpu"


@dataclass(frozen=True, slots=True)
class Tail:
    """Holds requests back as if their generation took longer; the slot stays taken. For demos and benchmarks.

    Either a share of requests (`probability`) is held for `seconds` after its last token, or each request
    lasts at least a lognormal time (`median_seconds`, `sigma`) from its start. Drawn from the request's seed.
    """

    probability: float = 0.0
    seconds: float = 0.0
    median_seconds: float = 0.0
    sigma: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """One generation shard."""

    model: TorchModelSettings
    max_sequence_tokens: int
    """Prompt and completion together."""

    end_token_ids: tuple[int, ...] = ()
    """End every completion, whatever its request says."""

    max_running_requests: int = 256
    max_prefill_tokens: int = 16_384
    """Padded prompt tokens computed between two decoding steps."""

    num_threads: int = 1
    tail: Tail | None = None
    decoder: tuple[Callable[..., Callable[[list[int]], str]], tuple[Any, ...]] | None = None
    """Module-level callable and its arguments: builds tokens-to-text, which stop strings need."""


_ENGINE_ARGS = {
    "maxRunningRequests": "max_running_requests",
    "maxPrefillTokens": "max_prefill_tokens",
    "numThreads": "num_threads",
}
_TAIL_ARGS = {
    "probability": "probability",
    "seconds": "seconds",
    "medianSeconds": "median_seconds",
    "sigma": "sigma",
}


def engine_args(args: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `EngineSettings` from spec.generation.engineArgs of backend torch.

    Raises:
        ValueError: an unknown key (the known ones are named), or a value out of range.
    """
    where = "spec.generation.engineArgs"
    _refuse_unknown(args, {*_ENGINE_ARGS, "tail"}, where)
    fields: dict[str, Any] = {}
    for key, name in _ENGINE_ARGS.items():
        if key in args:
            value = args[key]
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{where}.{key} must be a whole number of at least 1, not {value!r}")
            fields[name] = value
    if args.get("tail") is not None:
        fields["tail"] = _tail(args["tail"], f"{where}.tail")
    return fields


def _tail(args: Mapping[str, Any], where: str) -> Tail:
    if not isinstance(args, Mapping):
        raise ValueError(f"{where} must be an object with {' and '.join(_TAIL_ARGS)}, not {args!r}")
    _refuse_unknown(args, set(_TAIL_ARGS), where)
    for key, value in args.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise ValueError(f"{where}.{key} must be a number of at least 0, not {value!r}")
    if set(args) not in ({"probability", "seconds"}, {"medianSeconds", "sigma"}):
        raise ValueError(
            f"{where} needs probability and seconds, or medianSeconds and sigma; it has {sorted(args)}"
        )
    if args.get("probability", 0) > 1:
        raise ValueError(f"{where}.probability must be at most 1, not {args['probability']!r}")
    return Tail(**{_TAIL_ARGS[key]: float(value) for key, value in args.items()})


def _refuse_unknown(args: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(args) - known)
    if unknown:
        raise ValueError(
            f"{where} has unknown keys {', '.join(unknown)}; known ones are {', '.join(sorted(known))}"
        )


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """AdamW and its learning-rate schedule; one tick per optimizer step."""

    lr: float = 1e-3
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    total_steps: int | None = None
    """Where linear and cosine end; they need it."""

    min_lr: float = 0.0
    max_grad_norm: float | None = 1.0
    """None: gradients are not clipped."""


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """One trainer of the policy. `loss` is a `LossSettings` of the algorithms."""

    model: TorchModelSettings
    loss: Any
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    micro_batch_rows: int = 64
    logprob_batch_rows: int = 64
    """Rows of a micro-batch where log-probs are only read."""

    micro_batch_tokens: int | None = None
    """Bound on the tokens of a micro-batch, padding included, in place of a number of rows."""

    packing: bool = False
    """A micro-batch is one row of sequences back to back, of at most `micro_batch_tokens`."""

    sort_by_length: bool = True
    pad_to_multiple: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    reference: bool = False
    """Keep a frozen copy of the initial policy."""

    precision: DType = "float32"
    """Of products; parameters, gradients and moments are float32. `model.dtype` is what shards get."""

    num_threads: int = 1
    seed: int = 0
