"""null in a manifest: a value on some fields, and another way to leave a key out on all others."""

from collections.abc import Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from asyncrl_api.base import keys_of
from asyncrl_api.job import AsyncRLJob
from asyncrl_api.schema import hints_of, is_nullable, unwrap


def manifest_of(job: AsyncRLJob) -> dict[str, Any]:
    """A job as a manifest: what is unset is left out, and null stays where it is a value."""
    return prune(job.model_dump(mode="json"), AsyncRLJob)


def prune(raw: Any, model: type[BaseModel]) -> Any:
    """Leave out the keys of a block whose null means unset, as the API server does."""
    if not isinstance(raw, Mapping):
        return raw
    hints = hints_of(model)
    fields = {key: (hints[name], field) for key, name, field in keys_of(model)}
    kept = {}
    for key, value in raw.items():
        if key not in fields:
            kept[key] = value
            continue
        hint, field = fields[key]
        if value is not None or is_nullable(field, hint):
            kept[key] = _inside(value, hint)
    return kept


def _inside(value: Any, hint: Any) -> Any:
    bare, _ = unwrap(hint)
    origin, arguments = get_origin(bare), get_args(bare)
    if isinstance(bare, type) and issubclass(bare, BaseModel):
        return prune(value, bare)
    if origin is tuple and isinstance(value, list):
        return [_inside(entry, arguments[0]) for entry in value]
    if origin is dict and isinstance(value, Mapping):
        return {key: _inside(entry, arguments[1]) for key, entry in value.items()}
    return value
