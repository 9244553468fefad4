"""`cluster`: up, down, status, load, node, logs, binaries."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

from asyncrl_cluster import host, layout, local, status
from asyncrl_cluster.binaries import FAMILIES, KUBERAY_VERSIONS, KUBERNETES, Builder
from asyncrl_cluster.errors import ClusterError, Unmet
from asyncrl_cluster.local import Local, Options
from asyncrl_cluster.shell import Phases


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 1 not done and why on stderr, 130 interrupted."""
    given = _parser().parse_args(arguments)
    try:
        given.act(given)
    except ClusterError as error:
        print(f"cluster {given.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        way_out = "`cluster up` goes on from here, `cluster down` removes it"
        print(f"cluster {given.command}: interrupted; {way_out}", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cluster", description="A real Kubernetes on this machine.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    up = commands.add_parser("up", help="start it, or repair what is left of it")
    up.add_argument("--nodes", type=int, default=2, help="nodes (2)")
    up.add_argument(
        "--gpus-per-node", type=int, default=8, help="nvidia.com/gpu that each node advertises (8)"
    )
    up.add_argument(
        "--kuberay", choices=KUBERAY_VERSIONS, default=KUBERAY_VERSIONS[0], help="version of its operator"
    )
    up.set_defaults(act=_up)

    commands.add_parser("down", help="end and remove everything").set_defaults(act=_down)
    commands.add_parser("status", help="what runs, where, since when").set_defaults(act=_status)

    load = commands.add_parser("load", help="bring an image onto the nodes")
    load.add_argument("image", help="its name in buildah, podman or docker, or the path of an archive")
    load.add_argument("--node", type=int, action="append", default=[], help="this node only; may be repeated")
    load.set_defaults(act=_load)

    node = commands.add_parser("node", help="stop, start or freeze a node")
    node.add_argument("verb", choices=["stop", "start", "freeze"])
    node.add_argument("number", type=int)
    node.set_defaults(act=_node)

    logs = commands.add_parser("logs", help="log of a component, such as kubelet-node-1")
    logs.add_argument("component")
    logs.add_argument("--lines", type=int, default=100, help="last lines to show (100)")
    logs.add_argument("--follow", action="store_true")
    logs.set_defaults(act=_logs)

    kubectl = commands.add_parser("kubectl", help="ask the cluster", add_help=False)
    kubectl.add_argument("words", nargs=argparse.REMAINDER)
    kubectl.set_defaults(act=_kubectl)

    binaries = commands.add_parser("binaries", help="build tools into the cache and print their folders")
    binaries.add_argument(
        "families", nargs="*", choices=[*FAMILIES, []], metavar="FAMILY", help=", ".join(FAMILIES)
    )
    binaries.set_defaults(act=_binaries)
    return parser


def _up(given: argparse.Namespace) -> None:
    options = Options(nodes=given.nodes, gpus_per_node=given.gpus_per_node, kuberay=given.kuberay)
    cluster = Local(options=options)
    print("Kubernetes on this machine", flush=True)
    host.require_root()
    with host.exclusively():
        cluster.up()
    print(
        f"Ready in {cluster.phases.total():.0f} s: {options.nodes} nodes, KubeRay {options.kuberay}, "
        f"{cluster.disk_bytes() / 1e9:.1f} GB on disk. kubectl --kubeconfig {layout.KUBECONFIG}"
    )


def _down(_: argparse.Namespace) -> None:
    cluster = Local()
    host.require_root()
    with host.exclusively():
        cluster.down()
    print(f"Down in {cluster.phases.total():.0f} s")


def _status(_: argparse.Namespace) -> None:
    _require_cluster()
    status.show(Local())


def _load(given: argparse.Namespace) -> None:
    _require_cluster()
    cluster = Local()
    with cluster.phases(f"{given.image} loaded"):
        cluster.load(given.image, given.node)


def _node(given: argparse.Namespace) -> None:
    _require_cluster()
    cluster = Local()
    act = {"stop": cluster.stop_node, "start": cluster.start_node, "freeze": cluster.freeze_node}[given.verb]
    with host.exclusively(), cluster.phases(f"node {given.number}: {given.verb}"):
        act(given.number)


def _logs(given: argparse.Namespace) -> None:
    _require_cluster()
    path = Local().log_file(given.component)
    subprocess.run(
        ["tail", f"--lines={given.lines}", *(["--follow"] if given.follow else []), str(path)], check=False
    )


def _kubectl(given: argparse.Namespace) -> None:
    if not layout.KUBECONFIG.exists():
        raise Unmet(f"there is no {layout.KUBECONFIG}", "start a cluster with `make cluster-up`")
    program = str(KUBERNETES.path("kubectl"))
    os.execv(program, [program, f"--kubeconfig={layout.KUBECONFIG}", *given.words])


def _binaries(given: argparse.Namespace) -> None:
    families = [FAMILIES[name] for name in given.families] or Options().families
    with host.exclusively():
        Builder(phases=Phases()).ensure(families)
    for family in families:
        print(family.folder)


def _require_cluster() -> None:
    host.require_root()
    if local.recorded() is None:
        raise Unmet("there is no cluster on this machine", "start one with `make cluster-up`")


if __name__ == "__main__":
    sys.exit(main())
