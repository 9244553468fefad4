"""What makes the bare cluster one that jobs run on: DNS, storage, GPUs to ask for, KubeRay."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import yaml

from asyncrl_cluster import images, layout
from asyncrl_cluster.binaries import KUBERAY, LOCAL_PATH
from asyncrl_cluster.kubectl import Kubectl
from asyncrl_cluster.shell import run, wait_until

KUBERAY_NAMESPACE = "kuberay-system"
STORAGE_NAMESPACE = "local-path-storage"
ROLLOUT_SECONDS = 120.0


@dataclass(frozen=True)
class Addons:
    """Each call may be repeated; it applies what the cluster should have and waits until it works."""

    kubectl: Kubectl

    def dns(self) -> None:
        text = (layout.MANIFESTS / "dns.yaml").read_text()
        addresses = {"DNS_ADDRESS": layout.DNS_ADDRESS, "CONTROL_PLANE_ADDRESS": layout.CONTROL_PLANE_ADDRESS}
        self.kubectl.apply(Template(text).substitute(addresses))

    def storage(self, *, wait: bool = True) -> None:
        """The provisioner with its own manifest, our image, and our classes."""
        documents = yaml.safe_load_all((LOCAL_PATH.folder / "deploy" / "local-path-storage.yaml").read_text())
        kept = [
            _storage_document(document)
            for document in documents
            if document and document["kind"] != "StorageClass"
        ]
        self.kubectl.apply(*kept, (layout.MANIFESTS / "storage-classes.yaml").read_text())
        if wait:
            self.wait_for(STORAGE_NAMESPACE, "local-path-provisioner")

    def kuberay(self, version: str, *, wait: bool = True) -> None:
        """The operator with its own manifests, in its own namespace."""
        folder = layout.STATE / "kuberay"
        folder.mkdir(parents=True, exist_ok=True)
        name, _, tag = images.kuberay_image(version).rpartition(":")
        base = os.path.relpath((KUBERAY[version].folder / "config" / "default").resolve(), folder.resolve())
        values = {"BASE": base, "IMAGE_NAME": name, "IMAGE_TAG": tag}
        (folder / "kustomization.yaml").write_text(
            Template((layout.MANIFESTS / "kuberay.yaml").read_text()).substitute(values)
        )
        (folder / "namespace.yaml").write_text(yaml.safe_dump(_namespace(KUBERAY_NAMESPACE)))
        self.kubectl.apply(run(self.kubectl.program, "kustomize", folder))
        if wait:
            self.wait_for(KUBERAY_NAMESPACE, "kuberay-operator")

    def gpus(self, node: str, count: int) -> None:
        """Advertise GPUs that pods can ask for; nothing is behind them."""
        resources = {"nvidia.com/gpu": str(count)}
        patch = json.dumps({"status": {"capacity": resources, "allocatable": resources}})
        self.kubectl("patch", "node", node, "--subresource=status", "--type=merge", f"--patch={patch}")
        self.kubectl(
            "label", "node", node, "--overwrite", f"nvidia.com/gpu.present={'true' if count else 'false'}"
        )

    def wait_for(self, namespace: str, deployment: str) -> None:
        wait_until(
            f"deployment {namespace}/{deployment}",
            lambda: self.kubectl.rolled_out(namespace, deployment),
            timeout=ROLLOUT_SECONDS,
            interval=0.5,
            log=lambda: self.kubectl(
                "logs", f"--namespace={namespace}", f"deployment/{deployment}", "--tail=15"
            ),
        )


def _namespace(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _storage_document(document: dict[str, Any]) -> dict[str, Any]:
    if document["kind"] == "Deployment":
        document["spec"]["template"]["spec"]["containers"][0]["image"] = images.LOCAL_PATH_IMAGE
    if document["kind"] == "ConfigMap":
        document["data"]["config.json"] = json.dumps(_storage_config(layout.VOLUMES), indent=1)
        helper = yaml.safe_load(document["data"]["helperPod.yaml"])
        helper["spec"]["containers"][0]["image"] = images.BUSYBOX_IMAGE
        document["data"]["helperPod.yaml"] = yaml.safe_dump(helper)
    return document


def _storage_config(volumes: Path) -> dict[str, Any]:
    on_node = {"node": "DEFAULT_PATH_FOR_NON_LISTED_NODES", "paths": [str(volumes / "node-local")]}
    classes = {
        "standard": {"sharedFileSystemPath": str(volumes / "standard")},
        "node-local": {"nodePathMap": [on_node]},
    }
    return {"nodePathMap": [], "storageClassConfigs": classes}
