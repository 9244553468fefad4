"""Programs built from pinned Go modules, once per version, into the user's cache."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from asyncrl_cluster.errors import ClusterError, Unmet
from asyncrl_cluster.layout import BINARIES, CACHE, TOOLS
from asyncrl_cluster.shell import Phases, free_gigabytes, run

BUILD_GIGABYTES = 12.0
"""Free space that a build of everything needs: module sources 3 GB, build cache 5 GB, and room."""

BUILD_TIMEOUT_SECONDS = 2400.0
SEAL = "complete.json"


@dataclass(frozen=True, kw_only=True)
class Family:
    """One Go module that pins one tool family, and the programs to build from it."""

    name: str
    module: str
    packages: dict[str, str]
    """Program name to package path, relative to `module`."""
    about_seconds: int
    version_variables: tuple[str, ...] = ()
    """Packages whose gitVersion, gitMajor and gitMinor must be stamped."""
    keep: tuple[str, ...] = ()
    """Folders of the module's source to keep beside the programs."""

    @property
    def source(self) -> Path:
        return TOOLS / self.name

    @property
    def version(self) -> str:
        """As go.mod pins it; a module without requirements is our own."""
        if self.module == "":
            return "v1"
        pinned = re.search(
            rf"^(?:require )?\s*{re.escape(self.module)} (v\S+)(?: // indirect)?$",
            (self.source / "go.mod").read_text(),
            re.M,
        )
        if pinned is None:
            raise ClusterError(f"{self.source / 'go.mod'} does not pin {self.module}")
        return pinned[1]

    @property
    def folder(self) -> Path:
        name = re.sub(r"-v?[0-9.]+$", "", self.name)
        return BINARIES / f"{name}-{self.version}"

    def path(self, program: str) -> Path:
        return self.folder / program

    def built(self) -> bool:
        """Whether every file is there with the size that it was built with."""
        try:
            sizes = json.loads((self.folder / SEAL).read_text())
            return set(sizes) >= set(self.packages) and all(
                (self.folder / name).stat().st_size == size for name, size in sizes.items()
            )
        except (OSError, ValueError):
            return False

    def linker_flags(self) -> str:
        flags = ["-s", "-w"]
        for package in self.version_variables:
            major, minor, _ = self.version.removeprefix("v").split(".", 2)
            stamps = {
                "gitVersion": self.version,
                "gitMajor": major,
                "gitMinor": minor,
                "gitTreeState": "clean",
            }
            flags += [f"-X {package}.{name}={value}" for name, value in stamps.items()]
        return " ".join(flags)


KUBERNETES = Family(
    name="kubernetes",
    module="k8s.io/kubernetes",
    packages={
        name: f"cmd/{name}"
        for name in (
            "kube-apiserver",
            "kube-controller-manager",
            "kube-proxy",
            "kube-scheduler",
            "kubectl",
            "kubelet",
        )
    },
    version_variables=("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"),
    about_seconds=330,
)
ETCD = Family(name="etcd", module="go.etcd.io/etcd/server/v3", packages={"etcd": ""}, about_seconds=50)
INIT = Family(name="init", module="", packages={"init": "."}, about_seconds=5)
COREDNS = Family(
    name="coredns", module="github.com/coredns/coredns", packages={"coredns": ""}, about_seconds=90
)
LOCAL_PATH = Family(
    name="local-path",
    module="github.com/rancher/local-path-provisioner",
    packages={"local-path-provisioner": ""},
    keep=("deploy",),
    about_seconds=60,
)
HELM = Family(name="helm", module="helm.sh/helm/v3", packages={"helm": "cmd/helm"}, about_seconds=60)
KUEUE = Family(
    name="kueue",
    module="sigs.k8s.io/kueue",
    packages={"kueue": "cmd/kueue"},
    keep=("config",),
    about_seconds=150,
)
KWOK = Family(
    name="kwok",
    module="sigs.k8s.io/kwok",
    packages={"kwok": "cmd/kwok"},
    keep=("kustomize",),
    about_seconds=50,
)
KUBERAY_VERSIONS = ("1.6.0", "1.5.0", "1.4.0")
KUBERAY = {
    version: Family(
        name=f"kuberay-{version}",
        module="github.com/ray-project/kuberay/ray-operator",
        packages={"kuberay-operator": ""},
        keep=("config",),
        about_seconds=75,
    )
    for version in KUBERAY_VERSIONS
}
FAMILIES = {
    family.name: family
    for family in (INIT, ETCD, KUBERNETES, COREDNS, LOCAL_PATH, HELM, KUEUE, KWOK, *KUBERAY.values())
}


@dataclass(kw_only=True)
class Builder:
    """Builds what the cache lacks, in a module and build cache of its own that it deletes afterwards."""

    phases: Phases
    scratch: Path = field(default=CACHE / "build")

    def ensure(self, families: Iterable[Family]) -> None:
        missing = [family for family in families if not family.built()]
        if not missing:
            return
        go = _go()
        free = free_gigabytes(CACHE)
        if free < BUILD_GIGABYTES:
            raise Unmet(
                f"building {', '.join(family.name for family in missing)} needs {BUILD_GIGABYTES:g} GB "
                f"in {CACHE}, which has {free:.1f} GB",
                "make room, or point XDG_CACHE_HOME at a larger disk",
            )
        about = sum(family.about_seconds for family in missing)
        self.phases.note(
            f"building {len(missing)} of them once, about {max(1, round(about / 60))} min on two cores"
        )
        try:
            for family in missing:
                started = time.monotonic()
                self._build(family, go)
                self.phases.note(f"{time.monotonic() - started:6.1f} s  {family.name} {family.version}")
        finally:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def _build(self, family: Family, go: str) -> None:
        BINARIES.mkdir(parents=True, exist_ok=True)
        environment = {
            "CGO_ENABLED": "0",
            "GOFLAGS": "-mod=readonly -modcacherw -trimpath -buildvcs=false",
            "GOCACHE": str(self.scratch / "objects"),
            "GOMODCACHE": str(self.scratch / "modules"),
            "GOWORK": "off",
        }
        with tempfile.TemporaryDirectory(dir=BINARIES, prefix=f".{family.name}-") as temporary:
            fresh = Path(temporary) / "fresh"
            fresh.mkdir()
            packages = [f"{family.module}/{path}".strip("/") for path in family.packages.values()]
            command = [go, "build", "-ldflags", family.linker_flags(), "-o", f"{fresh}/", *packages]
            self._with_retry(*command, folder=family.source, environment=environment)
            _rename_programs(fresh, family)
            for name in family.keep:
                source = run(
                    go,
                    "list",
                    "-m",
                    "-f",
                    "{{.Dir}}",
                    family.module,
                    folder=family.source,
                    environment=environment,
                )
                shutil.copytree(Path(source.strip()) / name, fresh / name, dirs_exist_ok=True)
            (fresh / SEAL).write_text(
                json.dumps({name: (fresh / name).stat().st_size for name in family.packages})
            )
            shutil.rmtree(family.folder, ignore_errors=True)
            fresh.rename(family.folder)

    def _with_retry(self, *command: str, folder: Path, environment: dict[str, str], tries: int = 3) -> None:
        """The module proxy fails now and then; what came over stays in the module cache."""
        for left in reversed(range(tries)):
            try:
                run("nice", *command, folder=folder, environment=environment, timeout=BUILD_TIMEOUT_SECONDS)
            except ClusterError as error:
                if left == 0:
                    raise
                self.phases.note(f"trying again: {str(error).splitlines()[-1].strip()}")
            else:
                return


def _rename_programs(folder: Path, family: Family) -> None:
    """Go names a program for the last part of its package; a version suffix is not such a part."""
    for name, path in family.packages.items():
        parts = [
            part
            for part in f"{family.module}/{path}".strip("/.").split("/")
            if not re.fullmatch(r"v\d+", part)
        ]
        made = folder / (parts[-1] if family.module else "init")
        if made.name != name:
            made.rename(folder / name)


def _go() -> str:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin:/usr/lib/go/bin")
    if go is None:
        raise Unmet(
            "Go is not installed",
            "install Go 1.26 or newer and put it on PATH: the cluster's programs are built from source",
        )
    found = run(go, "env", "GOVERSION", environment={"GOTOOLCHAIN": "local"}).strip().removeprefix("go")
    version = tuple(int(part) for part in re.findall(r"\d+", found)[:2])
    if version < (1, 26) and os.environ.get("GOTOOLCHAIN") == "local":
        raise Unmet(f"Go {found} is too old", "install Go 1.26 or newer")
    return go
