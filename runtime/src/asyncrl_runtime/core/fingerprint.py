"""Which settings the rollouts of a run depend on, and whether two runs agree on them (SC-9.95 to 9.101)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256

FORMAT_VERSION = 1

_POD = (
    "affinity",
    "env",
    "image",
    "nodeSelector",
    "podTemplate",
    "resources",
    "securityContext",
    "segmentSize",
    "tolerations",
    "volumeMounts",
    "volumes",
)

OPERATIONAL: tuple[str, ...] = (
    *(f"{role}.{key}" for role in ("generation", "training") for key in _POD),
    "asyncRL.diagnostics",
    "asyncRL.stallWatchdog",
    "asyncRL.telemetryIntervalSeconds",
    "checkpointing.directory",
    "checkpointing.mountPath",
    "checkpointing.timeoutSeconds",
    "checkpointing.volume",
    "controller",
    "faultPolicy",
    "gpuResourceName",
    "image",
    "imagePullPolicy",
    "imagePullSecrets",
    "lifecycle",
    "logging",
    "managedBy",
    "nodeQuarantine",
    "observability",
    "rayVersion",
    "rolloutCheckpointing",
    "scheduling",
    "security",
    "suspend",
)
"""What has no influence on prompts, sampling or scoring. Everything else counts, also keys added later."""

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Identity:
    """The settings that count, by dotpath, as canonical JSON text; and which were left out on request."""

    values: Mapping[str, str]
    excluded: tuple[str, ...]

    @property
    def fingerprint(self) -> str:
        """Digest of the values, the exclusions and the version of this format."""
        return sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, object]:
        """As JSON values."""
        return {
            "format": FORMAT_VERSION,
            "excluded": sorted(self.excluded),
            "values": dict(sorted(self.values.items())),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> Identity | None:
        """From what `to_json` gave; None for another version of the format."""
        if value.get("format") != FORMAT_VERSION:
            return None
        values, excluded = value["values"], value["excluded"]
        return cls(dict(values), tuple(excluded))  # type: ignore[call-overload,arg-type]


def identity_of(spec: Mapping[str, object], excluded: Iterable[str] = ()) -> Identity:
    """The identity of a resolved spec whose credentials are redacted already.

    `excluded`: more dotpaths to leave out with all that is below them; `*` stands for one mapping or list
    level, `**` for any number.
    """
    excluded = tuple(excluded)
    patterns = [tuple(path.split(".")) for path in (*OPERATIONAL, *excluded)]
    values = {
        ".".join(path): _canonical(value) for path, value in _leaves(spec, ()) if not _hidden(path, patterns)
    }
    return Identity(values, excluded)


def differences(saved: Identity, now: Identity) -> list[str]:
    """What changed, one line a path: old and new value; exclusions that differ are a change as well."""
    lines = [
        f"{path}: {saved.values.get(path, 'absent')} → {now.values.get(path, 'absent')}"
        for path in sorted({*saved.values, *now.values})
        if saved.values.get(path) != now.values.get(path)
    ]
    if sorted(saved.excluded) != sorted(now.excluded):
        lines.append(
            "rolloutCheckpointing.extraFingerprintExcludedPaths: "
            f"{sorted(saved.excluded)} → {sorted(now.excluded)}"
        )
    return lines


def _leaves(value: object, path: Path) -> list[tuple[Path, object]]:
    """Every scalar, and every empty mapping or list, with its path."""
    if isinstance(value, Mapping) and value:
        return [leaf for key, part in value.items() for leaf in _leaves(part, (*path, str(key)))]
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return [leaf for index, part in enumerate(value) for leaf in _leaves(part, (*path, str(index)))]
    return [(path, value)]


def _canonical(value: object) -> str:
    """One text per value: whole floats are written as integers, so 1 and 1.0 agree."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _hidden(path: Path, patterns: Sequence[Path]) -> bool:
    return any(_matches_above(path, pattern) for pattern in patterns)


@lru_cache(maxsize=65536)
def _matches_above(path: Path, pattern: Path) -> bool:
    """Whether the pattern names the path or something above it."""
    if not pattern:
        return True
    if pattern[0] == "**":
        return any(_matches_above(path[skip:], pattern[1:]) for skip in range(len(path) + 1))
    return bool(path) and pattern[0] in ("*", path[0]) and _matches_above(path[1:], pattern[1:])
