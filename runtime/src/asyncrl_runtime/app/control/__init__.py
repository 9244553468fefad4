"""The control API of a run: gRPC, for the operator."""
