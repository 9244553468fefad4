"""What kopf calls: handlers wake, and do nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kopf

from asyncrl_operator.kube.operator import Operator

JOBS = ("asyncrl.io", "v1alpha1", "asyncrljobs")
_SERVER_SECONDS = 290


@dataclass(slots=True)
class Memo:
    """What handlers reach."""

    operator: Operator


def registry() -> kopf.OperatorRegistry:
    """All handlers. None of them makes kopf write onto a job."""
    found = kopf.OperatorRegistry()

    @kopf.on.startup(registry=found)
    def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.peering.standalone = True
        settings.posting.enabled = False
        settings.scanning.disabled = True
        settings.watching.server_timeout = _SERVER_SECONDS
        settings.watching.reconnect_backoff = 1.0

    @kopf.on.login(registry=found)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.event(*JOBS, registry=found)
    async def wake(namespace: str | None, name: str | None, memo: Memo, **_: Any) -> None:
        if namespace and name:
            memo.operator.wake(namespace, name)

    return found
