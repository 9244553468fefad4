"""A cluster for plans: carries actions out on plain objects, and plays KubeRay, kubelet and controller."""

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from asyncrl_api.job import AsyncRLJob
from asyncrl_api.parse import ManifestInvalid, parse
from asyncrl_api.resolve import resolve
from asyncrl_api.status import JobStatus
from asyncrl_operator.core import actions as act
from asyncrl_operator.core.facts import (
    Claim,
    Container,
    Exit,
    Job,
    Pod,
    RayCluster,
    Report,
    Shard,
    Snapshot,
)
from asyncrl_operator.core.plan import plan
from asyncrl_operator.manifests.names import (
    ATTEMPT_LABEL,
    HASH_ANNOTATION,
    JOB_UID_LABEL,
    Identity,
    Settings,
)

START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
SETTINGS = Settings(image="example.test/asyncrl/runtime:1")
SPEC = {
    "model": {"init": {}},
    "data": {"source": {"generated": {}}},
    "environment": {"arithmetic": {}},
    "algorithm": {"grpo": {}},
    "generation": {"backend": "torch", "shards": 2, "gpusPerShard": 0},
    "training": {"backend": "torch", "gpusPerHost": 0},
    "dataPlane": {"backend": "simple"},
    "checkpointing": {"volume": {"template": {"storage": "1Gi"}}},
}
MAX_PASSES = 30


def job_of(spec, name="digits"):
    raw = {
        "apiVersion": "asyncrl.io/v1alpha1",
        "kind": "AsyncRLJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }
    return parse(raw, cluster=True)


@dataclass
class World:
    """One job, and everything that exists of it."""

    spec: dict = field(default_factory=lambda: dict(SPEC))
    now: datetime = START
    status: JobStatus = field(default_factory=JobStatus)
    finalizers: tuple = ()
    annotations: dict = field(default_factory=dict)
    deleted: datetime | None = None
    exists: bool = True
    generation: int = 1
    kuberay: bool = True
    clusters: dict = field(default_factory=dict)
    children: set = field(default_factory=set)
    pods: dict = field(default_factory=dict)
    claim: Claim | None = None
    report: Report | None = None
    first_head: str | None = None
    told: set = field(default_factory=set)
    events: list = field(default_factory=list)
    most_clusters: int = 0
    writes: int = 0
    uids: int = 0
    again: timedelta | None = None

    # ── the operator ────────────────────────────────────────────────────────────────────────────────

    def snapshot(self):
        identity = Identity("digits", "default", "uid-job", self.generation)
        spec, problems = None, ()
        try:
            job: AsyncRLJob = resolve(job_of(self.spec), cluster=True)
            spec = job.spec
        except ManifestInvalid as invalid:
            problems = tuple(map(str, invalid.problems))
        heads = [pod.uid for pod in self.pods.values() if pod.role == "controller"]
        if self.first_head not in heads:
            self.first_head = heads[0] if heads and self.first_head is None else self.first_head
        return Snapshot(
            job=Job(
                identity=identity,
                spec=spec,
                raw_spec=self.spec,
                problems=problems,
                status=self.status,
                finalizers=self.finalizers,
                annotations=self.annotations,
                created=START,
                deleted=self.deleted,
            ),
            settings=SETTINGS,
            kuberay=self.kuberay,
            clusters=tuple(self.clusters.values()),
            pods=tuple(self.pods.values()),
            claim=self.claim,
            children=frozenset(self.children),
            report=self.report,
            first_head=self.first_head,
            told=frozenset(self.told),
        )

    def once(self):
        """One pass; whether it wrote anything."""
        planned = plan(self.snapshot(), now=self.now)
        before = self.writes
        for action in planned.actions:
            self.carry_out(action)
        if not planned.gone and planned.status != self.status:
            self.status = JobStatus.model_validate(planned.status.model_dump())
            self.writes += 1
        self.again = planned.again
        return self.writes > before

    def settle(self):
        """Passes until nothing is written."""
        for _ in range(MAX_PASSES):
            if not self.exists or not self.once():
                return self
        raise AssertionError(f"no rest after {MAX_PASSES} passes: {self.status}")

    def carry_out(self, action):
        if not isinstance(action, act.Tell):
            self.writes += 1
        match action:
            case act.Tell(reason, message, warning):
                self.events.append((reason, message, warning))
            case act.AddFinalizer():
                self.finalizers = ("asyncrl.io/cleanup",)
            case act.RemoveFinalizer():
                self.finalizers, self.exists = (), self.deleted is None
            case act.DeleteJob():
                self.deleted = self.now
            case act.CreateSecret(attempt):
                self.children.add(("Secret", f"digits-a{attempt}"))
            case act.Create(manifest) | act.Apply(manifest):
                self.make(manifest)
            case act.DeleteCluster(name, uid):
                cluster = self.clusters.get(name)
                if cluster is not None and cluster.uid == uid:
                    self.clusters[name] = replace(cluster, deleted=True)
            case act.DeleteAttempt(attempt):
                self.children -= {
                    ("Secret", f"digits-a{attempt}"),
                    ("PodDisruptionBudget", f"digits-a{attempt}"),
                }
            case act.Ask("release", key):
                self.told.discard(key)
            case act.Ask(_, key):
                self.told.add(key)

    def make(self, manifest):
        kind, meta = manifest["kind"], manifest["metadata"]
        if kind == "RayCluster":
            if meta["name"] in self.clusters:
                return
            self.uids += 1
            self.clusters[meta["name"]] = RayCluster(
                name=meta["name"],
                uid=f"uid-cluster-{self.uids}",
                job_uid=meta["labels"][JOB_UID_LABEL],
                attempt=int(meta["labels"][ATTEMPT_LABEL]),
                created=self.now,
                template_hash=meta["annotations"][HASH_ANNOTATION],
                replicas={g["groupName"]: g["replicas"] for g in manifest["spec"]["workerGroupSpecs"]},
            )
            self.most_clusters = max(self.most_clusters, len(self.clusters))
            self.told.clear()
            self.report, self.first_head = None, None
        elif kind == "PersistentVolumeClaim":
            modes = tuple(manifest["spec"]["accessModes"])
            self.claim = self.claim or Claim(name=meta["name"], phase="Pending", access_modes=modes)
        else:
            self.children.add((kind, meta["name"]))

    # ── the others ──────────────────────────────────────────────────────────────────────────────────

    @property
    def cluster(self):
        return next((c for c in self.clusters.values() if not c.deleted), None)

    @property
    def head(self):
        return next((p for p in self.pods.values() if p.role == "controller" and not p.deleted), None)

    def collect(self):
        """The garbage collector: what is deleted goes, pods first."""
        for name, cluster in list(self.clusters.items()):
            if cluster.deleted:
                self.pods = {n: p for n, p in self.pods.items() if p.attempt != cluster.attempt}
                del self.clusters[name]
        self.pods = {n: p for n, p in self.pods.items() if not p.deleted}

    def start_pods(self):
        """KubeRay makes the pods, the kubelet runs them, the claim is bound."""
        cluster = self.cluster
        self.clusters[cluster.name] = replace(cluster, has_status=True)
        if self.claim is not None:
            self.claim = replace(self.claim, phase="Bound")
        for role, count in {"controller": 1, **cluster.replicas}.items():
            for number in range(count):
                self.uids += 1
                name = f"{cluster.name}-{role}-{number}"
                if name not in self.pods:
                    self.pods[name] = Pod(
                        name=name,
                        uid=f"uid-pod-{self.uids}",
                        role=role,
                        attempt=cluster.attempt,
                        phase="Running",
                        ready=True,
                        node="node-1",
                        created=self.now,
                        containers=(Container(name="controller", ready=True),)
                        if role == "controller"
                        else (),
                    )

    def reports(self, **changes):
        """The controller reports now."""
        shards = changes.pop("states", ["HEALTHY", "HEALTHY"])
        facts = {"phase": "Running", "step": 1, "max_steps": 10, "idle_seconds": 0.0}
        facts |= {"applied_generation": self.generation, "sampler": "in_order"} | changes
        self.report = Report(
            pod_uid=self.head.uid,
            received=self.now,
            shards=tuple(Shard(index=n, state=state, weight_version=1) for n, state in enumerate(shards)),
            **facts,
        )

    def controller(self, **changes):
        """Change the state of the controller's container."""
        head = self.head
        self.pods[head.name] = replace(head, containers=(replace(head.containers[0], **changes),))

    def ends(self, outcome, code=0, step=10, message=""):
        """The controller ends its run in order, and says how."""
        words = json.dumps({"outcome": outcome, "code": code, "step": step, "message": message})
        self.controller(exit=Exit(code=0, reason="Completed", message=words, at=self.now))

    def passes(self, seconds):
        self.now += timedelta(seconds=seconds)

    def running(self):
        """A job that trains."""
        self.settle()
        self.start_pods()
        self.settle()
        self.reports()
        return self.settle()

    def condition(self, kind):
        found = next(c for c in self.status.conditions if c.type == kind)
        return found.status, found.reason

    def message(self, kind):
        return next(c.message for c in self.status.conditions if c.type == kind)
