"""The last words of a controller in a pod: the termination message, which the operator reads."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import structlog

MAX_BYTES = 4096
"""Kubernetes cuts what is longer."""

TERMINATION_LOG = Path("/dev/termination-log")

log = structlog.get_logger("asyncrl.control")


@dataclass(frozen=True, slots=True)
class FinalReport:
    """How this attempt's run ended."""

    outcome: str
    """complete, stopped, failed or invalid."""

    code: int
    """As `asyncrl run` would have ended (CLI-21)."""

    step: int
    message: str

    def to_json(self) -> str:
        """One JSON object of at most 4096 bytes; a message that is too long loses its middle."""
        kept = len(self.message)
        while len((text := self._with(kept)).encode()) > MAX_BYTES:
            kept = kept * 9 // 10
        return text

    def _with(self, kept: int) -> str:
        """With so many characters of the message."""
        head, tail = (kept + 1) // 2, kept // 2
        whole = kept >= len(self.message)
        message = self.message if whole else f"{self.message[:head]} … {self.message[-tail:] if tail else ''}"
        return json.dumps(
            {"outcome": self.outcome, "code": self.code, "step": self.step, "message": message},
            ensure_ascii=False,
        )

    def write(self, path: Path = TERMINATION_LOG) -> None:
        """Into the pod's termination log, where there is one."""
        try:
            if path.exists():
                path.write_text(self.to_json(), encoding="utf-8")
        except OSError as error:
            log.warning("the termination message cannot be written", reason=str(error))
