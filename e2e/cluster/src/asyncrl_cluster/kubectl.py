"""The API server, through kubectl."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from asyncrl_cluster.shell import run


@dataclass(frozen=True)
class Kubectl:
    """kubectl with one kubeconfig. Every call has a deadline."""

    program: Path | str
    kubeconfig: Path

    def __call__(self, *words: str, stdin: str | None = None, timeout: float = 30) -> str:
        return run(self.program, f"--kubeconfig={self.kubeconfig}", *words, stdin=stdin, timeout=timeout)

    def answers(self, path: str) -> bool | str:
        """Whether the API server says ok to a path."""
        said = self("get", "--raw", path, "--request-timeout=3s", timeout=10)
        return said.strip() == "ok" or said

    def get(self, *words: str) -> Any:
        """Objects as data."""
        return json.loads(self("get", *words, "--output=json"))

    def apply(self, *documents: Mapping[str, Any] | str) -> None:
        """Apply documents on the server's side; a text may hold several."""
        text = "\n---\n".join(
            document if isinstance(document, str) else yaml.safe_dump(document) for document in documents
        )
        self("apply", "--server-side", "--force-conflicts", "--filename=-", stdin=text, timeout=120)

    def node_is_ready(self, name: str) -> bool | str:
        node = self.get("node", name)
        ready = next(
            (found for found in node["status"].get("conditions", []) if found["type"] == "Ready"), None
        )
        if ready is None:
            return f"{name} reports no condition yet"
        return ready["status"] == "True" or f"{name} is not Ready: {ready.get('message', '')}"

    def rolled_out(self, namespace: str, deployment: str) -> bool | str:
        """Whether the pods of a deployment's newest template are available; else what they say."""
        found = self.get("deployment", deployment, f"--namespace={namespace}")
        wanted, status = found["spec"]["replicas"], found.get("status", {})
        current = status.get("observedGeneration", 0) >= found["metadata"]["generation"]
        done = current and status.get("updatedReplicas", 0) == wanted == status.get(
            "availableReplicas", 0
        ) == status.get("replicas", 0)
        return done or self.pod_states(namespace)

    def pod_states(self, namespace: str) -> str:
        """One phrase per pod: its phase, and why its containers wait."""
        return (
            ", ".join(_state(pod) for pod in self.get("pods", f"--namespace={namespace}")["items"])
            or "no pods"
        )


def _state(pod: Mapping[str, Any]) -> str:
    status = pod["status"]
    waiting = [
        f"{found['state']['waiting'].get('reason')}: {found['state']['waiting'].get('message', '')}"
        for found in status.get("containerStatuses", [])
        if "waiting" in found.get("state", {})
    ]
    unscheduled = [
        found.get("message", "")
        for found in status.get("conditions", [])
        if found.get("reason") == "Unschedulable"
    ]
    return " ".join([pod["metadata"]["name"], status.get("phase", ""), *waiting, *unscheduled])
