"""Torch: model, generation engine, trainer and weight sync.

`settings`, `shape`, `errors`, `entry`, `generator`, `trainer`, `advantage_worker` and
`shared_memory_sync` run in the controller and import no torch; the rest runs in worker processes.
"""
