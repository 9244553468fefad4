"""Structural schema of the models: the part of OpenAPI that a CRD may use."""

import copy
import types
from collections.abc import Callable
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, MaxLen
from pydantic import BaseModel, StringConstraints
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from asyncrl_api.base import INT32_MAX, INT64_MAX, Format, Preserved, Update, keys_of
from asyncrl_api.docs import field_doc

Schema = dict[str, Any]
Finish = Callable[[Schema, str], None]
"""Called with the schema of each block and its path, such as `spec.controller.env[]`."""

RANGES = {"int32": INT32_MAX, "int64": INT64_MAX}
MAX_OPEN_KEYS = 128
QUANTITY: Schema = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
SCALARS = {bool: "boolean", int: "integer", float: "number", str: "string"}


def unwrap(hint: Any) -> tuple[Any, list[Any]]:
    """Take `Annotated` and `| None` off a type: give the type and all metadata."""
    metadata: list[Any] = []
    while True:
        if get_origin(hint) is Annotated:
            metadata = [*hint.__metadata__, *metadata]
            hint = hint.__origin__
        elif get_origin(hint) in (Union, types.UnionType):
            (hint,) = (part for part in get_args(hint) if part is not type(None))
        else:
            return hint, metadata


def hints_of(model: type[BaseModel]) -> dict[str, Any]:
    """Type of each attribute, metadata included."""
    return get_type_hints(model, include_extras=True)


def update_class(metadata: list[Any], inherited: Update | None) -> Update | None:
    """Update class of a field: its own mark, else that of the block that holds it."""
    return next((mark for mark in metadata if isinstance(mark, Update)), inherited)


def is_nullable(field: FieldInfo, hint: Any) -> bool:
    """Whether null is a value of the field, and not another way to leave it out."""
    while get_origin(hint) is Annotated:
        hint = hint.__origin__
    optional = get_origin(hint) in (Union, types.UnionType)
    return optional and field.default is not None


def default_of(field: FieldInfo) -> Any:
    """Default that the schema gives; `PydanticUndefined` if there is none."""
    if field.default_factory is not None:
        return {}
    if field.default is None or field.default is PydanticUndefined:
        return PydanticUndefined
    return list(field.default) if isinstance(field.default, tuple) else field.default


def block_schema(model: type[BaseModel], path: str, update: Update | None, finish: Finish) -> Schema:
    """Schema of a block."""
    schema: Schema = {"type": "object"}
    hints = hints_of(model)
    required = [key for key, _, field in keys_of(model) if field.is_required()]
    if required:
        schema["required"] = required
    if model.model_config.get("extra") == "allow":
        schema |= {"x-kubernetes-preserve-unknown-fields": True, "maxProperties": MAX_OPEN_KEYS}
    properties = {
        key: _field_schema(model, name, field, hints[name], f"{path}.{key}", update, finish)
        for key, name, field in keys_of(model)
    }
    if properties:
        schema["properties"] = properties
    finish(schema, path)
    return schema


def _field_schema(
    model: type[BaseModel],
    name: str,
    field: FieldInfo,
    hint: Any,
    path: str,
    inherited: Update | None,
    finish: Finish,
) -> Schema:
    _, metadata = unwrap(hint)
    update = update_class(metadata, inherited)
    schema = type_schema(hint, path, update, finish)
    mark = f" ({update})" if update else ""
    schema["description"] = field_doc(model, name) + mark
    default = default_of(field)
    if default is not PydanticUndefined:
        schema["default"] = default
    if is_nullable(field, hint):
        schema["nullable"] = True
    return schema


def type_schema(hint: Any, path: str, update: Update | None, finish: Finish) -> Schema:
    """Schema of a type; `path` is where it sits."""
    bare, metadata = unwrap(hint)
    origin, arguments = get_origin(bare), get_args(bare)
    if isinstance(bare, type) and issubclass(bare, BaseModel):
        return block_schema(bare, path, update, finish)
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin is tuple:
        return _sized(
            {"type": "array", "items": type_schema(arguments[0], f"{path}[]", update, finish)},
            metadata,
            "maxItems",
        )
    if origin is dict:
        schema: Schema = {"type": "object"}
        if any(isinstance(mark, Preserved) for mark in metadata):
            schema["x-kubernetes-preserve-unknown-fields"] = True
        else:
            schema["additionalProperties"] = type_schema(arguments[1], f"{path}[*]", update, finish)
        return _sized(schema, metadata, "maxProperties")
    return _scalar_schema(bare, metadata)


def _sized(schema: Schema, metadata: list[Any], key: str) -> Schema:
    limits = [mark.max_length for mark in metadata if isinstance(mark, MaxLen)]
    return schema | ({key: min(limits)} if limits else {})


def _scalar_schema(kind: type, metadata: list[Any]) -> Schema:
    number_format = next((mark.name for mark in metadata if isinstance(mark, Format)), None)
    schema: Schema = {"type": SCALARS[kind]}
    if number_format == "quantity":
        schema = copy.deepcopy(QUANTITY)
    elif number_format:
        schema["format"] = number_format
    patterns = [mark.pattern for mark in metadata if isinstance(mark, StringConstraints)]
    if patterns:
        schema["pattern"] = patterns[-1]
    schema = _sized(schema, metadata, "maxLength")
    _bound(schema, metadata, RANGES.get(number_format or ""))
    return schema


def _bound(schema: Schema, metadata: list[Any], range_max: int | None) -> None:
    """Write the tightest bounds, leaving out those that the format has anyway."""
    lows: list[tuple[Any, bool]] = [(mark.ge, False) for mark in metadata if isinstance(mark, Ge)]
    lows += [(mark.gt, True) for mark in metadata if isinstance(mark, Gt)]
    highs: list[tuple[Any, bool]] = [(mark.le, False) for mark in metadata if isinstance(mark, Le)]
    highs += [(mark.lt, True) for mark in metadata if isinstance(mark, Lt)]
    low, high = max(lows, default=None), min(highs, default=None, key=lambda bound: bound[0])
    if low is not None and (range_max is None or low[0] > -range_max - 1):
        schema["minimum"] = low[0]
        if low[1]:
            schema["exclusiveMinimum"] = True
    if high is not None and (range_max is None or high[0] < range_max):
        schema["maximum"] = high[0]
        if high[1]:
            schema["exclusiveMaximum"] = True
