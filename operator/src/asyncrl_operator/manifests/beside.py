"""The objects beside a job's RayCluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from asyncrl_api.job import JobSpec
from asyncrl_operator.manifests.names import (
    API_VERSION,
    ATTEMPT_LABEL,
    CONTROL_PORT,
    JOB_LABEL,
    JOB_UID_LABEL,
    KIND,
    RAY_METRICS_PORT,
    ROLE_LABEL,
    Identity,
    Manifest,
    Settings,
    attempt_name,
    claim_name,
)


def secret(
    identity: Identity, spec: Mapping[str, Any], attempt: int, *, auth_token: str, control_token: str
) -> Manifest:
    """Tokens of an attempt, and the job as its controller reads it; `spec` as the user wrote it."""
    manifest = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": identity.name,
            "namespace": identity.namespace,
            "generation": identity.generation,
        },
        "spec": spec,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": identity.metadata(attempt_name(identity.name, attempt), attempt=attempt),
        "immutable": True,
        "type": "Opaque",
        "stringData": {
            "auth_token": auth_token,
            "control_token": control_token,
            "job.json": json.dumps(manifest, sort_keys=True),
        },
    }


def claim(identity: Identity, spec: JobSpec) -> Manifest | None:
    """The claim for checkpoints, where the job asks for one to be made."""
    volume = spec.checkpointing.volume
    if volume is None or volume.template is None:
        return None
    template = volume.template
    body: Manifest = {
        "accessModes": list(template.access_modes),
        "resources": {"requests": {"storage": template.storage}},
    }
    if template.storage_class_name is not None:
        body["storageClassName"] = template.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": identity.metadata(
            claim_name(identity.name, spec) or "", owned=volume.retention == "Delete"
        ),
        "spec": body,
    }


def service(identity: Identity, spec: JobSpec) -> Manifest:
    """Name of the controller, for people and certificates."""
    ports = [{"name": "control", "port": CONTROL_PORT, "protocol": "TCP"}]
    if spec.observability.metrics_port:
        ports.append({"name": "job-metrics", "port": spec.observability.metrics_port, "protocol": "TCP"})
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": identity.metadata(f"{identity.name}-controller"),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {JOB_UID_LABEL: identity.uid, ROLE_LABEL: "controller"},
            "ports": ports,
        },
    }


def network_policy(identity: Identity, spec: JobSpec, settings: Settings) -> Manifest | None:
    """Who may connect to the job's pods; None where the job asks for no policy."""
    if spec.security.network_policy == "Disabled":
        return None
    own = {"podSelector": {"matchLabels": {JOB_UID_LABEL: identity.uid}}}
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": settings.namespace}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "asyncrl-operator"}},
    }
    ingress: list[Manifest] = [
        {"from": [own]},
        {"from": [operator], "ports": [{"port": CONTROL_PORT, "protocol": "TCP"}]},
    ]
    if settings.monitoring_namespaces:
        ports = [port for port in (spec.observability.metrics_port, RAY_METRICS_PORT) if port]
        monitoring = {"namespaceSelector": {"matchLabels": dict(settings.monitoring_namespaces)}}
        ingress.append({"from": [monitoring], "ports": [{"port": p, "protocol": "TCP"} for p in ports]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": identity.metadata(identity.name),
        "spec": {
            "podSelector": {"matchLabels": {JOB_UID_LABEL: identity.uid}},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    }


def disruption_budget(identity: Identity, spec: JobSpec, attempt: int) -> Manifest | None:
    """Keeps controller and trainers from a drain until they have saved; None where a drain need not wait."""
    if spec.scheduling.disruption == "Allow":
        return None
    trainers = 0 if spec.data_plane.backend == "inProcess" else spec.training.hosts
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": identity.metadata(attempt_name(identity.name, attempt), attempt=attempt),
        "spec": {
            "minAvailable": 1 + trainers,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {
                "matchLabels": {JOB_UID_LABEL: identity.uid, ATTEMPT_LABEL: str(attempt)},
                "matchExpressions": [
                    {"key": ROLE_LABEL, "operator": "In", "values": ["controller", "training"]}
                ],
            },
        },
    }


def pod_monitor(identity: Identity, spec: JobSpec, settings: Settings) -> Manifest | None:
    """What Prometheus scrapes; None where nobody asks, or the cluster does not know the kind."""
    if not (settings.pod_monitors and spec.observability.pod_monitor):
        return None
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": identity.metadata(identity.name),
        "spec": {
            "selector": {"matchLabels": {JOB_UID_LABEL: identity.uid}},
            "podMetricsEndpoints": [{"port": "job-metrics"}, {"port": "metrics"}],
            "podTargetLabels": [JOB_LABEL, ATTEMPT_LABEL, ROLE_LABEL],
        },
    }
