"""A Llama- or Qwen2-layout decoder with little overhead per token."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from asyncrl_runtime.adapters.torch.folder import weight_files
from asyncrl_runtime.adapters.torch.fused import rotated, swiglu
from asyncrl_runtime.adapters.torch.interface import Model, SlotCache, finite_memory
from asyncrl_runtime.adapters.torch.packing import CausalBlocks
from asyncrl_runtime.adapters.torch.shape import DecoderShape

_INIT_STD = 0.02


class _Layer(nn.Module):
    """Attention and feed-forward with fused projections."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
        self.eps = shape.rms_norm_eps
        width, wide = shape.hidden_size, shape.intermediate_size
        rows = (self.heads + 2 * self.kv_heads) * self.head_dim
        self.attention_norm = nn.Parameter(torch.ones(width))
        self.qkv = nn.Parameter(torch.empty(rows, width))
        self.qkv_bias = nn.Parameter(torch.zeros(rows)) if shape.qkv_bias else None
        self.out = nn.Parameter(torch.empty(width, self.heads * self.head_dim))
        self.ffn_norm = nn.Parameter(torch.ones(width))
        self.gate_up = nn.Parameter(torch.empty(2 * wide, width))
        self.down = nn.Parameter(torch.empty(width, wide))

    def heads_of(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values: [..., heads, head_dim]; cos, sin are [..., 1, head_dim]."""
        qkv = F.linear(F.rms_norm(x, x.shape[-1:], self.attention_norm, self.eps), self.qkv, self.qkv_bias)
        qkv = qkv.unflatten(-1, (-1, self.head_dim))
        turned, values = qkv.split((self.heads + self.kv_heads, self.kv_heads), -2)
        turned = rotated(turned, cos, sin).to(values.dtype)
        queries, keys = turned.split((self.heads, self.kv_heads), -2)
        return queries, keys, values

    def after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """Output projection and feed-forward; attended is [..., heads * head_dim]."""
        x = x + F.linear(attended, self.out)
        hidden = F.linear(F.rms_norm(x, x.shape[-1:], self.ffn_norm, self.eps), self.gate_up)
        return x + F.linear(swiglu(hidden), self.down)


class _Cache(SlotCache):
    """Keys and values per layer: [slots, kv_heads, tokens, head_dim]."""

    def __init__(self, shape: DecoderShape, slots: int, tokens: int, like: Tensor) -> None:
        size = (shape.num_layers, 2, slots, shape.num_kv_heads, tokens, shape.head_dim)
        self.data = finite_memory(size, like)
        rows = torch.arange(slots * shape.num_kv_heads, device=like.device) * tokens
        self.rows = rows.view(slots, shape.num_kv_heads)

    def move(self, source: int, target: int, tokens: int) -> None:
        self.data[:, :, target, :, :tokens] = self.data[:, :, source, :, :tokens]


class Decoder(Model):
    """The whole model. Parameters are float32 unless converted."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.shape = shape
        self.vocab_size = shape.vocab_size
        self.max_positions = shape.max_positions
        self.embed = nn.Parameter(torch.empty(shape.vocab_size, shape.hidden_size))
        self.layers = nn.ModuleList(_Layer(shape) for _ in range(shape.num_layers))
        self.norm = nn.Parameter(torch.ones(shape.hidden_size))
        head = None if shape.tied_embeddings else torch.empty(shape.vocab_size, shape.hidden_size)
        self.head = None if head is None else nn.Parameter(head)
        self._rope: tuple[Tensor, Tensor] | None = None

    @classmethod
    def random(cls, shape: DecoderShape, seed: int) -> Decoder:
        """Weights drawn from `seed`: normal, residual outputs wide, so that a small policy learns at once."""
        model = cls(shape)
        generator = torch.Generator().manual_seed(seed)
        residual_std = math.sqrt(2 / (shape.hidden_size * shape.num_layers))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 2:
                    std = residual_std if name.endswith((".out", ".down")) else _INIT_STD
                    parameter.normal_(0.0, std, generator=generator)
        return model

    def logits(self, token_ids: Tensor, wanted: Tensor) -> Tensor:
        """Next-token logits at the wanted positions, in row order; see `Model`."""
        x, _ = self._full(token_ids, wanted.flatten().nonzero()[:, 0], keep=False)
        return self._head(x)

    def packed_logits(self, token_ids: Tensor, lengths: np.ndarray, wanted: Tensor) -> Tensor:
        """Next-token logits of sequences back to back; see `Model`."""
        blocks = CausalBlocks(lengths, token_ids.device)
        cos, sin = (table[blocks.positions, None] for table in self._rotations(int(lengths.max())))
        grouped = self.shape.num_heads != self.shape.num_kv_heads
        wanted = wanted.nonzero()[:, 0]
        x = F.embedding(token_ids, self.embed)
        for layer in self._layers():
            attended = blocks.attend(*layer.heads_of(x, cos, sin), grouped=grouped).flatten(1)
            if layer is self.layers[-1]:
                x, attended = (part.index_select(0, wanted) for part in (x, attended))
            x = layer.after_attention(x, attended)
        return self._head(x)

    def new_cache(self, slots: int, tokens: int) -> _Cache:
        """Room for `slots` sequences of `tokens`."""
        return _Cache(self.shape, slots, tokens, self.embed)

    def prefill(
        self, cache: SlotCache, token_ids: Tensor, lengths: Tensor, rows: Tensor, slots: Tensor
    ) -> Tensor:
        """Fill slots from rows; logits after each row's last token."""
        assert isinstance(cache, _Cache)
        wanted = torch.arange(len(lengths), device=lengths.device) * token_ids.shape[1] + lengths - 1
        x, kept = self._full(token_ids, wanted, keep=True)
        width = token_ids.shape[1]
        for layer, (keys, values) in enumerate(kept):
            cache.data[layer, 0, slots, :, :width] = keys[rows]
            cache.data[layer, 1, slots, :, :width] = values[rows]
        return self._head(x)

    def decode(self, cache: SlotCache, token_ids: Tensor, positions: Tensor, span: int) -> Tensor:
        """One token for each of the first N slots."""
        assert isinstance(cache, _Cache)
        count = len(token_ids)
        cos, sin = (table[positions].unsqueeze(1) for table in self._rotations(span))
        ahead = torch.arange(span, device=positions.device) > positions[:, None]
        x = F.embedding(token_ids, self.embed)
        mask = torch.zeros(count, 1, 1, span, dtype=x.dtype, device=x.device)
        mask.masked_fill_(ahead[:, None, None], float("-inf"))
        at = (cache.rows[:count] + positions[:, None]).flatten()
        grouped = self.shape.num_heads != self.shape.num_kv_heads
        for index, layer in enumerate(self._layers()):
            queries, keys, values = layer.heads_of(x, cos, sin)
            for stored, new in zip(cache.data[index], (keys, values), strict=True):
                stored.view(-1, layer.head_dim).index_copy_(0, at, new.reshape(-1, layer.head_dim))
            attended = F.scaled_dot_product_attention(
                queries.unsqueeze(2),
                cache.data[index, 0, :count, :, :span],
                cache.data[index, 1, :count, :, :span],
                attn_mask=mask,
                enable_gqa=grouped,
            )
            x = layer.after_attention(x, attended.reshape(count, -1))
        return self._head(x)

    def _full(
        self, token_ids: Tensor, wanted: Tensor, *, keep: bool
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Final hidden states of right-padded rows, and all keys and values if kept.

        Shapes:
            wanted   [K], numbers of the wanted positions among all B * T, ascending
            returns  [K, width]; per layer keys and values [B, kv_heads, T, head_dim]
        """
        cos, sin = (table[: token_ids.shape[1], None] for table in self._rotations(token_ids.shape[1]))
        grouped = self.shape.num_heads != self.shape.num_kv_heads
        x = F.embedding(token_ids, self.embed)
        kept = []
        for layer in self._layers():
            queries, keys, values = (part.transpose(1, 2) for part in layer.heads_of(x, cos, sin))
            if keep:
                kept.append((keys, values))
            attended = F.scaled_dot_product_attention(
                queries, keys, values, is_causal=True, enable_gqa=grouped
            )
            attended = attended.transpose(1, 2).flatten(2)
            if layer is self.layers[-1]:  # what follows concerns each position alone
                x, attended = (part.flatten(0, 1).index_select(0, wanted) for part in (x, attended))
            x = layer.after_attention(x, attended)
        return x, kept

    def _layers(self) -> list[_Layer]:
        return cast(list[_Layer], list(self.layers))

    def _head(self, x: Tensor) -> Tensor:
        weight = self.embed if self.head is None else self.head
        return F.linear(F.rms_norm(x, x.shape[-1:], self.norm, self.shape.rms_norm_eps), weight)

    def _rotations(self, tokens: int) -> tuple[Tensor, Tensor]:
        """cos, and sin negated in its first half, each [at least `tokens`, head_dim]."""
        if self._rope is None or len(self._rope[0]) < tokens or self._rope[0].device != self.embed.device:
            size = max(tokens, min(self.max_positions, 256), 2 * len(self._rope[0]) if self._rope else 0)
            with torch.inference_mode(False):  # autograd may not save tensors of inference mode
                half = torch.arange(0, self.shape.head_dim, 2, dtype=torch.float32)
                inverse = 1.0 / self.shape.rope_theta ** (half / self.shape.head_dim)
                angles = torch.outer(torch.arange(size, dtype=torch.float32), inverse).repeat(1, 2)
                device = self.embed.device
                half_size = self.shape.head_dim // 2
                signed_sin = torch.cat((-angles[:, :half_size].sin(), angles[:, half_size:].sin()), -1)
                self._rope = (angles.cos().to(device), signed_sin.to(device))
        return self._rope

    def save(self, directory: Path) -> None:
        """Write config.json and model.safetensors."""
        tensors = {
            name: tensor.detach().to("cpu", copy=True).contiguous()
            for name, tensor in _published(self).items()
        }
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        config = self.shape.to_config() | {"dtype": str(self.embed.dtype).removeprefix("torch.")}
        (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")

    @torch.no_grad()
    def load_weights(self, folder: Path) -> None:
        """Take the folder's weights.

        Raises:
            IncompleteModelFolder: a file is absent.
            ValueError: a tensor is absent or misshapen.
        """
        found: dict[str, Tensor] = {}
        for file in weight_files(folder):
            found |= load_file(file)
        for name, target in _published(self).items():
            source = found.get(name)
            if source is None:
                raise ValueError(f"{folder} holds no tensor {name}")
            if source.shape != target.shape:
                shapes = f"{list(source.shape)}, not {list(target.shape)}"
                raise ValueError(f"tensor {name} of {folder} has shape {shapes}")
            target.copy_(source)


def _published(model: Decoder) -> dict[str, Tensor]:
    """Views of the parameters under the names that Hugging Face folders use."""
    shape = model.shape
    sizes = [count * shape.head_dim for count in (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)]
    named: dict[str, Tensor] = {"model.embed_tokens.weight": model.embed, "model.norm.weight": model.norm}
    if model.head is not None:
        named["lm_head.weight"] = model.head
    for index, layer in enumerate(model._layers()):
        prefix = f"model.layers.{index}."
        named[f"{prefix}input_layernorm.weight"] = layer.attention_norm
        named[f"{prefix}post_attention_layernorm.weight"] = layer.ffn_norm
        for part, rows in zip("qkv", layer.qkv.split(sizes), strict=True):
            named[f"{prefix}self_attn.{part}_proj.weight"] = rows
        if layer.qkv_bias is not None:
            for part, rows in zip("qkv", layer.qkv_bias.split(sizes), strict=True):
                named[f"{prefix}self_attn.{part}_proj.bias"] = rows
        named[f"{prefix}self_attn.o_proj.weight"] = layer.out
        for part, rows in zip(("gate", "up"), layer.gate_up.chunk(2), strict=True):
            named[f"{prefix}mlp.{part}_proj.weight"] = rows
        named[f"{prefix}mlp.down_proj.weight"] = layer.down
    return named
