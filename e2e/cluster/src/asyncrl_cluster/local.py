"""The cluster on this machine: real components on machines made of namespaces."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from asyncrl_cluster import addons, cgroups, host, images, layout, machines, packages
from asyncrl_cluster.binaries import (
    COREDNS,
    ETCD,
    INIT,
    KUBERAY,
    KUBERAY_VERSIONS,
    KUBERNETES,
    LOCAL_PATH,
    Builder,
    Family,
)
from asyncrl_cluster.components import Component, ControlPlane, Node, kube_proxy
from asyncrl_cluster.errors import ClusterError, Unmet
from asyncrl_cluster.kubectl import Kubectl
from asyncrl_cluster.machines import Machine
from asyncrl_cluster.pki import Pki, write_secret
from asyncrl_cluster.shell import Phases, run

RECORD = layout.STATE / "cluster.json"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `up` was asked for; kept, so that later commands know."""

    nodes: int = 2
    gpus_per_node: int = 8
    kuberay: str = KUBERAY_VERSIONS[0]

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= layout.MAX_NODES:
            raise Unmet(f"--nodes {self.nodes} is not possible", f"give 1 to {layout.MAX_NODES}")

    @property
    def families(self) -> list[Family]:
        return [INIT, ETCD, KUBERNETES, COREDNS, LOCAL_PATH, KUBERAY[self.kuberay]]


@dataclass(kw_only=True)
class Local:
    """Every command may be repeated, and cut off at any point: the next `up` repairs, `down` removes."""

    options: Options = field(default_factory=lambda: recorded() or Options())
    phases: Phases = field(default_factory=Phases)
    pki: Pki = field(default_factory=lambda: Pki(layout.PKI))

    @property
    def kubectl(self) -> Kubectl:
        return Kubectl(KUBERNETES.path("kubectl"), self.pki.kubeconfig("admin"))

    @property
    def control_machine(self) -> Machine:
        return Machine(name="control-plane", address=layout.CONTROL_PLANE_ADDRESS)

    @property
    def control_plane(self) -> ControlPlane:
        return ControlPlane(machine=self.control_machine, pki=self.pki, answers=self.kubectl.answers)

    def node(self, number: int) -> Node:
        if not 1 <= number <= self.options.nodes:
            raise Unmet(f"there is no node {number}", f"give 1 to {self.options.nodes}")
        machine = Machine(name=f"node-{number}", address=layout.node_address(number))
        return Node(number=number, machine=machine, pki=self.pki, ready=self.kubectl.node_is_ready)

    @property
    def nodes(self) -> list[Node]:
        return [self.node(number) for number in range(1, self.options.nodes + 1)]

    def components(self) -> list[Component]:
        """All of them, in the order of their start."""
        plane = self.control_plane
        first = [plane.etcd(), plane.api_server(), plane.controller_manager(), plane.scheduler(), plane.dns()]
        return [*first, *(part for node in self.nodes for part in node.components()), self._control_proxy()]

    def _control_proxy(self) -> Component:
        return kube_proxy(self.control_machine, self.pki, node="node-1")

    def up(self) -> None:
        """Bring the cluster to what the options ask for, from nothing or from whatever is left of it."""
        with self.phases("machine has what it takes"):
            host.check()
        with self.phases("system packages"):
            packages.ensure(self.phases)
        with self.phases("binaries"):
            Builder(phases=self.phases).ensure(self.options.families)
        self._write_record()
        with self.phases("certificates and machines"):
            host.remember_settings()
            self._certificates()
            self._machines()
        self._control_plane_up()
        self._nodes_up()
        with self.phases("service addresses and DNS"):
            self._ensure(self._control_proxy())
        with self.phases(f"storage, KubeRay {self.options.kuberay}"):
            extras = addons.Addons(self.kubectl)
            extras.storage(wait=False)
            extras.kuberay(self.options.kuberay, wait=False)
            extras.wait_for(addons.STORAGE_NAMESPACE, "local-path-provisioner")
            extras.wait_for(addons.KUBERAY_NAMESPACE, "kuberay-operator")
        self.write_kubeconfig()

    def _control_plane_up(self) -> None:
        plane = self.control_plane
        for component in (plane.etcd(), plane.api_server()):
            with self.phases(component.name):
                self._ensure(component)
        with self.phases("controllers, scheduler, DNS"):
            for component in (plane.controller_manager(), plane.scheduler(), plane.dns()):
                self._ensure(component)
            addons.Addons(self.kubectl).dns()

    def _nodes_up(self) -> None:
        nodes = self.nodes
        with self.phases("containerd and the cluster's own images"):
            self._ensure(*(node.containerd() for node in nodes))
            self._own_images()
        with self.phases(f"{len(nodes)} Ready nodes"):
            self._ensure(*(node.kubelet() for node in nodes))
            self._ensure(*(kube_proxy(node.machine, self.pki) for node in nodes))
            self._describe_nodes()

    def _ensure(self, *components: Component) -> None:
        """Start what does not run as it should, then wait for all."""
        for component in components:
            if component.process() is None or component.changed():
                self._stop(component)
                component.start()
        for component in components:
            component.wait()

    def _stop(self, component: Component) -> None:
        if (pid := component.machine.running(component.program)) is not None:
            run("kill", "-KILL", str(pid))

    def _certificates(self) -> None:
        pki, admins = self.pki, ["system:masters"]
        pki.ensure_authority()
        pki.ensure_authority("front-proxy-ca")
        pki.ensure_key_pair("service-accounts")
        names = [
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            f"kubernetes.default.svc.{layout.CLUSTER_DOMAIN}",
        ]
        hosts = [*names, "localhost", "127.0.0.1", layout.API_SERVICE_ADDRESS, layout.CONTROL_PLANE_ADDRESS]
        pki.ensure("kube-apiserver", user="kube-apiserver", hosts=hosts)
        pki.ensure("kubelet-client", user="kube-apiserver-kubelet-client", groups=admins)
        pki.ensure("front-proxy-client", user="front-proxy-client", authority="front-proxy-ca")
        pki.ensure_kubeconfig("admin", user="admin", groups=admins)
        for name in ("kube-controller-manager", "kube-scheduler", "kube-proxy"):
            pki.ensure_kubeconfig(name, user=f"system:{name}")
        pki.ensure_kubeconfig("coredns", user="coredns")
        for node in self.nodes:
            name = f"kubelet-{node.name}"
            pki.ensure(
                name,
                user=f"system:node:{node.name}",
                groups=["system:nodes"],
                hosts=[node.name, node.machine.address],
            )
            pki.ensure_kubeconfig(name, user=f"system:node:{node.name}", groups=["system:nodes"])

    def _machines(self) -> None:
        machines.make_bridge()
        self._remove_surplus_nodes()
        for folder in ("standard", "node-local"):
            (layout.VOLUMES / folder).mkdir(parents=True, exist_ok=True)
        for machine in (self.control_machine, *(node.machine for node in self.nodes)):
            if cgroups.is_frozen(machine.name):
                cgroups.freeze(machine.name, frozen=False)
            if not machine.is_connected():
                machine.power_on()
        self._routes()

    def _routes(self) -> None:
        """Pods from every machine and from the host; services from the host through the control plane."""
        everyone = [self.control_machine, *(node.machine for node in self.nodes)]
        for node in self.nodes:
            subnet = layout.pod_subnet(node.number)
            machines.route_from_host(subnet, node.machine.address)
            for machine in everyone:
                if machine != node.machine and machine.is_on():
                    machine.route(subnet, node.machine.address)
        machines.route_from_host(layout.SERVICE_NETWORK, self.control_machine.address)

    def _remove_surplus_nodes(self) -> None:
        for number in range(self.options.nodes + 1, layout.MAX_NODES + 1):
            machine = Machine(name=f"node-{number}", address=layout.node_address(number))
            if (layout.STATE / machine.name).exists():
                machine.power_off()
                run("rm", "-rf", "--one-file-system", layout.STATE / machine.name, timeout=300)

    def _own_images(self, only: Iterable[Node] | None = None) -> None:
        nodes = list(self.nodes if only is None else only)
        for archive in (
            images.pause(),
            images.busybox(),
            images.local_path(),
            images.kuberay(self.options.kuberay),
        ):
            lacking = [node for node in nodes if archive.reference not in images.references(node)]
            if lacking:
                images.import_archive(lacking, archive.path())

    def _describe_nodes(self, only: Iterable[Node] | None = None) -> None:
        wanted = {node.name for node in self.nodes}
        for found in self.kubectl("get", "nodes", "--output=name").split():
            if found.removeprefix("node/") not in wanted:
                self.kubectl("delete", found)
        for node in self.nodes if only is None else only:
            addons.Addons(self.kubectl).gpus(node.name, self.options.gpus_per_node)

    def write_kubeconfig(self) -> None:
        write_secret(layout.KUBECONFIG, self.pki.kubeconfig("admin").read_bytes())

    def _write_record(self) -> None:
        layout.STATE.mkdir(parents=True, exist_ok=True)
        RECORD.write_text(json.dumps(asdict(self.options)))

    def down(self) -> None:
        """End and remove everything, and look whether it is gone. Cached binaries stay."""
        host.require_root()
        with self.phases("everything ended and removed"):
            host.clear()
            layout.KUBECONFIG.unlink(missing_ok=True)
        with self.phases("nothing is left"):
            host.prove_clear()

    def stop_node(self, number: int) -> None:
        """As if its plug were pulled: all its processes end at once, and the API server is not told."""
        self.node(number).machine.power_off()

    def freeze_node(self, number: int) -> None:
        """All its processes stop where they are; `start` lets them go on."""
        node = self.node(number)
        if not node.machine.is_on():
            raise ClusterError(
                f"{node.name} is off, so it cannot be frozen; start it with `cluster node start {number}`"
            )
        cgroups.freeze(node.name, frozen=True)

    def start_node(self, number: int) -> None:
        """Thaw it, or switch it on again, and wait until it is Ready."""
        node = self.node(number)
        if cgroups.is_frozen(node.name):
            cgroups.freeze(node.name, frozen=False)
        if not node.machine.is_connected():
            node.machine.power_on()
            self._routes()
        self._ensure(node.containerd())
        self._own_images([node])
        self._ensure(*node.components())
        self._describe_nodes([node])

    def load(self, image: str, numbers: Sequence[int] = ()) -> None:
        """Bring an image onto all nodes, or onto some."""
        nodes = [self.node(number) for number in numbers] or self.nodes
        images.load(nodes, image)

    def log_file(self, component: str) -> Path:
        names = {part.name: part.log for part in self.components()}
        if component not in names:
            raise Unmet(f"there is no component {component}", f"give one of {', '.join(names)}")
        return names[component]

    def disk_bytes(self) -> int:
        """What the cluster has on disk now, binaries included."""
        folders = [folder for folder in (layout.STATE, layout.CACHE) if folder.exists()]
        return sum(
            int(line.split()[0])
            for line in run(
                "du", "--summarize", "--bytes", "--one-file-system", *folders, timeout=120
            ).splitlines()
        )


def recorded() -> Options | None:
    """What the cluster on this machine was made with; None if there is none."""
    try:
        return Options(**json.loads(RECORD.read_text()))
    except (OSError, ValueError, TypeError):
        return None
