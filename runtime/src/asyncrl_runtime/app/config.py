"""The resolved manifest as it is stored and shown."""

from __future__ import annotations

import re
from collections.abc import Mapping

import yaml

from asyncrl_api.job import AsyncRLJob
from asyncrl_api.nulls import manifest_of

_SECRET = re.compile(r"(token|secret|password|passwd|api_?key|access_?key|credential)s?$", re.IGNORECASE)
REDACTED = "<redacted>"


def config_yaml(job: AsyncRLJob) -> str:
    """The resolved manifest, with what looks like a credential redacted (SC-2.10)."""
    return yaml.safe_dump(_redacted(manifest_of(job)), sort_keys=False, allow_unicode=True)


def redacted_spec(job: AsyncRLJob) -> Mapping[str, object]:
    """The resolved spec, with what looks like a credential redacted."""
    spec = _redacted(manifest_of(job)["spec"])
    assert isinstance(spec, Mapping)
    return spec


def _redacted(value: object) -> object:
    if isinstance(value, Mapping):
        hides = "name" in value and _SECRET.search(str(value["name"])) and "value" in value
        return {
            key: REDACTED if _is_secret(key, part) or (hides and key == "value") else _redacted(part)
            for key, part in value.items()
        }
    return [_redacted(part) for part in value] if isinstance(value, list) else value


def _is_secret(key: object, part: object) -> bool:
    return isinstance(part, str) and _SECRET.search(str(key)) is not None
