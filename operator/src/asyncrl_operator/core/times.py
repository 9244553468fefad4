"""Times as Kubernetes writes them."""

from __future__ import annotations

from datetime import UTC, datetime


def written(moment: datetime) -> str:
    """With whole seconds, in UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read(text: str) -> datetime:
    """With or without fractions of a second."""
    return datetime.fromisoformat(text)
