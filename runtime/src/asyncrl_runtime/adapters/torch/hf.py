"""Any causal language model of transformers behind the interface of engine and trainer."""

from __future__ import annotations

import inspect
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.utils.logging import disable_progress_bar

from asyncrl_runtime.adapters.torch.errors import PackingUnsupported
from asyncrl_runtime.adapters.torch.interface import Model, SlotCache, finite_memory

_PACKING_TOLERANCE = 1e-3
"""Of the largest logit: far above rounding in float32, far below what another sequence adds."""


class _Layer(CacheLayerMixin):
    """One layer's keys and values, [slots, kv_heads, tokens, head_dim], made at its first use."""

    is_sliding = False

    def __init__(self, cache: _Cache) -> None:
        super().__init__()
        self.cache = cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        slots, tokens = self.cache.size
        self.keys, self.values = (
            finite_memory((slots, states.shape[1], tokens, states.shape[3]), states)
            for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        cache, keys, values = self.cache, self.keys, self.values
        assert keys is not None
        assert values is not None
        if cache.filling is not None:
            rows, slots = cache.filling
            width = key_states.shape[2]
            keys[slots, :, :width] = key_states[rows]
            values[slots, :, :width] = value_states[rows]
            return key_states, value_states
        count, span = len(cache.positions), cache.span
        order = torch.arange(count, device=key_states.device)
        keys[order, :, cache.positions] = key_states[:, :, 0]
        values[order, :, cache.positions] = value_states[:, :, 0]
        return keys[:count, :, :span], values[:count, :, :span]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return self.cache.size[1]


class _Cache(SlotCache):
    """The layers' memory, and what the next forward pass does with it."""

    def __init__(self, num_layers: int, slots: int, tokens: int) -> None:
        self.size = (slots, tokens)
        self.layers = [_Layer(self) for _ in range(num_layers)]
        self.passed = Cache(layers=list(self.layers))
        self.filling: tuple[Tensor, Tensor] | None = None
        """Rows and slots, while prompts are computed; None while one token is fed to each slot."""

        self.positions: Tensor = torch.empty(0, dtype=torch.int64)
        self.span = 0

    def move(self, source: int, target: int, tokens: int) -> None:
        for layer in self.layers:
            if layer.is_initialized:
                for states in (layer.keys, layer.values):
                    assert states is not None
                    states[target, :, :tokens] = states[source, :, :tokens]


class HuggingFaceModel(Model):
    """Wraps a model of transformers with full attention in every layer."""

    def __init__(self, inner: PreTrainedModel) -> None:
        super().__init__()
        self.inner = inner.eval()  # dropout would make the same weights give two log-probs
        self.config = inner.config.get_text_config()
        self.vocab_size = self.config.vocab_size
        parameters = inspect.signature(inner.forward).parameters
        self._keeps_logits = "logits_to_keep" in parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"

    @classmethod
    def load(cls, name: str) -> HuggingFaceModel:
        """From a folder, the local cache or the Hub. Raises ValueError with the reason."""
        disable_progress_bar()
        try:
            inner = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
        except (OSError, ValueError) as problem:
            raise ValueError(f"model {name} cannot be loaded: {problem}") from problem
        return cls(inner)

    def logits(self, token_ids: Tensor, wanted: Tensor) -> Tensor:
        """See `Model`."""
        columns = wanted.any(0).nonzero().squeeze(1)
        kept = self._at(columns, input_ids=token_ids, use_cache=False)
        return kept[wanted[:, columns]]

    def packed_logits(self, token_ids: Tensor, lengths: np.ndarray, wanted: Tensor) -> Tensor:
        """See `Model`. transformers cuts attention where positions start anew."""
        positions = np.concatenate([np.arange(length) for length in lengths])
        return self._at(
            wanted.nonzero().squeeze(1),
            input_ids=token_ids[None],
            position_ids=torch.from_numpy(positions).to(token_ids.device)[None],
            use_cache=False,
        )[0]

    @torch.no_grad()
    def check_packing(self) -> None:
        """Compare two packed sequences with the same ones apart; see `Model`."""
        lengths = np.array([5, 7])
        device = next(self.parameters()).device
        token_ids = torch.arange(int(lengths.sum()), device=device) * 7919 % self.vocab_size
        every = torch.ones_like(token_ids, dtype=torch.bool)
        name = type(self.inner).__name__
        try:
            packed = self.packed_logits(token_ids, lengths, every)
        except (RuntimeError, TypeError, ValueError) as problem:
            raise PackingUnsupported(name, str(problem)) from problem
        ends = np.cumsum(lengths).tolist()
        parts = [(token_ids[None, start:end], every[None, start:end]) for start, end in pairwise([0, *ends])]
        apart = torch.cat([self.logits(*part) for part in parts])
        gap = float((packed - apart).abs().max())
        allowed = _PACKING_TOLERANCE * float(apart.abs().max())
        if not gap <= allowed:
            raise PackingUnsupported(
                name, f"packed and separate sequences differ by {gap:.2g} in a logit, above {allowed:.2g}"
            )

    def new_cache(self, slots: int, tokens: int) -> _Cache:
        """See `Model`. Raises ValueError where attention would slide."""
        window = getattr(self.config, "sliding_window", None)
        if window is not None and tokens > window:
            raise ValueError(
                f"{type(self.inner).__name__} attends to {window} tokens only; "
                f"lower the sequence limit of {tokens} tokens to that, or use backend vllm"
            )
        return _Cache(self.config.num_hidden_layers, slots, tokens)

    def prefill(
        self, cache: SlotCache, token_ids: Tensor, lengths: Tensor, rows: Tensor, slots: Tensor
    ) -> Tensor:
        """See `Model`."""
        assert isinstance(cache, _Cache)
        cache.filling = (rows, slots)
        last, which = (lengths - 1).unique(return_inverse=True)
        kept = self._at(last, input_ids=token_ids, use_cache=True, **self._passing(cache))
        return kept[torch.arange(len(lengths), device=which.device), which]

    def decode(self, cache: SlotCache, token_ids: Tensor, positions: Tensor, span: int) -> Tensor:
        """See `Model`."""
        assert isinstance(cache, _Cache)
        cache.filling, cache.positions, cache.span = None, positions, span
        ahead = torch.arange(span, device=positions.device) > positions[:, None]
        mask = torch.zeros(len(positions), 1, 1, span, dtype=self.inner.dtype, device=positions.device)
        mask.masked_fill_(ahead[:, None, None], torch.finfo(mask.dtype).min)
        return self.inner(
            input_ids=token_ids[:, None],
            attention_mask=mask,
            position_ids=positions[:, None],
            use_cache=True,
            **self._passing(cache),
        ).logits[:, 0]

    def _passing(self, cache: _Cache) -> dict[str, Cache]:
        """The cache under the name that this version of the model takes it by."""
        return {self._cache_argument: cache.passed}

    def _at(self, columns: Tensor, **inputs: object) -> Tensor:
        """Logits at some positions of every row: [B, columns, V]."""
        if self._keeps_logits:
            return self.inner(**inputs, logits_to_keep=columns).logits
        return self.inner(**inputs).logits[:, columns]

    def save(self, directory: Path) -> None:
        """See `Model`."""
        self.inner.save_pretrained(directory)

    @torch.no_grad()
    def load_weights(self, folder: Path) -> None:
        """See `Model`."""
        saved = dict(HuggingFaceModel.load(str(folder)).inner.named_parameters())
        for name, parameter in self.inner.named_parameters():
            parameter.copy_(saved[name])
