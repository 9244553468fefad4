"""Pod templates of the roles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asyncrl_api.job import JobSpec
from asyncrl_api.spec.pods import PodFields
from asyncrl_operator.manifests.names import (
    CONTROL_PORT,
    HEALTH_PORT,
    RAY_AGENT_PORT,
    RAY_METRICS_PORT,
    Identity,
    Manifest,
    Role,
    attempt_name,
    claim_name,
)
from asyncrl_operator.manifests.overlay import merged
from asyncrl_operator.manifests.quantities import whole

RAY_HEAD_RESOURCES = {"requests": {"cpu": "1", "memory": "4Gi"}, "limits": {"memory": "4Gi"}}
JOB_FOLDER = "/etc/asyncrl"
_DRAIN_MARGIN_SECONDS = 10
_USER = 1000
_SHM_SHARE = 4
"""A training pod's shared memory is its memory divided by this."""


@dataclass(frozen=True, slots=True)
class Pods:
    """Renders the pods of one attempt. `spec` is resolved."""

    identity: Identity
    spec: JobSpec
    attempt: int
    image: str

    def head(self) -> Manifest:
        """Ray's head, and the controller beside it."""
        fields = self.spec.controller
        controller = self._controller(fields)
        ray = self._ray(
            "ray-head",
            RAY_HEAD_RESOURCES,
            gpus=0,
            ports={"gcs-server": 6379, "dashboard": 8265, "client": 10001, "metrics": RAY_METRICS_PORT},
            image=fields.image,
        )
        ray["lifecycle"] = {
            "preStop": {
                "exec": {
                    "command": [
                        "/bin/bash",
                        "-c",
                        "while [ ! -e /tmp/ray/controller-left ]; do sleep 0.2; done",
                    ]
                }
            }
        }
        ray["volumeMounts"] = [{"name": "ray-tmp", "mountPath": "/tmp/ray"}, *self._checkpoint_mounts()]
        secret = {
            "secretName": attempt_name(self.identity.name, self.attempt),
            "defaultMode": 0o440,
            "items": [{"key": key, "path": key} for key in ("job.json", "control_token")],
        }
        pod = self._pod(
            fields,
            restart="OnFailure",
            volumes=[{"name": "ray-tmp", "emptyDir": {}}, {"name": "job", "secret": secret}],
            containers=[ray, controller],
        )
        pod["shareProcessNamespace"] = True
        return self._template("controller", fields, pod, default_container="controller")

    def worker(self, role: Role, fields: PodFields, gpus: int) -> Manifest:
        """Pod of a generation shard or a training host."""
        ray = self._ray(
            "ray-worker",
            _resources(fields, self.spec.gpu_resource_name, gpus),
            gpus=gpus,
            ports={"metrics": RAY_METRICS_PORT},
            image=fields.image,
        )
        ray["env"] += _env(fields)
        ray["volumeMounts"] = [*self._checkpoint_mounts(), *_mounts(fields)]
        _secure(ray, fields)
        volumes = []
        if role == "training" and gpus:
            volumes = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _shared_memory(fields)}}]
            ray["volumeMounts"].append({"name": "shm", "mountPath": "/dev/shm"})
        pod = self._pod(fields, restart="Always", volumes=[], containers=[ray], after=volumes)
        return self._template(role, fields, pod)

    # ── parts ───────────────────────────────────────────────────────────────────────────────────────

    def _controller(self, fields: PodFields) -> Manifest:
        ports = {"control": CONTROL_PORT, "health": HEALTH_PORT}
        if self.spec.observability.metrics_port:
            ports["job-metrics"] = self.spec.observability.metrics_port
        container = self._container("controller", fields.image, ports)
        directory = self.spec.checkpointing.directory or self.identity.name
        folder = (
            "/tmp/asyncrl" if self._claim is None else f"{self.spec.checkpointing.mount_path}/{directory}"
        )
        container |= {
            "command": ["asyncrl", "controller"],
            "args": [
                f"--job={JOB_FOLDER}/job.json",
                f"--token-file={JOB_FOLDER}/control_token",
                f"--output={folder}",
            ],
            "env": [
                {"name": "RAY_ADDRESS", "value": "127.0.0.1:6379"},
                *self._ray_auth(),
                {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"},
                {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},
                *self._names(with_uid=True),
                *_env(fields),
            ],
            "resources": _resources(fields, self.spec.gpu_resource_name, 0),
            "startupProbe": _grpc("liveness", period=2, failures=60),
            "readinessProbe": _grpc("readiness", period=5, failures=3),
            "livenessProbe": _grpc("liveness", period=10, failures=6) | {"terminationGracePeriodSeconds": 10},
            "volumeMounts": [
                {"name": "ray-tmp", "mountPath": "/tmp/ray"},
                {"name": "job", "mountPath": JOB_FOLDER, "readOnly": True},
                *self._checkpoint_mounts(),
                *_mounts(fields),
            ],
        }
        _secure(container, fields)
        return container

    def _ray(
        self, name: str, resources: Manifest, *, gpus: int, ports: Mapping[str, int], image: str | None
    ) -> Manifest:
        container = self._container(name, image, ports)
        grace = self.spec.lifecycle.termination_grace_period_seconds
        env: list[Manifest] = [
            *self._ray_auth(),
            {
                "name": "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S",
                "value": str(max(0, grace - _DRAIN_MARGIN_SECONDS)),
            },
            {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"},
        ]
        if not gpus:
            env.append({"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"})
        healthz = {"httpGet": {"path": "/api/healthz", "port": RAY_AGENT_PORT}, "timeoutSeconds": 5}
        return container | {
            "env": [*env, *self._names()],
            "resources": resources,
            "readinessProbe": healthz | {"initialDelaySeconds": 5, "periodSeconds": 5, "failureThreshold": 3},
            "livenessProbe": healthz
            | {
                "initialDelaySeconds": 60,
                "periodSeconds": 10,
                "failureThreshold": 12,
                "terminationGracePeriodSeconds": 10,
            },
        }

    def _container(self, name: str, image: str | None, ports: Mapping[str, int]) -> Manifest:
        return {
            "name": name,
            "image": image or self.spec.image or self.image,
            "imagePullPolicy": self.spec.image_pull_policy,
            "ports": [{"name": port, "containerPort": number} for port, number in ports.items()],
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }

    def _ray_auth(self) -> list[Manifest]:
        if self.spec.security.ray_auth != "Token":
            return [{"name": "RAY_AUTH_MODE", "value": "disabled"}]
        secret = {"name": attempt_name(self.identity.name, self.attempt), "key": "auth_token"}
        return [
            {"name": "RAY_AUTH_MODE", "value": "token"},
            {"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": secret}},
        ]

    def _names(self, *, with_uid: bool = False) -> list[Manifest]:
        found: list[Manifest] = [
            {"name": "ASYNCRL_JOB", "value": self.identity.name},
            {"name": "ASYNCRL_ATTEMPT", "value": str(self.attempt)},
            {"name": "ASYNCRL_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ]
        if with_uid:
            found.append(
                {"name": "ASYNCRL_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
            )
        return [*found, {"name": "ASYNCRL_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]

    @property
    def _claim(self) -> str | None:
        return claim_name(self.identity.name, self.spec)

    def _checkpoint_mounts(self) -> list[Manifest]:
        if self._claim is None:
            return []
        return [{"name": "checkpoints", "mountPath": self.spec.checkpointing.mount_path}]

    def _pod(
        self,
        fields: PodFields,
        *,
        restart: str,
        volumes: list[Manifest],
        containers: list[Manifest],
        after: list[Manifest] | tuple[()] = (),
    ) -> Manifest:
        if self._claim is not None:
            claim = {"claimName": self._claim}
            volumes = [*volumes, {"name": "checkpoints", "persistentVolumeClaim": claim}]
        found: Manifest = {
            "restartPolicy": restart,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": self.spec.lifecycle.termination_grace_period_seconds,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _USER,
                "runAsGroup": _USER,
                "fsGroup": _USER,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "volumes": [*volumes, *(_dump(volume) for volume in fields.volumes), *after],
            "containers": containers,
        }
        if self.spec.scheduling.priority_class_name:
            found["priorityClassName"] = self.spec.scheduling.priority_class_name
        if self.spec.image_pull_secrets:
            found["imagePullSecrets"] = [{"name": secret.name} for secret in self.spec.image_pull_secrets]
        if fields.node_selector:
            found["nodeSelector"] = dict(fields.node_selector)
        if fields.tolerations:
            found["tolerations"] = [_dump(toleration) for toleration in fields.tolerations]
        if fields.affinity:
            found["affinity"] = dict(fields.affinity)
        return found

    def _template(
        self, role: Role, fields: PodFields, pod: Manifest, *, default_container: str | None = None
    ) -> Manifest:
        metadata: Manifest = {"labels": self.identity.labels(self.attempt, role)}
        if default_container:
            metadata["annotations"] = {"kubectl.kubernetes.io/default-container": default_container}
        return merged({"metadata": metadata, "spec": pod}, fields.pod_template or {})


def _grpc(service: str, *, period: int, failures: int) -> Manifest:
    return {
        "grpc": {"port": HEALTH_PORT, "service": service},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _resources(fields: PodFields, gpu_resource: str, gpus: int) -> Manifest:
    requests, limits = dict(fields.resources.requests or {}), dict(fields.resources.limits or {})
    if gpus:
        requests[gpu_resource] = limits[gpu_resource] = str(gpus)
    return {kind: values for kind, values in (("requests", requests), ("limits", limits)) if values}


def _shared_memory(fields: PodFields) -> str:
    memory = (fields.resources.requests or {}).get("memory", "4Gi")
    return f"{max(1, whole(memory) // _SHM_SHARE >> 30)}Gi"


def _env(fields: PodFields) -> list[Manifest]:
    return [_dump(variable) for variable in fields.env]


def _mounts(fields: PodFields) -> list[Manifest]:
    return [_dump(mount) for mount in fields.volume_mounts]


def _secure(container: Manifest, fields: PodFields) -> None:
    if fields.security_context is not None:
        container["securityContext"] = dict(fields.security_context)


def _dump(model: Any) -> Manifest:
    return model.model_dump(by_alias=True, exclude_none=True, mode="json")
