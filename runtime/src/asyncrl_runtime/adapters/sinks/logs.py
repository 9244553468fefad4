"""The log: JSON lines in `run.log`, the human form on the terminal."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

Write = Callable[[str], None]

_SHARED: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.stdlib.ExtraAdder(),
    lambda _logger, _method, event: _without_formatted_copies(event),
]


class RunLogging:
    """Handlers of the root logger; `close` takes them off again."""

    def __init__(
        self,
        path: Path | None,
        *,
        level: int = logging.INFO,
        terminal: Write | None = None,
        terminal_level: int = logging.WARNING,
        tracebacks: bool = False,
    ) -> None:
        """`terminal` takes lines (default: stderr); `tracebacks` adds them and libraries' warnings."""
        self._handlers: list[logging.Handler] = []
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._add(logging.FileHandler(path, encoding="utf-8"), level, _json_form())
        shown = _LineHandler(terminal or _to_stderr)
        if not tracebacks:
            shown.addFilter(lambda record: record.name != "py.warnings")  # libraries' own, for developers
        self._add(shown, terminal_level, _human_form(tracebacks))
        logging.getLogger().setLevel(min(level, terminal_level))
        structlog.configure(
            processors=[*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
            logger_factory=structlog.stdlib.LoggerFactory(),
            wrapper_class=structlog.stdlib.BoundLogger,
            cache_logger_on_first_use=False,
        )

    def close(self) -> None:
        """Flush and take the handlers off. Idempotent."""
        while self._handlers:
            handler = self._handlers.pop()
            logging.getLogger().removeHandler(handler)
            handler.close()

    def _add(self, handler: logging.Handler, level: int, form: logging.Formatter) -> None:
        handler.setLevel(level)
        handler.setFormatter(form)
        logging.getLogger().addHandler(handler)
        self._handlers.append(handler)


def _without_formatted_copies(event: Any) -> Any:
    """Drop what another handler's formatter left on the record."""
    for key in ("message", "asctime"):
        event.pop(key, None)
    return event


class _LineHandler(logging.Handler):
    def __init__(self, write: Write) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._write(self.format(record))
        except Exception:  # noqa: BLE001  a full pipe must not reach the code that logs
            self.handleError(record)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201  the terminal is this handler's destination


def _json_form() -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_SHARED,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str, ensure_ascii=False),
        ],
    )


def _human_form(tracebacks: bool) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_SHARED,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            lambda _logger, _method, event: human_line(event, tracebacks=tracebacks),
        ],
    )


def human_line(event: Any, *, tracebacks: bool) -> str:
    """`12:03:04 warning  message  key=value`; no control codes."""
    facts = dict(event)
    clock = str(facts.pop("timestamp", ""))[11:19]
    level = str(facts.pop("level", "info"))
    message = facts.pop("event", "")
    trace = facts.pop("exception", None)
    facts.pop("logger", None)
    tail = "  ".join(f"{key}={value}" for key, value in facts.items())
    line = f"{clock} {level:<8} {message}" + (f"  {tail}" if tail else "")
    return f"{line}\n{trace}" if trace and tracebacks else line
