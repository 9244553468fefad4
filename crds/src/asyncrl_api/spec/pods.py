"""Pods of the roles: a small typed subset, and an overlay for the rest."""

from typing import Annotated, Literal

from annotated_types import MaxLen
from pydantic import Field, StringConstraints

from asyncrl_api.base import ApiModel, DefaultsTo, FreeForm, Items, Name, Natural64, OpenModel, Path, Quantity


class LocalObjectReference(ApiModel):
    """A Secret of the job's namespace, by name."""

    name: Name
    """Name of a Secret in the job's namespace."""


class ResourceRequirements(ApiModel):
    """Resources of the main container, without GPUs: those follow from `gpusPerShard` and `gpusPerHost`."""

    requests: Annotated[
        Annotated[dict[Name, Quantity], MaxLen(16)] | None,
        DefaultsTo("controller: cpu 2, memory 8Gi; others: cpu 1, memory 4Gi, or cpu 4, memory 32Gi per GPU"),
    ] = None
    """What the container is guaranteed."""

    limits: Annotated[
        Annotated[dict[Name, Quantity], MaxLen(16)] | None, DefaultsTo("memory as requested")
    ] = None
    """What the container may use at most."""


class Toleration(ApiModel):
    """A taint that the pod accepts."""

    key: Annotated[str, MaxLen(317)] | None = None
    """Key of the taint. Unset with `Exists`: every taint."""

    operator: Literal["Equal", "Exists"] = "Equal"
    """How the value is compared."""

    value: Annotated[str, MaxLen(63)] | None = None
    """Value of the taint."""

    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint. Unset: all."""

    toleration_seconds: Natural64 | None = None
    """How long a NoExecute taint is accepted. Unset: for ever."""


class KeySelector(ApiModel):
    """One key of a Secret or ConfigMap."""

    name: Name
    """Name of the Secret."""

    key: Name
    """Key in it."""


class EnvVarSource(ApiModel):
    """Take the value from a Secret or ConfigMap."""

    secret_key_ref: KeySelector | None = None
    """One key of a Secret."""

    config_map_key_ref: KeySelector | None = None
    """One key of a ConfigMap."""


class EnvVar(ApiModel):
    """An environment variable of the main container."""

    name: Annotated[Name, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$")]
    """Name of the variable."""

    value: Annotated[str, MaxLen(4096)] | None = None
    """Its value."""

    value_from: EnvVarSource | None = None
    """Take the value from a Secret or ConfigMap."""


class Volume(OpenModel):
    """A volume of the pod, as in Kubernetes."""

    name: Annotated[str, MaxLen(63), StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    """Name that mounts refer to."""


class VolumeMount(ApiModel):
    """Where a volume appears in the main container."""

    name: Annotated[str, MaxLen(63)]
    """Name of the volume."""

    mount_path: Annotated[Path, StringConstraints(pattern=r"^/.*$")]
    """Path in the container."""

    sub_path: Path | None = None
    """Part of the volume to mount."""

    read_only: bool = False
    """Mount it read-only."""


class PodFields(ApiModel):
    """Fields of a role's pods and of its main container."""

    image: Annotated[Annotated[str, MaxLen(512)] | None, DefaultsTo("image")] = None
    """Image of this role's pods only."""

    resources: ResourceRequirements = Field(default_factory=ResourceRequirements)
    """Resources of the main container, without GPUs: those follow from `gpusPerShard` and `gpusPerHost`."""

    node_selector: Annotated[
        Annotated[dict[Annotated[str, MaxLen(317)], Annotated[str, MaxLen(63)]], MaxLen(32)] | None,
        DefaultsTo("{}"),
    ] = None
    """Labels that a node must have."""

    tolerations: Annotated[Items[Toleration], MaxLen(32)] = ()
    """Taints that the pod accepts."""

    affinity: FreeForm | None = None
    """Affinity, as in Kubernetes."""

    env: Annotated[Items[EnvVar], MaxLen(64)] = ()
    """Environment variables of the main container."""

    volumes: Annotated[Items[Volume], MaxLen(32)] = ()
    """Volumes of the pod, as in Kubernetes. Per-pod scratch space: an ephemeral volume."""

    volume_mounts: Annotated[Items[VolumeMount], MaxLen(32)] = ()
    """Where volumes appear in the main container."""

    security_context: FreeForm | None = None
    """Security context of the main container, as in Kubernetes. Unset: non-root, no privilege escalation,
    all capabilities dropped."""

    pod_template: FreeForm | None = None
    """Anything else: `metadata` and `spec` merged over the pod that the operator renders, containers by
    name. Labels, names and commands that the operator owns are refused."""


class ControllerSpec(PodFields):
    """The head pod, where the controller runs and no GPU is used."""
