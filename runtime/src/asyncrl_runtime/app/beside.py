"""Files that a manifest names are looked for beside it, then in the working directory."""

from __future__ import annotations

import sys
from pathlib import Path

from asyncrl_api.job import AsyncRLJob


def with_located_model(job: AsyncRLJob, folder: Path) -> AsyncRLJob:
    """The job with the folders of its weights and tokenizer spelt out where they lie in `folder`."""
    model, checkpointing = job.spec.model, job.spec.checkpointing
    model = model.model_copy(
        update={"name": _located(model.name, folder), "tokenizer": _located(model.tokenizer, folder)}
    )
    if (start := checkpointing.pretrained_checkpoint) is not None:
        start = start.model_copy(update={"path": _located(start.path, folder)})
        checkpointing = checkpointing.model_copy(update={"pretrained_checkpoint": start})
    spec = job.spec.model_copy(update={"model": model, "checkpointing": checkpointing})
    return job.model_copy(update={"spec": spec})


def import_from(folder: Path) -> None:
    """Let a custom sampler be a module beside the manifest, or in the working directory."""
    for path in (str(Path.cwd()), str(folder)):
        if path not in sys.path:
            sys.path.insert(0, path)


def _located(name: str | None, folder: Path) -> str | None:
    beside = None if name is None else folder / name
    return str(beside) if beside is not None and beside.is_dir() else name
