"""Kubernetes objects as plain dictionaries, over the official client's connection."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client import ApiClient

from asyncrl_operator.manifests.names import FIELD_MANAGER

Object = dict[str, Any]

CALL_SECONDS = 20.0
PAGE = 500
_LINE_SECONDS = 90.0
"""A watch that is silent for longer is dead: the server sends a bookmark a minute."""

MERGE_PATCH, APPLY_PATCH = "application/merge-patch+json", "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class Kind:
    """Where the objects of one kind are."""

    name: str
    prefix: str
    plural: str

    def path(self, namespace: str | None = None, name: str | None = None, *rest: str) -> str:
        """Of all objects, of a namespace's, or of one."""
        inside = f"/namespaces/{namespace}" if namespace else ""
        return "/".join([f"{self.prefix}{inside}/{self.plural}", *([name] if name else []), *rest])


JOBS = Kind("AsyncRLJob", "/apis/asyncrl.io/v1alpha1", "asyncrljobs")
RAY_CLUSTERS = Kind("RayCluster", "/apis/ray.io/v1", "rayclusters")
PODS = Kind("Pod", "/api/v1", "pods")
SECRETS = Kind("Secret", "/api/v1", "secrets")
SERVICES = Kind("Service", "/api/v1", "services")
CLAIMS = Kind("PersistentVolumeClaim", "/api/v1", "persistentvolumeclaims")
EVENTS = Kind("Event", "/api/v1", "events")
POLICIES = Kind("NetworkPolicy", "/apis/networking.k8s.io/v1", "networkpolicies")
BUDGETS = Kind("PodDisruptionBudget", "/apis/policy/v1", "poddisruptionbudgets")
POD_MONITORS = Kind("PodMonitor", "/apis/monitoring.coreos.com/v1", "podmonitors")
LEASES = Kind("Lease", "/apis/coordination.k8s.io/v1", "leases")
BY_NAME = {
    kind.name: kind
    for kind in (RAY_CLUSTERS, PODS, SECRETS, SERVICES, CLAIMS, POLICIES, BUDGETS, POD_MONITORS)
}


@dataclass(eq=False)
class ApiError(Exception):
    """The API server refused a call, or could not be reached (status 0)."""

    call: str
    status: int
    reason: str
    message: str
    retry_after: float = 0.0

    def __str__(self) -> str:
        return f"{self.call}: {self.status} {self.reason}: {self.message}"


@dataclass(slots=True)
class Api:
    """Calls, each with a deadline."""

    client: ApiClient

    async def all(
        self, kind: Kind, *, labels: str = "", namespace: str | None = None
    ) -> tuple[list[Object], str]:
        """All objects, in pages, and the version that they are of."""
        found: list[Object] = []
        query: dict[str, Any] = {"limit": PAGE}
        if labels:
            query["labelSelector"] = labels
        while True:
            page = await self._call("GET", kind.path(namespace), query=query)
            found += page.get("items", [])
            following = page["metadata"].get("continue")
            if not following:
                return found, page["metadata"]["resourceVersion"]
            query["continue"] = following

    async def watch(
        self, kind: Kind, version: str, *, labels: str = "", namespace: str | None = None, seconds: int = 290
    ) -> AsyncIterator[tuple[str, Object]]:
        """Changes after a version, bookmarks among them, for at most `seconds`. Raises ApiError."""
        query = {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        if labels:
            query["labelSelector"] = labels
        path = kind.path(namespace)
        try:
            response = await self._send(
                "GET", path, query, None, "application/json", aiohttp.ClientTimeout(sock_read=_LINE_SECONDS)
            )
            try:
                await _raise_for(response, f"watch {kind.plural}")
                async for line in response.content:
                    change = json.loads(line)
                    if change["type"] == "ERROR":
                        raise _error(f"watch {kind.plural}", change["object"], {})
                    yield change["type"], change["object"]
            finally:
                response.close()
        except (aiohttp.ClientError, TimeoutError, ValueError) as problem:
            raise ApiError(f"watch {kind.plural}", 0, type(problem).__name__, str(problem)) from problem

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """One object; None: there is none."""
        try:
            return await self._call("GET", kind.path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def create(self, kind: Kind, manifest: Object) -> Object:
        """Make an object, strictly."""
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        return await self._call(
            "POST", kind.path(manifest["metadata"].get("namespace")), manifest, query=query
        )

    async def apply(self, kind: Kind, manifest: Object) -> Object:
        """Make an object that we own whole, or bring it to this form."""
        meta = manifest["metadata"]
        query = {"fieldManager": FIELD_MANAGER, "force": "true", "fieldValidation": "Strict"}
        path = kind.path(meta.get("namespace"), meta["name"])
        return await self._call("PATCH", path, manifest, query=query, content=APPLY_PATCH)

    async def patch(self, kind: Kind, namespace: str, name: str, body: Object, *rest: str) -> Object:
        """Merge a part into an object, or into a subresource of it."""
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        return await self._call(
            "PATCH", kind.path(namespace, name, *rest), body, query=query, content=MERGE_PATCH
        )

    async def replace_status(self, kind: Kind, manifest: Object) -> Object:
        """Replace the status of an object, if it still has the version that is in it."""
        meta = manifest["metadata"]
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        path = kind.path(meta["namespace"], meta["name"], "status")
        return await self._call("PUT", path, manifest, query=query)

    async def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        grace: int | None = None,
        after_its_own: bool = False,
    ) -> None:
        """Delete an object of this UID alone, and what it owns. One that is gone is no error.

        With `after_its_own` it stays, as being deleted, until what it owns is gone.
        """
        policy = "Foreground" if after_its_own else "Background"
        body: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": policy}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        try:
            await self._call("DELETE", kind.path(namespace, name), body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def _call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        content: str = "application/json",
    ) -> Object:
        call = f"{method.lower()} {path}"
        try:
            timeout = aiohttp.ClientTimeout(total=CALL_SECONDS)
            response = await self._send(method, path, query or {}, body, content, timeout)
            await _raise_for(response, call)
            return json.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError, ValueError) as problem:
            raise ApiError(call, 0, type(problem).__name__, str(problem)) from problem

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any],
        body: Object | None,
        content: str,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        headers = {"Content-Type": content, "Accept": "application/json", "User-Agent": "asyncrl-operator"}
        await self.client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        configuration = self.client.configuration
        url = f"{configuration.host}{path}{f'?{urlencode(query)}' if query else ''}"
        pool = self.client.rest_client.pool_manager
        if pool is None:
            pool = self.client.rest_client.pool_manager = self.client.rest_client._create_pool_manager()
        return await pool.request(
            method, url, data=None if body is None else json.dumps(body), headers=headers, timeout=timeout
        )


async def _raise_for(response: aiohttp.ClientResponse, call: str) -> None:
    if response.status < 400:
        return
    text = await response.text()
    try:
        status = json.loads(text)
    except ValueError:
        status = {"code": response.status, "message": text[:500]}
    raise _error(call, status, response.headers)


def _error(call: str, status: Mapping[str, Any], headers: Mapping[str, str]) -> ApiError:
    seconds = headers.get("Retry-After", "0")
    return ApiError(
        call,
        int(status.get("code") or 0),
        str(status.get("reason") or ""),
        str(status.get("message") or ""),
        float(seconds) if seconds.isdigit() else 0.0,
    )
