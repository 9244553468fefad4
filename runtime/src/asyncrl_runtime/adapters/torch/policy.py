"""Training a policy: log-probs, and the split optimizer step."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from asyncrl_runtime.adapters.torch.batching import Rows, micro_batches
from asyncrl_runtime.adapters.torch.interface import Model
from asyncrl_runtime.adapters.torch.optimizer import FlatAdamW
from asyncrl_runtime.adapters.torch.precision import Arithmetic
from asyncrl_runtime.adapters.torch.ranks import Ranks
from asyncrl_runtime.adapters.torch.sampling import filtered
from asyncrl_runtime.adapters.torch.settings import TrainerSettings
from asyncrl_runtime.adapters.torch.weight_buffers import WeightWriter
from asyncrl_runtime.algorithms.columns import UNFILTERED_PREVIOUS_LOGPROBS
from asyncrl_runtime.algorithms.losses import count_totals, policy_loss, policy_metrics
from asyncrl_runtime.algorithms.metrics import Stat, Totals, normalizer
from asyncrl_runtime.algorithms.surrogate import PolicyBatch
from asyncrl_runtime.core.errors import NonFiniteStep, TrainerFailure
from asyncrl_runtime.ports import columns as col
from asyncrl_runtime.ports.columns import Columns, Jagged

_FLOPS_PER_TOKEN = 6
"""Per parameter: two for the forward pass, four for the backward pass."""

Report = tuple[dict[str, float], int, int]
"""Fields of a `StepReport`."""


@dataclass(slots=True)
class _OpenStep:
    positive_tokens: float | None
    totals: Totals = field(default_factory=lambda: Totals(0.0, 0.0, 0.0))
    parts: list[Mapping[str, Stat]] = field(default_factory=list)
    flops: float = 0.0
    chunks: list[tuple[Rows, Totals | None]] = field(default_factory=list)
    """Kept where a gradient may overflow its scale, to be computed again under a smaller one."""


class PolicyTrainer:
    """One policy, its frozen reference if there is one, and its optimizer. One thread of calls.

    As one of several ranks it computes the rows that it is given; what it reports is of all ranks.
    """

    def __init__(self, model: Model, settings: TrainerSettings, ranks: Ranks | None = None) -> None:
        """Takes the model, in float32, over: its parameters become views of one flat tensor.

        Raises:
            PackingUnsupported, PrecisionUnsupported: the settings ask for what model or device lack.
        """
        self.arithmetic = Arithmetic(settings.precision, next(model.parameters()).device)
        if settings.packing:
            model.check_packing()
        self.model = model
        self.reference: Model | None = None
        if settings.reference:
            self.reference = copy.deepcopy(model).requires_grad_(False)
        self.weights = WeightWriter(model, getattr(torch, settings.model.dtype))
        self.ranks = ranks or Ranks()
        owned = self.ranks.slice_of(self.weights.flat.numel())
        self.optimizer = FlatAdamW(model, self.weights.flat, settings.optimizer, owned=owned)
        self.settings = settings
        self._device = self.weights.flat.device
        self._step: _OpenStep | None = None

    @torch.no_grad()
    def logprobs(self, columns: Columns, models: frozenset[str]) -> dict[str, Jagged]:
        """Columns of log-probs under the policy as it is, and under the reference; gradients stay.

        With top-k or top-p sampling the policy's are of the filtered distribution, and the unfiltered
        ones come beside them.
        """
        rows = Rows.of(columns)
        names = {"policy": col.PREVIOUS_LOGPROBS, "reference": col.REFERENCE_LOGPROBS}
        out = {names[model]: np.zeros_like(rows.columns[col.TOKEN_IDS], np.float32) for model in models}
        if "policy" in models and self._filters:
            out[UNFILTERED_PREVIOUS_LOGPROBS] = np.zeros_like(rows.columns[col.TOKEN_IDS], np.float32)
        for picked in micro_batches(rows.lengths, self.settings, "logprobs"):
            batch = rows.tensors(picked, self.settings.pad_to_multiple, self._device)
            lengths, found = rows.lengths[picked], dict[str, Tensor]()
            if "policy" in models:
                found[col.PREVIOUS_LOGPROBS], unfiltered = self._token_logprobs(self.model, batch, lengths)
                if self._filters:
                    found[UNFILTERED_PREVIOUS_LOGPROBS] = unfiltered
            if "reference" in models:
                if self.reference is None:
                    raise TrainerFailure("logprobs", "the trainer was started without a reference policy")
                _, found[col.REFERENCE_LOGPROBS] = self._token_logprobs(self.reference, batch, lengths)
            for name, tensor in found.items():
                width = min(tensor.shape[1], out[name].shape[1])
                out[name][picked, :width] = tensor[:, :width].cpu().numpy()
        return {name: Jagged.unpadded(array, rows.lengths) for name, array in out.items()}

    def begin(self, positive_tokens: float | None) -> None:
        """Open an optimizer step."""
        if self._step is not None:
            raise TrainerFailure("begin", "an optimizer step is open already")
        self.optimizer.grad.zero_()
        self._step = _OpenStep(positive_tokens)

    def accumulate(self, columns: Columns) -> None:
        """Add these rows' raw gradients."""
        step = self._opened("accumulate")
        rows = Rows.of(columns)
        step.totals = step.totals + self._counted(rows)
        totals = None
        if step.positive_tokens is not None and self.settings.loss.nll_weight > 0:
            counted = self.ranks.totals(step.totals)
            totals = Totals(counted.valid_tokens, counted.valid_rows, step.positive_tokens)
        step.parts += self._backward(rows, totals)
        if self.arithmetic.scales:
            step.chunks.append((rows, totals))
        step.flops += _FLOPS_PER_TOKEN * self.weights.flat.numel() * float(rows.lengths.sum())

    def _backward(self, rows: Rows, totals: Totals | None) -> list[Mapping[str, Stat]]:
        """Add the scaled gradients of all rows; statistics by micro-batch."""
        parts: list[Mapping[str, Stat]] = []
        for picked in micro_batches(rows.lengths, self.settings, "train"):
            batch = rows.tensors(picked, self.settings.pad_to_multiple, self._device)
            logprobs, unfiltered = self._token_logprobs(self.model, batch, rows.lengths[picked])
            sums = policy_loss(
                PolicyBatch(
                    logprobs=logprobs,
                    generation_logprobs=batch[col.GENERATION_LOGPROBS],
                    advantages=batch[col.ADVANTAGES],
                    token_mask=batch[col.TOKEN_MASK],
                    sample_mask=batch[col.SAMPLE_MASK],
                    previous_logprobs=batch.get(col.PREVIOUS_LOGPROBS),
                    reference_logprobs=batch.get(col.REFERENCE_LOGPROBS),
                    unfiltered_logprobs=unfiltered if self._filters else None,
                    raw_rewards=batch.get(col.REWARD),
                ),
                self.settings.loss,
                totals=totals,
            )
            if sums.loss.requires_grad:
                self.arithmetic.scaled(sums.loss).backward()
            parts.append(sums.stats())
        return parts

    def finish(self) -> Report:
        """Divide once, clip, step. Raises `NonFiniteStep` with nothing applied."""
        step = self._opened("finish")
        try:
            parts, totals, flops = self.ranks.step(step.parts, step.totals, step.flops)
            metrics = policy_metrics(parts)
            if not math.isfinite(metrics["loss"]):
                raise NonFiniteStep("finish", f"the loss is {metrics['loss']}")
            self._unscale(step)
            self.optimizer.grad.div_(normalizer(totals, token_level=self.settings.loss.token_level))
            norm = self.optimizer.clip()
            if not math.isfinite(norm):
                raise NonFiniteStep("finish", f"the gradient norm is {norm}")
            rate = self.optimizer.step()
            self.ranks.share(self.weights.flat)
        finally:
            self.abort()
        metrics |= {
            "grad_norm": norm,
            "lr": rate,
            "wd": self.settings.optimizer.weight_decay,
            "num_valid_samples": totals.valid_rows,
            "total_flops": flops,
            "num_ranks": float(self.ranks.size),
        }
        if self.arithmetic.scales:
            metrics["loss_scale"] = self.arithmetic.scale
        return metrics, int(totals.valid_tokens), int(totals.valid_rows)

    def _unscale(self, step: _OpenStep) -> None:
        """Sum over ranks, take the loss scale out; what overflowed is computed again under smaller ones.

        The sum is bitwise the same in each rank, so all of them decide alike.
        """
        before = self.arithmetic.state()
        self.ranks.sum(self.optimizer.grad)
        self.arithmetic.unscale(self.optimizer)
        while self.arithmetic.can_lower and not self.optimizer.grad.isfinite().all():
            self.optimizer.grad.zero_()
            for rows, totals in step.chunks:
                self._backward(rows, totals)
            self.ranks.sum(self.optimizer.grad)
            self.arithmetic.unscale(self.optimizer)
        if not self.optimizer.grad.isfinite().all():
            self.arithmetic.load_state(before)

    def abort(self) -> None:
        """Forget the open step, if any."""
        self._step = None
        self.optimizer.grad.zero_()

    @property
    def _filters(self) -> bool:
        return bool(self.settings.top_k) or self.settings.top_p < 1

    def _opened(self, call: str) -> _OpenStep:
        if self._step is None:
            raise TrainerFailure(call, "no optimizer step is open")
        return self._step

    @staticmethod
    def _counted(rows: Rows) -> Totals:
        masks = (torch.from_numpy(rows.columns[name]) for name in (col.TOKEN_MASK, col.SAMPLE_MASK))
        return count_totals(*masks)

    def _token_logprobs(
        self, model: Model, batch: Mapping[str, Tensor], lengths: np.ndarray
    ) -> tuple[Tensor, Tensor]:
        """Log-probs of generated tokens, filtered and unfiltered: [R, T] float32, 0 elsewhere."""
        token_ids = batch[col.TOKEN_IDS].long()
        made = batch[col.TOKEN_MASK] != 0
        made[:, 0] = False
        before = made.roll(-1, dims=1)
        with self.arithmetic.products():
            logits = self._logits(model, token_ids, before, lengths)
        logits = logits.float()
        if self.settings.temperature not in (0.0, 1.0):
            logits = logits / self.settings.temperature
        targets = token_ids[made]
        unfiltered = _scattered(logits, targets, made)
        if not self._filters:
            return unfiltered, unfiltered
        kept = filtered(logits, self.settings.top_k or 0, self.settings.top_p)
        return _scattered(kept, targets, made), unfiltered

    def _logits(self, model: Model, token_ids: Tensor, wanted: Tensor, lengths: np.ndarray) -> Tensor:
        """Logits [K, V] at the K wanted places, row by row, of padded rows or of the same ones packed."""
        if not self.settings.packing:
            return model.logits(token_ids, wanted)
        inside = torch.from_numpy(np.arange(token_ids.shape[1]) < lengths[:, None]).to(self._device)
        packed, at = token_ids[inside], wanted[inside]
        spare = -len(packed) % self.settings.pad_to_multiple
        if spare:
            packed, at = F.pad(packed, (0, spare)), F.pad(at, (0, spare))
            lengths = np.append(lengths, spare)
        return model.packed_logits(packed, lengths, at)


def _scattered(logits: Tensor, targets: Tensor, made: Tensor) -> Tensor:
    """Log-probs of targets [K] under logits [K, V] at the K places that `made` ([R, T]) names."""
    logprobs = -F.cross_entropy(logits, targets, reduction="none")
    return logprobs.new_zeros(made.shape).masked_scatter(made, logprobs)
