"""The resolved manifest as it is stored and shown."""

from __future__ import annotations

import re
from collections.abc import Mapping

import yaml

from asyncrl_api.job import AsyncRLJob, JobSpec

_SECRET = re.compile(r"(token|secret|password|passwd|api_?key|access_?key|credential)s?$", re.IGNORECASE)
_UNITS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
REDACTED = "<redacted>"


def config_yaml(job: AsyncRLJob) -> str:
    """The resolved manifest, with what looks like a credential redacted (SC-2.10)."""
    value = job.model_dump(mode="json", by_alias=True, exclude_none=True)
    return yaml.safe_dump(_redacted(value), sort_keys=False, allow_unicode=True)


def sample_max_bytes(spec: JobSpec) -> int:
    """`logging.sampleMaxSize` in bytes."""
    return quantity_bytes(str(spec.logging.sample_max_size))


def quantity_bytes(text: str) -> int:
    """A Kubernetes quantity in whole bytes. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)?", text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity such as 64Mi")
    return int(float(match[1]) * _UNITS[match[2] or ""])


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
