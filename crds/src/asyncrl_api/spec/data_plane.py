"""Where rollout rows live between generation and training."""

from typing import Annotated, Literal

from annotated_types import Le
from pydantic import Field

from asyncrl_api.base import WARM, ApiModel, Count, Count64, DefaultsTo, Positive, Size


class DataPlaneObservability(ApiModel):
    """Cost metrics of the data plane."""

    enabled: bool = True
    """Count operations, bytes and time."""


class DataPlaneSpec(ApiModel):
    """Where rollout rows live between generation and training."""

    backend: Literal["simple", "mooncake_cpu", "inProcess"] = "simple"
    """`simple`: TransferQueue actors. `mooncake_cpu`: Mooncake, whose rows cannot be saved. `inProcess`:
    memory of the controller; the whole run is then one process."""

    storage_capacity: Annotated[Count64, WARM] = 1000000
    """Rows it can hold. Must fit the buffer plus the step being trained."""

    num_storage_units: Annotated[Count, Le(1024)] = 2
    """Storage actors of `simple`. A saved buffer can be loaded only by the same number."""

    global_segment_size: Annotated[Size | None, DefaultsTo("512Gi"), WARM] = None
    """mooncake_cpu: memory of the whole store."""

    local_buffer_size: Annotated[Size | None, DefaultsTo("64Gi"), WARM] = None
    """mooncake_cpu: memory of each client's buffer."""

    ack_timeout_seconds: Annotated[Positive | None, WARM] = None
    """How long a write waits for its acknowledgement. Unset: the library's own limit."""

    observability: Annotated[DataPlaneObservability, WARM] = Field(default_factory=DataPlaneObservability)
    """Cost metrics of the data plane."""
