"""The data plane on TransferQueue: rows in the memory of Ray actors."""
