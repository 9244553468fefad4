"""What every model of the resource shares: closed objects, camelCase keys, update classes, number ranges."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from annotated_types import Ge, Gt, Le, MaxLen
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Strict, StringConstraints
from pydantic.fields import FieldInfo


class Update(StrEnum):
    """When a change to a field takes effect (API-6)."""

    HOT = "hot"
    """At once: pushed to the controller and acknowledged, or read by the operator on its next pass."""

    WARM = "warm"
    """At the next attempt."""

    COLD = "cold"
    """Never: fixed for the life of the job."""

    COLD_SUSPENDED = "cold/s"
    """Only while the job is suspended before and after the change."""


HOT, WARM, COLD, COLD_SUSPENDED = Update


@dataclass(frozen=True, slots=True)
class DefaultsTo:
    """Marks a field whose default depends on others: the schema leaves it unset, `resolve` fills it."""

    words: str


@dataclass(frozen=True, slots=True)
class Format:
    """Marks the OpenAPI format of a number."""

    name: str


@dataclass(frozen=True, slots=True)
class Preserved:
    """Marks an object whose keys are not ours to check."""


def camel(name: str) -> str:
    """Spell a Python attribute as the resource spells it: `max_num_steps` as `maxNumSteps`."""
    return re.sub(r"_([a-z])", lambda match: match.group(1).upper(), name)


class ApiModel(BaseModel):
    """A closed block. Keys are camelCase in manifests and snake_case in Python.

    A field has the update class of the block that holds it, unless it is marked otherwise.
    Attribute docstrings are the descriptions of the CRD; `asyncrl_api.docs` reads them when asked.
    """

    model_config = ConfigDict(
        alias_generator=camel,
        validate_by_name=True,
        serialize_by_alias=True,
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        defer_build=True,
        protected_namespaces=(),
    )


class OpenModel(ApiModel):
    """A block with some keys of ours; the others are passed on as they are."""

    model_config = ConfigDict(extra="allow")


def key_of(name: str, field: FieldInfo) -> str:
    """Key of a field in a manifest."""
    return field.alias or camel(name)


def keys_of(model: type[BaseModel]) -> Iterator[tuple[str, str, FieldInfo]]:
    """Give (key, attribute, field) for each field of a model."""
    for name, field in model.model_fields.items():
        yield key_of(name, field), name, field


INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

Int32 = Annotated[int, Format("int32"), Ge(-INT32_MAX - 1), Le(INT32_MAX)]
Int64 = Annotated[int, Format("int64"), Ge(-INT64_MAX - 1), Le(INT64_MAX)]
Count = Annotated[int, Format("int32"), Ge(1), Le(INT32_MAX)]
Natural = Annotated[int, Format("int32"), Ge(0), Le(INT32_MAX)]
Count64 = Annotated[int, Format("int64"), Ge(1), Le(INT64_MAX)]
Natural64 = Annotated[int, Format("int64"), Ge(0), Le(INT64_MAX)]

Number = float
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Fraction = Annotated[float, Ge(0), Le(1)]
Share = Annotated[float, Gt(0), Le(1)]

Word = Annotated[str, MaxLen(128)]
Name = Annotated[str, MaxLen(253)]
Path = Annotated[str, MaxLen(1024)]

FreeForm = Annotated[dict[str, Any], MaxLen(128), Preserved()]
"""An object that is passed on as it is."""

QualifiedName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")]
"""A name with its domain, such as `nvidia.com/gpu`."""

DnsName = Annotated[Name, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
"""Name of a Kubernetes object."""

T = TypeVar("T")
Items = Annotated[tuple[T, ...], Strict(False)]
"""A list of a manifest. A tuple in Python, since models are frozen."""

QUANTITY_PATTERN = (
    r"^(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
_SUFFIXES = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1,
    "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip


def quantity_value(quantity: str) -> float:
    """Value of a Kubernetes quantity: `512Gi` is 549755813888, `500m` is 0.5.

    Raises:
        ValueError: it is not one.
    """
    match = re.fullmatch(r"([0-9.]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9.]+)?", quantity)
    if match is None or not re.search(QUANTITY_PATTERN, quantity):
        raise ValueError(f"{quantity} is not a quantity such as 500m, 4 or 512Gi")
    number, suffix = float(match[1]), match[2] or ""
    if suffix in _SUFFIXES:
        return number * _SUFFIXES[suffix]
    return number * 10 ** float(suffix[1:])


def quantity_bytes(quantity: str) -> int:
    """Bytes that a quantity of memory or storage stands for."""
    return int(quantity_value(quantity))


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _above_zero(quantity: str) -> str:
    if quantity_value(quantity) <= 0:
        raise ValueError("must be above 0")
    return quantity


Quantity = Annotated[
    str,
    MaxLen(32),
    StringConstraints(pattern=QUANTITY_PATTERN),
    BeforeValidator(_as_text),
    Format("quantity"),
]
"""A Kubernetes quantity, as text. A manifest may give a whole number."""

Size = Annotated[Quantity, AfterValidator(_above_zero)]
"""A quantity above 0."""
