"""The single-controller runtime for asynchronous RL post-training."""
