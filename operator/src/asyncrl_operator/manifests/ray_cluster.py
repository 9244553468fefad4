"""The RayCluster of one attempt."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from asyncrl_api.job import JobSpec
from asyncrl_api.spec.pods import PodFields
from asyncrl_operator.manifests.names import (
    GENERATION_ANNOTATION,
    HASH_ANNOTATION,
    Identity,
    Manifest,
    Role,
    Settings,
    attempt_name,
)
from asyncrl_operator.manifests.pods import RAY_HEAD_RESOURCES, Pods
from asyncrl_operator.manifests.quantities import whole

RENDERER_VERSION = 1
"""Part of the template's hash: another renderer makes other pods of the same spec."""

_PORTS = {
    "node-manager-port": "6380",
    "object-manager-port": "6381",
    "runtime-env-agent-port": "6382",
    "dashboard-agent-grpc-port": "6383",
    "min-worker-port": "10002",
    "max-worker-port": "19999",
}
_OBJECT_STORE_SHARE = 4
_SIZES = ("replicas", "minReplicas", "maxReplicas")


def ray_cluster(identity: Identity, spec: JobSpec, attempt: int, settings: Settings) -> Manifest:
    """One RayCluster: a head with the controller, and a group for each role that has pods of its own."""
    pods = Pods(identity, spec, attempt, settings.image)
    body: Manifest = {
        "rayVersion": spec.ray_version,
        "headGroupSpec": {
            "rayStartParams": {"dashboard-host": "0.0.0.0"}
            | _start_parameters("controller", RAY_HEAD_RESOURCES["limits"]["memory"], cpus="0", gpus=0),
            "template": pods.head(),
        },
        "workerGroupSpecs": _groups(pods, spec),
    }
    found = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": identity.metadata(attempt_name(identity.name, attempt), attempt=attempt)
        | {
            "annotations": {
                "ray.io/disable-provisioned-head-restart": "true",
                GENERATION_ANNOTATION: str(identity.generation),
                HASH_ANNOTATION: template_hash(identity, spec, settings),
            }
        },
        "spec": body,
    }
    found["metadata"]["labels"] |= _queue_labels(spec)
    return found


def template_hash(identity: Identity, spec: JobSpec, settings: Settings) -> str:
    """Equal for specs that make the same pods, however many of them and in whichever attempt."""
    pods = Pods(identity, spec, 0, settings.image)
    groups = [
        {key: value for key, value in group.items() if key not in _SIZES} for group in _groups(pods, spec)
    ]
    text = json.dumps([RENDERER_VERSION, spec.ray_version, pods.head(), groups], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def worker_pods(spec: JobSpec) -> dict[Role, int]:
    """Pods of each role that has a group of its own."""
    if spec.data_plane.backend == "inProcess":
        return {}
    found: dict[Role, int] = {}
    if not spec.generation.colocated:
        found["generation"] = spec.generation.shards * spec.generation.hosts_per_shard
    found["training"] = spec.training.hosts
    return found


def _groups(pods: Pods, spec: JobSpec) -> list[Manifest]:
    gpus = {
        "generation": spec.generation.gpus_per_shard // max(1, spec.generation.hosts_per_shard),
        "training": spec.training.gpus_per_host,
    }
    fields: dict[str, PodFields] = {"generation": spec.generation, "training": spec.training}
    return [_group(pods, role, fields[role], count, gpus[role]) for role, count in worker_pods(spec).items()]


def _group(pods: Pods, role: Role, fields: PodFields, count: int, gpus: int) -> Manifest:
    requests, limits = fields.resources.requests or {}, fields.resources.limits or {}
    memory = limits.get("memory") or requests.get("memory") or "4Gi"
    return {
        "groupName": role,
        "replicas": count,
        "minReplicas": count,
        "maxReplicas": count,
        "numOfHosts": 1,
        "rayStartParams": _start_parameters(
            role, memory, cpus=str(whole(requests.get("cpu", "1"))), gpus=gpus
        ),
        "template": pods.worker(role, fields, gpus),
    }


def _start_parameters(role: Role, memory: str, *, cpus: str, gpus: int) -> dict[str, Any]:
    return {
        "num-cpus": cpus,
        "num-gpus": str(gpus),
        "object-store-memory": str(whole(memory) // _OBJECT_STORE_SHARE),
        "resources": f"'{json.dumps({role: 1})}'",
    } | _PORTS


def _queue_labels(spec: JobSpec) -> dict[str, str]:
    """On the RayCluster alone: pods with a queue's label would be admitted one by one."""
    queue = spec.scheduling.queue_name
    match spec.scheduling.provider:
        case "Kueue":
            return {"kueue.x-k8s.io/queue-name": queue}
        case "KAI":
            return {"kai.scheduler/queue": queue}
        case "Volcano":
            return {"volcano.sh/queue-name": queue}
    return {}
