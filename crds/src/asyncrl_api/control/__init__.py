"""`asyncrl.control.v1`, the control API of a run: `control.proto`, and what `make generate` makes of it."""
