"""The operator's process: `python -m asyncrl_operator`. Configured by environment variables."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass

import kopf
import structlog
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from asyncrl_operator.handlers import Memo, registry
from asyncrl_operator.kube.api import JOBS, Api, ApiError
from asyncrl_operator.kube.lease import Lease
from asyncrl_operator.kube.operator import Operator
from asyncrl_operator.manifests.names import Settings

log = structlog.get_logger("asyncrl.operator")

LEASE = "asyncrl-operator"
_STOP_SECONDS = 8.0


@dataclass(frozen=True, slots=True)
class Options:
    """What the operator's pod gives it."""

    settings: Settings
    watched: str | None
    """Namespace whose jobs are looked after; None: all."""

    @classmethod
    def of(cls, environ: os._Environ[str]) -> Options:
        """Raises ValueError naming the variable that lacks."""
        image = environ.get("ASYNCRL_RUNTIME_IMAGE", "")
        if not image:
            raise ValueError("ASYNCRL_RUNTIME_IMAGE is not set: it is the image of jobs that name none")
        namespace = environ.get("ASYNCRL_NAMESPACE", "asyncrl-system")
        monitors = environ.get("ASYNCRL_POD_MONITORS", "") == "true"
        settings = Settings(image=image, namespace=namespace, pod_monitors=monitors)
        return cls(settings, environ.get("ASYNCRL_WATCH_NAMESPACE") or None)


async def connected() -> Api:
    """As the pod's service account, or else as the kubeconfig says."""
    configuration = Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        await config.load_kube_config(client_configuration=configuration)
    return Api(ApiClient(configuration))


async def run(options: Options) -> int:
    """Until a signal; the exit status."""
    api = await connected()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    lease = Lease(api, options.settings.namespace, LEASE, f"{socket.gethostname()}_{os.getpid()}")
    operator = Operator(api, options.settings, namespace=options.watched, may_write=lease.holds)
    lease.taken = operator.wake_all
    try:
        await api.all(JOBS, namespace=options.watched)
        return await _serve(options, operator, lease, stop)
    except ApiError as error:
        hint = "; install crds/asyncrljobs.yaml" if error.status == 404 else ""
        log.error("the operator cannot start", reason=f"{error}{hint}")
        return 1
    finally:
        with suppress(ApiError):
            await lease.release()
        await operator.close()
        await api.client.close()


async def _serve(options: Options, operator: Operator, lease: Lease, stop: asyncio.Event) -> int:
    """Everything until the first part ends: none of them does by itself."""
    parts = {
        "lease": asyncio.create_task(lease.run()),
        "operator": asyncio.create_task(operator.run()),
        "kopf": asyncio.create_task(
            kopf.operator(
                registry=registry(),
                memo=Memo(operator),  # pyrefly: ignore
                namespaces=[options.watched] if options.watched else (),
                clusterwide=options.watched is None,
                stop_flag=stop,
            )
        ),
        "stop": asyncio.create_task(stop.wait()),
    }
    done, _ = await asyncio.wait(parts.values(), return_when=asyncio.FIRST_COMPLETED)
    stop.set()
    ended = next(name for name, task in parts.items() if task in done)
    problem = None if ended == "stop" else parts[ended].exception()
    for name, task in parts.items():
        if name != "kopf":
            task.cancel()
    with suppress(TimeoutError):
        async with asyncio.timeout(_STOP_SECONDS):
            await asyncio.gather(*parts.values(), return_exceptions=True)
    if ended == "stop" or (ended == "kopf" and problem is None):  # kopf takes signals for itself
        return 0
    log.error("a part of the operator ended", part=ended, reason=str(problem))
    return 1


def main() -> None:
    """Entry point."""
    try:
        options = Options.of(os.environ)
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(64) from None
    raise SystemExit(asyncio.run(run(options)))


if __name__ == "__main__":
    main()
