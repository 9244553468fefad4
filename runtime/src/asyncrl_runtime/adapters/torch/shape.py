"""The shape of a Llama- or Qwen2-layout decoder, and its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Sizes of a decoder with RMSNorm, rotary positions, grouped-query attention and SwiGLU."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_positions: int
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    qkv_bias: bool = False
    """Biases of queries, keys and values: the Qwen2 layout."""

    tied_embeddings: bool = True

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> DecoderShape | None:
        """The shape of a config.json; None if it asks for something that this decoder lacks."""
        kind = config.get("model_type")
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        plain_rope = rope.get("rope_type", rope.get("type", "default")) == "default"
        extras = ("attention_bias", "mlp_bias", "use_sliding_window")
        if (
            kind not in _ARCHITECTURES
            or not plain_rope
            or any(config.get(key) for key in extras)
            or config.get("hidden_act", "silu") != "silu"
        ):
            return None
        heads = config["num_attention_heads"]
        return cls(
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            num_layers=config["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            intermediate_size=config["intermediate_size"],
            max_positions=config.get("max_position_embeddings", 2048),
            rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
            rms_norm_eps=config.get("rms_norm_eps", 1e-6),
            qkv_bias=kind == "qwen2",
            tied_embeddings=config.get("tie_word_embeddings", False),
        )

    def to_config(self) -> dict[str, object]:
        """The config.json that transformers and vLLM read."""
        kind = "qwen2" if self.qkv_bias else "llama"
        return {
            "architectures": [_ARCHITECTURES[kind]],
            "model_type": kind,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": self.max_positions,
            "rope_theta": self.rope_theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "rms_norm_eps": self.rms_norm_eps,
            "hidden_act": "silu",
            "tie_word_embeddings": self.tied_embeddings,
            "use_cache": True,
        }
