"""The controller and Ray's head are two containers of one pod: Ray stays until the controller has left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LEFT = "controller-left"
"""Ray's container waits for this file before it ends, so that a last save still finds its actors."""


@contextmanager
def keeping_ray(folder: Path | None) -> Iterator[None]:
    """`folder` is the one that both containers share; None: there is no such neighbour.

    The file is made on an orderly end alone: after a crash the controller is started again.
    """
    if folder is None or not folder.is_dir():
        yield
        return
    (folder / LEFT).unlink(missing_ok=True)
    yield
    (folder / LEFT).touch()
