"""Versions: how far the trainer is, and what the shards hold."""

from dataclasses import dataclass


@dataclass(slots=True)
class Versions:
    """Trainer, rollout stamp and content version (SC-1.11 to 1.13)."""

    trainer: int = 0
    """Completed RL steps."""

    stamp: int = -1
    """Weight version that new rollouts carry; -1 until the first weight sync has landed."""

    content: int = 0
    """Trainer version at which the policy's parameters last changed."""

    arriving: int | None = None
    """Content version of a transfer that has begun and not ended."""
