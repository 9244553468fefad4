"""Pure functions on arrays: masks, rewards, advantages, losses.

`losses`, `surrogate` and `value_loss` work on torch tensors and run in trainer workers. Everything else is
numpy, so that the controller and its advantage workers never load torch.

Rows are right-padded to [R, T]. Position t of a per-token column refers to token t; position 0 is in no mask.
"""
