"""Each component's command line and configuration, and how it is told that it works."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from asyncrl_cluster import layout
from asyncrl_cluster.binaries import COREDNS, ETCD, KUBERNETES
from asyncrl_cluster.errors import Unmet
from asyncrl_cluster.machines import Machine
from asyncrl_cluster.pki import Pki
from asyncrl_cluster.shell import tail, wait_until

CNI_PLUGINS = Path("/usr/lib/cni")
PAUSE_IMAGE = "localhost/asyncrl-cluster/pause:1"


@dataclass(frozen=True, kw_only=True)
class Component:
    """One long-running program on one machine."""

    name: str
    machine: Machine
    argv: list[str]
    files: dict[Path, str]
    works: Callable[[], bool | str]
    ready_seconds: float = 30

    @property
    def log(self) -> Path:
        return layout.LOGS / f"{self.name}.log"

    @property
    def program(self) -> Path:
        return Path(self.argv[0]).resolve()

    def process(self) -> int | None:
        """Id of its process, if it runs with today's arguments."""
        pid = self.machine.running(self.program)
        if pid is None:
            return None
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
        return pid if words[1:] == self.argv[1:] else None

    def changed(self) -> bool:
        """Whether a configuration file differs from what the component should have."""
        return any(not path.exists() or path.read_text() != text for path, text in self.files.items())

    def write_files(self) -> None:
        for path, text in self.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def start(self) -> None:
        self.write_files()
        self.machine.spawn(self.argv, log=self.log)

    def wait(self) -> None:
        """Return once it works; its last lines are in the error."""
        wait_until(
            f"{self.name} to work",
            self._lives_and_works,
            timeout=self.ready_seconds,
            log=lambda: tail(self.log),
        )

    def _lives_and_works(self) -> bool | str:
        return self.works() if self.process() else f"{self.name} has ended"


@dataclass(frozen=True, kw_only=True)
class ControlPlane:
    """Components of the control plane, on a machine of their own."""

    machine: Machine
    pki: Pki
    answers: Callable[[str], bool | str]
    """Whether the API server gives `ok` for a path."""

    def etcd(self) -> Component:
        folder = layout.STATE / "etcd"
        urls = {"--listen-client-urls": "http://127.0.0.1:2379", "--advertise-client-urls": "http://127.0.0.1:2379",
                "--listen-peer-urls": "http://127.0.0.1:2380"}  # fmt: skip
        argv = [
            str(ETCD.path("etcd")),
            f"--data-dir={folder}",
            "--unsafe-no-fsync",
            "--quota-backend-bytes=2147483648",
        ]
        argv += [f"{name}={url}" for name, url in urls.items()]
        return Component(
            name="etcd", machine=self.machine, argv=argv, files={}, works=lambda: self._listens(2379)
        )

    def api_server(self) -> Component:
        pki = self.pki
        argv = [
            _kubernetes("kube-apiserver"),
            f"--advertise-address={self.machine.address}",
            "--allow-privileged=true",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--etcd-servers=http://127.0.0.1:2379",
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-cluster-ip-range={layout.SERVICE_NETWORK}",
            f"--client-ca-file={pki.certificate('ca')}",
            f"--tls-cert-file={pki.certificate('kube-apiserver')}",
            f"--tls-private-key-file={pki.key('kube-apiserver')}",
            f"--kubelet-certificate-authority={pki.certificate('ca')}",
            f"--kubelet-client-certificate={pki.certificate('kubelet-client')}",
            f"--kubelet-client-key={pki.key('kubelet-client')}",
            f"--requestheader-client-ca-file={pki.certificate('front-proxy-ca')}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-username-headers=X-Remote-User",
            f"--proxy-client-cert-file={pki.certificate('front-proxy-client')}",
            f"--proxy-client-key-file={pki.key('front-proxy-client')}",
            f"--service-account-issuer=https://kubernetes.default.svc.{layout.CLUSTER_DOMAIN}",
            f"--service-account-key-file={pki.folder / 'service-accounts.pub'}",
            f"--service-account-signing-key-file={pki.key('service-accounts')}",
        ]
        return Component(
            name="kube-apiserver",
            machine=self.machine,
            argv=argv,
            files={},
            works=lambda: self.answers("/readyz"),
            ready_seconds=60,
        )

    def controller_manager(self) -> Component:
        pki = self.pki
        kubeconfig = pki.kubeconfig("kube-controller-manager")
        argv = [
            _kubernetes("kube-controller-manager"),
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--allocate-node-cidrs=false",
            f"--cluster-cidr={layout.POD_NETWORK}",
            f"--cluster-signing-cert-file={pki.certificate('ca')}",
            f"--cluster-signing-key-file={pki.key('ca')}",
            f"--root-ca-file={pki.certificate('ca')}",
            f"--service-account-private-key-file={pki.key('service-accounts')}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
        ]
        return Component(
            name="kube-controller-manager",
            machine=self.machine,
            argv=argv,
            files={},
            works=lambda: self._listens(10257),
        )

    def scheduler(self) -> Component:
        kubeconfig = self.pki.kubeconfig("kube-scheduler")
        argv = [
            _kubernetes("kube-scheduler"),
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--leader-elect=false",
        ]
        return Component(
            name="kube-scheduler",
            machine=self.machine,
            argv=argv,
            files={},
            works=lambda: self._listens(10259),
        )

    def dns(self) -> Component:
        """CoreDNS as a process: the service has no selector, its one endpoint is this machine."""
        corefile = layout.STATE / "coredns" / "Corefile"
        text = (
            ".:53 {\n  errors\n  health :8081\n  ready :8181\n"
            f"  kubernetes {layout.CLUSTER_DOMAIN} in-addr.arpa ip6.arpa {{\n"
            f"    kubeconfig {self.pki.kubeconfig('coredns')}\n    pods insecure\n    ttl 5\n  }}\n"
            "  cache 5\n  loadbalance\n}\n"
        )
        argv = [str(COREDNS.path("coredns")), "-conf", str(corefile)]
        return Component(
            name="coredns",
            machine=self.machine,
            argv=argv,
            files={corefile: text},
            works=lambda: self._listens(53),
        )

    def _listens(self, port: int) -> bool | str:
        taken = self.machine.inside("cat", "/proc/net/tcp", "/proc/net/tcp6")
        listening = any(
            line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"
            for line in taken.splitlines()
            if ":" in line and "sl" not in line
        )
        return listening or f"nothing listens on port {port}"


@dataclass(frozen=True, kw_only=True)
class Node:
    """Components of one node: containerd, kubelet, kube-proxy."""

    number: int
    machine: Machine
    pki: Pki
    ready: Callable[[str], bool | str]
    """Whether the node of this name is Ready."""

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def state(self) -> Path:
        return layout.STATE / self.name

    @property
    def run(self) -> Path:
        return layout.RUN / self.name

    @property
    def socket(self) -> Path:
        return self.run / "containerd.sock"

    def components(self) -> list[Component]:
        return [self.containerd(), self.kubelet(), kube_proxy(self.machine, self.pki)]

    def containerd(self) -> Component:
        program = shutil.which("containerd")
        if program is None:
            raise Unmet(
                "containerd is not installed",
                "install it, or run `cluster up` on a Debian machine, which installs it",
            )
        config, network = self.state / "containerd.toml", self.state / "cni" / "net.d" / "10-pods.conflist"
        argv = [program, f"--config={config}"]
        return Component(
            name=f"containerd-{self.name}",
            machine=self.machine,
            argv=argv,
            files={config: self._containerd_config(network.parent), network: self._network_config()},
            works=lambda: self._ctr("version"),
        )

    def _ctr(self, *words: str) -> bool | str:
        self.machine.inside("ctr", f"--address={self.socket}", *words)
        return True

    def _containerd_config(self, networks: Path) -> str:
        # Without CAP_SYS_RESOURCE the kernel refuses lower scores, which runc reports as a broken pipe.
        return f"""version = 2
root = "{self.state}/containerd"
state = "{self.run}/containerd"
[grpc]
  address = "{self.socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{CNI_PLUGINS}"
    conf_dir = "{networks}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    discard_unpacked_layers = true
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""

    def _network_config(self) -> str:
        """Point-to-point links: all that a pod sends is routed, so service rules see it."""
        addresses = {
            "type": "host-local",
            "dataDir": str(self.run / "addresses"),
            "ranges": [[{"subnet": layout.pod_subnet(self.number)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        plugins = [
            {"type": "ptp", "ipMasq": False, "mtu": 1500, "ipam": addresses},
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ]
        return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": plugins}, indent=1)

    def kubelet(self) -> Component:
        config, resolver = self.state / "kubelet.yaml", self.state / "resolv.conf"
        argv = [
            _kubernetes("kubelet"),
            f"--config={config}",
            f"--kubeconfig={self.pki.kubeconfig(f'kubelet-{self.name}')}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.machine.address}",
            f"--root-dir={self.state / 'kubelet'}",
        ]
        files = {
            config: yaml.safe_dump(self._kubelet_config(resolver)),
            resolver: "# Nothing outside the cluster is looked up.\n",
        }
        return Component(
            name=f"kubelet-{self.name}",
            machine=self.machine,
            argv=argv,
            files=files,
            works=lambda: self.ready(self.name),
            ready_seconds=60,
        )

    def _kubelet_config(self, resolver: Path) -> dict[str, object]:
        serving = f"kubelet-{self.name}"
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.pki.certificate("ca"))},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(self.pki.certificate(serving)),
            "tlsPrivateKeyFile": str(self.pki.key(serving)),
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{layout.CGROUP}/{self.name}/pods",
            "failCgroupV1": False,
            "clusterDNS": [layout.DNS_ADDRESS],
            "clusterDomain": layout.CLUSTER_DOMAIN,
            "resolvConf": str(resolver),
            "podLogsDir": str(self.state / "pod-logs"),
            "volumePluginDir": str(self.state / "volume-plugins"),
            "enforceNodeAllocatable": [],
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "imagefs.available": "1%",
                "nodefs.inodesFree": "1%",
            },
            "evictionPressureTransitionPeriod": "30s",
            "failSwapOn": False,
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "imageMinimumGCAge": "24h",
            "oomScoreAdj": 0,
            "serializeImagePulls": False,
            "nodeStatusUpdateFrequency": "5s",
            "syncFrequency": "10s",
        }


def kube_proxy(machine: Machine, pki: Pki, *, node: str | None = None) -> Component:
    """Service addresses on one machine. One that is no node must name one, to have its address."""
    config = layout.STATE / machine.name / "kube-proxy.yaml"
    content = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clientConnection": {"kubeconfig": str(pki.kubeconfig("kube-proxy"))},
        "clusterCIDR": layout.POD_NETWORK,
        "conntrack": {"maxPerCore": 0, "min": 0},
        "hostnameOverride": node or machine.name,
        "iptables": {"minSyncPeriod": "100ms", "syncPeriod": "30s"},
    }
    argv = [_kubernetes("kube-proxy"), f"--config={config}"]
    name = f"kube-proxy-{machine.name}"

    def works() -> bool | str:
        return (
            layout.DNS_ADDRESS in machine.inside("iptables-save", "-t", "nat")
            or "no rule for the DNS service yet"
        )

    return Component(
        name=name, machine=machine, argv=argv, files={config: yaml.safe_dump(content)}, works=works
    )


def _kubernetes(program: str) -> str:
    return str(KUBERNETES.path(program))
