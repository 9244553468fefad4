"""The policy: weights to start from, or a shape."""

from typing import Annotated, Literal

from annotated_types import Ge

from asyncrl_api.base import WARM, ApiModel, Count, DefaultsTo, Int32, Path, Word


class ModelInit(ApiModel):
    """Shape of a model that starts from random weights, in place of `name`."""

    architecture: Literal["qwen2", "llama"] = "qwen2"
    """Model family whose layout is built. Trainer and engines must both know it."""

    vocab_size: Annotated[Annotated[Int32, Ge(2)] | None, DefaultsTo("the tokenizer's size")] = None
    """Rows of the embedding table."""

    hidden_size: Count = 64
    """Width of the residual stream."""

    intermediate_size: Annotated[Count | None, DefaultsTo("4 × hiddenSize")] = None
    """Width inside the feed-forward block."""

    num_hidden_layers: Count = 2
    """Transformer blocks."""

    num_attention_heads: Count = 4
    """Query heads per block."""

    num_key_value_heads: Annotated[Count | None, DefaultsTo("numAttentionHeads")] = None
    """Key and value heads per block."""

    tie_word_embeddings: bool = True
    """Use the embedding table as the output layer too."""


class ModelSpec(ApiModel):
    """The policy: which weights to start from, or which shape to initialise at random."""

    name: Path | None = None
    """Hub id of the starting weights, or a path inside a mounted volume."""

    revision: Word | None = None
    """Hub revision (branch, tag or commit) of the weights and of the tokenizer. Unset: the hub's default
    branch."""

    tokenizer: Annotated[
        Path | None, DefaultsTo("that of name; with init the built-in character tokenizer")
    ] = None
    """Hub id or path of the tokenizer."""

    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """Number format in which weights are loaded, transferred and served."""

    max_total_sequence_length: Annotated[Count, WARM] = 512
    """Most tokens of prompt plus completion. A longer rollout is truncated, a longer prompt is a data
    failure."""

    is_vlm: bool = False
    """The model reads images as well as text."""

    init: ModelInit | None = None
    """Shape of a model that starts from random weights, in place of `name`. Seeded by the algorithm's
    `seed`."""
