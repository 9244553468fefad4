"""Brings every job a step closer to its spec whenever something of it changes."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import grpc
import structlog

from asyncrl_api.status import JobStatus
from asyncrl_operator.core import actions as act
from asyncrl_operator.core.facts import Job, Pod, Snapshot
from asyncrl_operator.core.plan import plan
from asyncrl_operator.core.times import written
from asyncrl_operator.kube import api as kinds
from asyncrl_operator.kube.api import Api, ApiError, Kind, Object
from asyncrl_operator.kube.informer import Informer
from asyncrl_operator.kube.link import Link
from asyncrl_operator.kube.queue import WorkQueue
from asyncrl_operator.kube.reading import claim_of, cluster_of, job_of, pod_of, utc_now
from asyncrl_operator.manifests import beside
from asyncrl_operator.manifests.names import (
    ATTEMPT_LABEL,
    CONTROL_PORT,
    FINALIZER,
    JOB_LABEL,
    Settings,
    attempt_name,
    claim_name,
)

log = structlog.get_logger("asyncrl.operator")

_SYNC_SECONDS = 30.0
_KUBERAY_SECONDS = 3.0
"""A cluster without KubeRay has no RayClusters to list; jobs are told so and wait."""

_EVENT_SECONDS = 600.0
_NUDGE = "asyncrl.io/nudge"


class Key(NamedTuple):
    """A job."""

    namespace: str
    name: str


@dataclass(slots=True, eq=False)
class _Memory:
    """What this process knows of an attempt and nobody else needs."""

    attempt: int | None = None
    first_head: str | None = None
    listening: datetime | None = None
    told: set[str] = field(default_factory=set)
    pending: tuple[str, ...] = ()
    link: Link | None = None


def control_address(pod: Pod) -> str:
    """Where the controller of a head pod is reached."""
    return f"{pod.ip}:{CONTROL_PORT}"


@dataclass(slots=True, eq=False)
class Operator:
    """Reads from caches, plans, carries out, and writes the status last and only if it differs."""

    api: Api
    settings: Settings
    namespace: str | None = None
    """Whose jobs are looked after; None: those of all namespaces."""

    address: Callable[[Pod], str] = control_address
    clock: Callable[[], datetime] = utc_now
    may_write: Callable[[], bool] = lambda: True
    queue: WorkQueue[Key] = field(init=False)
    informers: dict[str, Informer] = field(init=False)
    _memories: dict[str, _Memory] = field(default_factory=dict, init=False)
    _events: dict[tuple[str, str, str], datetime] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.queue = WorkQueue(self.reconcile)
        watched: tuple[tuple[Kind, str], ...] = (
            (kinds.JOBS, ""),
            (kinds.RAY_CLUSTERS, JOB_LABEL),
            (kinds.PODS, JOB_LABEL),
            (kinds.SECRETS, JOB_LABEL),
            (kinds.BUDGETS, JOB_LABEL),
            (kinds.CLAIMS, ""),
        )
        self.informers = {
            kind.name: Informer(self.api, kind, self._woken(kind), labels=labels, namespace=self.namespace)
            for kind, labels in watched
        }

    async def run(self) -> None:
        """Never returns. Raises TimeoutError when the API server does not answer at the start."""
        async with asyncio.TaskGroup() as group:
            for informer in self.informers.values():
                group.create_task(informer.run(), name=f"informer of {informer.kind.name}")
            others = [found for name, found in self.informers.items() if name != kinds.RAY_CLUSTERS.name]
            async with asyncio.timeout(_SYNC_SECONDS):
                await asyncio.gather(*(informer.synced.wait() for informer in others))
            with suppress(TimeoutError):
                async with asyncio.timeout(_KUBERAY_SECONDS):
                    await self.informers[kinds.RAY_CLUSTERS.name].synced.wait()
            group.create_task(self.queue.run(), name="work queue")

    async def close(self) -> None:
        """Leave the controllers."""
        for memory in self._memories.values():
            if memory.link is not None:
                await memory.link.close()

    def wake(self, namespace: str, name: str) -> None:
        """Something of this job has changed."""
        self.queue.add(Key(namespace, name))

    def wake_all(self) -> None:
        """Everything may have changed: another operator has written, or nobody has."""
        for job in self.informers[kinds.JOBS.name]:
            self.wake(job["metadata"]["namespace"], job["metadata"]["name"])

    async def reconcile(self, key: Key) -> float | None:
        """One pass. Safe to repeat, and to stop half-way; gives when to look again."""
        found = self.informers[kinds.JOBS.name].get(*key)
        if found is None:
            return None
        job = job_of(found)
        if not self.may_write() or (job.spec and job.spec.managed_by != "asyncrl.io/operator"):
            return None
        seen = await self._snapshot(job)
        planned = plan(seen, now=self.clock())
        wrote = False
        for action in planned.actions:
            await self._carry_out(action, job)
            wrote = wrote or not isinstance(action, act.Tell)
        if not planned.gone and planned.status != job.status:
            await self._write_status(self.informers[kinds.JOBS.name].get(*key) or found, planned.status)
            wrote = True
        if wrote:
            return 0.0
        return planned.again.total_seconds() if planned.again is not None else None

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────

    def _woken(self, kind: Kind) -> Callable[[Object], None]:
        """Whose pass a change of such an object asks for."""

        def job(item: Object) -> None:
            self.wake(item["metadata"]["namespace"], item["metadata"]["name"])

        def child(item: Object) -> None:
            owner = (item["metadata"].get("labels") or {}).get(JOB_LABEL)
            if owner:
                self.wake(item["metadata"]["namespace"], owner)

        def claim(item: Object) -> None:
            for found in self.informers[kinds.JOBS.name]:
                if found["metadata"]["namespace"] == item["metadata"]["namespace"]:
                    job(found)

        return {kinds.JOBS.name: job, kinds.CLAIMS.name: claim}.get(kind.name, child)

    async def _snapshot(self, job: Job) -> Snapshot:
        identity = job.identity
        pods = tuple(pod for item in self._owned(kinds.PODS, job) if (pod := pod_of(item)))
        clusters = self._owned(kinds.RAY_CLUSTERS, job)
        if job.status.attempt is not None and job.status.attempt.ray_cluster_name is not None:
            named = self.informers[kinds.RAY_CLUSTERS.name].get(
                identity.namespace, job.status.attempt.ray_cluster_name
            )
            if named is not None and named not in clusters:  # somebody else's: the plan must see it
                clusters.append(named)
        claim = claim_name(identity.name, job.spec) if job.spec else None
        children = frozenset(
            (kind.name, item["metadata"]["name"])
            for kind in (kinds.SECRETS, kinds.BUDGETS)
            for item in self._owned(kind, job)
        )
        memory = await self._memory(job, pods)
        return Snapshot(
            job=job,
            settings=self.settings,
            kuberay=self.informers[kinds.RAY_CLUSTERS.name].synced.is_set(),
            clusters=tuple(map(cluster_of, clusters)),
            pods=pods,
            claim=claim_of(
                self.informers[kinds.CLAIMS.name].get(identity.namespace, claim) if claim else None
            ),
            children=children,
            report=memory.link.report if memory.link else None,
            listening=memory.listening,
            first_head=memory.first_head,
            told=frozenset(memory.told),
            pending_config=memory.pending,
        )

    def _owned(self, kind: Kind, job: Job) -> list[Object]:
        return self.informers[kind.name].of_job(job.identity.uid)

    async def _memory(self, job: Job, pods: tuple[Pod, ...]) -> _Memory:
        """What is known of the attempt; its controller is dialled once it has an address."""
        memory = self._memories.setdefault(job.identity.uid, _Memory())
        number = job.status.attempt.number if job.status.attempt else None
        if memory.attempt != number:
            if memory.link is not None:
                await memory.link.close()
            memory = self._memories[job.identity.uid] = _Memory(attempt=number)
        heads = [pod for pod in pods if pod.role == "controller" and pod.attempt == number]
        if memory.first_head is None and heads:
            memory.first_head = min(heads, key=lambda pod: pod.created).uid
        head = next((pod for pod in heads if pod.uid == memory.first_head), None)
        if memory.link is None and head is not None and head.ip and number is not None:
            token = self._token(job, number)
            if token:
                key = Key(job.identity.namespace, job.identity.name)
                memory.link = Link(
                    self.address(head), token, head.uid, changed=lambda: self.queue.add_after(key, 0.2)
                )
                memory.link.start()
                memory.listening = self.clock()
        return memory

    def _token(self, job: Job, attempt: int) -> str:
        name = attempt_name(job.identity.name, attempt)
        found = self.informers[kinds.SECRETS.name].get(job.identity.namespace, name)
        encoded = (found or {}).get("data", {}).get("control_token", "")
        return base64.b64decode(encoded).decode()

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────

    async def _carry_out(self, action: act.Action, job: Job) -> None:
        identity = job.identity
        match action:
            case act.AddFinalizer():
                await self._finalizers(job, (*job.finalizers, FINALIZER))
            case act.RemoveFinalizer():
                await self._finalizers(job, tuple(name for name in job.finalizers if name != FINALIZER))
                self._forget(identity.uid)
            case act.DeleteJob():
                await self.api.delete(kinds.JOBS, identity.namespace, identity.name, uid=identity.uid)
            case act.Create(manifest):
                await self._create(manifest)
            case act.CreateSecret(attempt):
                tokens = {"auth_token": secrets.token_hex(32), "control_token": secrets.token_hex(32)}
                await self._create(beside.secret(identity, job.raw_spec, attempt, **tokens))
            case act.Apply(manifest):
                kind = kinds.BY_NAME[manifest["kind"]]
                self._take(kind, await self.api.apply(kind, manifest))
            case act.DeleteCluster(name, uid, at_once):
                await self._delete_cluster(job, name, uid, at_once=at_once)
            case act.DeleteAttempt(attempt):
                name = attempt_name(identity.name, attempt)
                for kind in (kinds.SECRETS, kinds.BUDGETS):
                    await self.api.delete(kind, identity.namespace, name)
                    self.informers[kind.name].drop(identity.namespace, name)
            case act.Nudge(name):
                body = {"metadata": {"annotations": {_NUDGE: written(self.clock())}}}
                await self.api.patch(kinds.RAY_CLUSTERS, identity.namespace, name, body)
            case act.Ask():
                await self._ask(action, job)
            case act.Tell():
                await self._tell(action, job)

    async def _create(self, manifest: Object) -> None:
        """One that exists is taken as it is: the plan sees whose it is."""
        kind, meta = kinds.BY_NAME[manifest["kind"]], manifest["metadata"]
        try:
            found: Object | None = await self.api.create(kind, manifest)
        except ApiError as error:
            if error.status != 409 or error.reason != "AlreadyExists":
                raise
            found = await self.api.get(kind, meta["namespace"], meta["name"])
        if found is not None:
            self._take(kind, found)

    def _take(self, kind: Kind, found: Object) -> None:
        if kind.name in self.informers:
            self.informers[kind.name].take(found)

    async def _finalizers(self, job: Job, names: tuple[str, ...]) -> None:
        body: dict[str, Any] = {"metadata": {"finalizers": list(names), "uid": job.identity.uid}}
        found = await self.api.patch(kinds.JOBS, job.identity.namespace, job.identity.name, body)
        self._take(kinds.JOBS, found)

    async def _delete_cluster(self, job: Job, name: str, uid: str, *, at_once: bool) -> None:
        """Pods first where nothing of theirs is wanted: the collector would start their whole grace."""
        namespace = job.identity.namespace
        if at_once:
            for pod in self._owned(kinds.PODS, job):
                if attempt_name(job.identity.name, int(pod["metadata"]["labels"][ATTEMPT_LABEL])) == name:
                    meta = pod["metadata"]
                    await self.api.delete(kinds.PODS, namespace, meta["name"], uid=meta["uid"], grace=1)
        await self.api.delete(kinds.RAY_CLUSTERS, namespace, name, uid=uid, after_its_own=True)
        found = await self.api.get(kinds.RAY_CLUSTERS, namespace, name)
        if found is None:
            self.informers[kinds.RAY_CLUSTERS.name].drop(namespace, name)
        else:
            self._take(kinds.RAY_CLUSTERS, found)

    async def _ask(self, wish: act.Ask, job: Job) -> None:
        memory = self._memories.get(job.identity.uid)
        if memory is None or memory.link is None:
            return
        manifest = {
            "apiVersion": "asyncrl.io/v1alpha1",
            "kind": "AsyncRLJob",
            "metadata": {"name": job.identity.name, "namespace": job.identity.namespace},
            "spec": job.raw_spec,
        }
        try:
            waiting = await memory.link.ask(wish, job=manifest, generation=job.identity.generation)
        except grpc.aio.AioRpcError as error:
            raise ApiError(
                f"the controller's {wish.what}", 0, error.code().name, error.details() or ""
            ) from error
        if wish.what == "apply_config":
            memory.pending = waiting
        if wish.what == "release":
            memory.told.discard(wish.key)
        else:
            memory.told.add(wish.key)

    async def _write_status(self, found: Object, status: JobStatus) -> None:
        body = {**found, "status": status.model_dump(by_alias=True, exclude_none=True, mode="json")}
        self._take(kinds.JOBS, await self.api.replace_status(kinds.JOBS, body))

    async def _tell(self, told: act.Tell, job: Job) -> None:
        """One event for each reason and message in ten minutes; one that is lost holds nothing up."""
        now, identity = self.clock(), job.identity
        known = (identity.uid, told.reason, told.message)
        self._events = {
            key: at for key, at in self._events.items() if now - at < timedelta(seconds=_EVENT_SECONDS)
        }
        if known in self._events:
            return
        self._events[known] = now
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "generateName": f"{identity.name}.",
                "namespace": identity.namespace,
            },
            "involvedObject": {
                "apiVersion": "asyncrl.io/v1alpha1",
                "kind": "AsyncRLJob",
                "name": identity.name,
                "namespace": identity.namespace,
                "uid": identity.uid,
            },
            "reason": told.reason,
            "message": told.message[:1024],
            "type": "Warning" if told.warning else "Normal",
            "count": 1,
            "firstTimestamp": written(now),
            "lastTimestamp": written(now),
            "source": {"component": "asyncrl-operator"},
            "reportingComponent": "asyncrl-operator",
            "reportingInstance": "",
        }
        try:
            await self.api.create(kinds.EVENTS, event)
        except ApiError as error:
            log.warning("an event was lost", reason=str(error))

    def _forget(self, uid: str) -> None:
        memory = self._memories.pop(uid, None)
        if memory is not None and memory.link is not None:
            task = asyncio.ensure_future(memory.link.close())
            task.add_done_callback(lambda done: done.exception())
