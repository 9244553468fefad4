"""Which of the two classes a failure belongs to, and how long to wait after it."""

from __future__ import annotations

from asyncrl_runtime.core.errors import DataFailure, InfraFailure

_MAX_CAUSES = 8
_INFRA_TYPES: tuple[type[BaseException], ...] = (TimeoutError, ConnectionError, MemoryError, EOFError)
_INFRA_STATUS = frozenset({408, 409, 429})


def is_infra(error: BaseException, *, router_status: int | None = None) -> bool:
    """Whether the machinery is to blame (SC-8.20 to 8.22).

    An explicit data failure wins over any cause behind it; otherwise the error and its explicit causes
    are searched. An HTTP error is judged by its status, whatever its type. What nobody knows is a data
    failure: a defect must surface, not be retried away.
    """
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and len(seen) < _MAX_CAUSES and id(link) not in seen:
        seen.add(id(link))
        if isinstance(link, DataFailure):
            return False
        if isinstance(link, InfraFailure) or _looks_infra(link, router_status):
            return True
        link = link.__cause__
    return False


def _looks_infra(error: BaseException, router_status: int | None) -> bool:
    status = getattr(error, "status", None)
    if not isinstance(status, int):
        return isinstance(error, _INFRA_TYPES)
    return status >= 500 or status in _INFRA_STATUS or status == router_status


def backoff_seconds(attempt: int, *, base_seconds: float, max_seconds: float) -> float:
    """Wait before infra retry `attempt` = 1, 2, … (SC-2.72)."""
    return min(base_seconds * 2.0 ** min(attempt - 1, 1023), max_seconds)
