"""Ties a process's life to its parent's, where the system can."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends (Linux); end at once if it already has."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def set_name(name: str) -> None:
    """Show `name` (its first 15 bytes) in process lists, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15])
