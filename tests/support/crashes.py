"""Crashes around the k-th change of the disk, and what must be found after them."""

import asyncio
import json
import os
import random
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from asyncrl_api.derived import Derived
from asyncrl_runtime.adapters.directory_snapshots import DirectorySnapshots
from asyncrl_runtime.adapters.directory_store import DirectoryStore
from asyncrl_runtime.app.resume import newest_usable
from support.chaos import Case, ChaosStart, Lost, Outcome, StartPlan, ThreadlessLoop, check

HOWS = ("before", "after", "torn")
"""Before the change, after it, or after it with every file that is not synced cut in half: a power loss."""

FUNCTIONS = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir")
METHODS = ("write_text", "write_bytes")


class Crash(SystemExit):
    """The process ends here. An event loop lets it through."""


@dataclass
class Disk:
    """Counts what changes the disk and ends the process at the k-th; nothing is written afterwards.

    Syncing costs nothing here: the machine itself does not lose power.
    """

    at: int | None = None
    how: str = "after"
    operations: int = field(default=0, init=False)
    crashed_in: str | None = field(default=None, init=False)
    """What the process died in."""

    unsynced: set[str] = field(default_factory=set, init=False)
    _real: dict = field(default_factory=dict, init=False)

    @contextmanager
    def attached(self):
        """Watch the disk inside."""
        self._real = {(os, name): getattr(os, name) for name in FUNCTIONS}
        self._real |= {(Path, name): getattr(Path, name) for name in (*METHODS, "open")}
        for (owner, name), real in self._real.items():
            setattr(owner, name, getattr(self, f"_{name}", None) or self._counted(name, real))
        try:
            yield self
        finally:
            for (owner, name), real in self._real.items():
                setattr(owner, name, real)

    @property
    def _open(self):
        real, disk = self._real[Path, "open"], self

        def opened(path, mode="r", *args, **kwargs):
            if set(mode).isdisjoint("wax+"):
                return real(path, mode, *args, **kwargs)
            disk.unsynced.add(os.path.abspath(path))
            return disk._counted("open", real)(path, mode, *args, **kwargs)

        return opened

    @property
    def _fsync(self):
        def sync(descriptor):
            self.unsynced.discard(os.readlink(f"/proc/self/fd/{descriptor}"))

        return self._counted("fsync", sync)

    @property
    def _rename(self):
        return self._moved("rename")

    @property
    def _replace(self):
        return self._moved("replace")

    def _moved(self, name):
        real = self._real[os, name]

        def move(source, target, **options):
            real(source, target, **options)
            old, new = os.path.abspath(source), os.path.abspath(target)
            self.unsynced = {
                new + path[len(old) :] if path == old or path.startswith(old + "/") else path
                for path in self.unsynced
            }

        return self._counted(name, move)

    def _counted(self, name, real):
        def call(*args, **kwargs):
            if self.crashed_in:
                raise OSError("the process has ended")
            self.operations += 1
            here = self.operations == self.at
            if here and self.how == "before":
                self._crash(name)
            try:
                return real(*args, **kwargs)
            finally:
                if here:
                    self._crash(name)

        return call

    def _crash(self, name):
        self.crashed_in = name
        if self.how == "torn":
            for path in self.unsynced:
                if os.path.isfile(path):
                    os.truncate(path, os.path.getsize(path) // 2)
        raise Crash(f"in {name}")


# ── the store alone ─────────────────────────────────────────────────────────────────────────────────


@dataclass
class Confirmed:
    """What a history was told is on disk, as contents by place."""

    bundles: dict[int, str] = field(default_factory=dict)
    snapshots: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    """By name of the anchor: number and content, oldest first."""


def store_history(root, rng, confirmed):
    """Bundles, replacements, snapshots on top of them, prunes and deletions in random order."""
    store = DirectoryStore(root)
    store.claim()
    store.sweep()
    snapshots = DirectorySnapshots(store)
    snapshots.sweep()
    snapshots.write_bootstrap({"fingerprint": "f"})
    anchor, texts = snapshots.bootstrap, iter(range(10**6))
    for step in range(1, 5):
        for _ in range(rng.choice([0, 1, 3])):
            _snapshot(snapshots, anchor, f"s{next(texts)}", confirmed, keep=2)
        for _ in range(rng.choice([1, 1, 2])):
            text = f"b{next(texts)}"
            staged = store.stage(step)
            (staged / "policy").mkdir()
            (staged / "policy" / "weights.bin").write_bytes(text.encode() * 50)
            (staged / "training_info.json").write_text(text)
            anchor = store.publish(step, staged).path
            confirmed.bundles[step] = text
        if step > 2 and rng.random() < 0.7:
            doomed = store.bundles()[-1]
            confirmed.bundles.pop(doomed.step, None)
            confirmed.snapshots.pop(doomed.path.name, None)
            store.delete(doomed)
        store.report({"step": step})


def _snapshot(snapshots, anchor, text, confirmed, *, keep):
    staged = snapshots.stage(anchor)
    (staged / "data_plane").mkdir()
    (staged / "data_plane" / "rows.bin").write_bytes(text.encode() * 50)
    (staged / "replay_index.json").write_text(text)
    done = snapshots.publish(anchor, staged, {})
    confirmed.snapshots.setdefault(anchor.name, []).append((done.number, text))
    confirmed.snapshots[anchor.name] = confirmed.snapshots[anchor.name][-keep:]
    snapshots.prune(anchor, keep)


def crash_store(root, seed, how):
    """Crash somewhere in a history of the store, look, open it again, look again. Raises Lost."""
    dry, disk = Disk(), Disk(how=how)
    with dry.attached():
        store_history(root / "dry", random.Random(seed), Confirmed())
    disk.at = random.Random(f"{seed}/{how}").randint(1, dry.operations)
    confirmed = Confirmed()
    with disk.attached(), suppress(Crash):
        store_history(root / "run", random.Random(seed), confirmed)
    before = _look(root / "run", confirmed)
    store = DirectoryStore(root / "run")
    store.claim()
    store.sweep()
    DirectorySnapshots(store).sweep()
    if _look(root / "run", confirmed) != before:
        raise Lost("opening the folder again changed what it holds")
    if left := [str(path) for path in (root / "run").rglob("tmp_*")]:
        raise Lost(f"the sweep left {', '.join(left)}")
    return disk


def _look(root, confirmed):
    """What can be selected, all of it whole. Raises Lost where something confirmed is gone or older."""
    store = DirectoryStore(root)
    snapshots, found = DirectorySnapshots(store), {}
    for bundle in store.bundles():
        store.verify(bundle)
        text = (bundle.path / "training_info.json").read_text()
        taken = {}
        for snapshot in snapshots.snapshots(bundle.path):
            snapshots.verify(snapshot)
            taken[snapshot.number] = (snapshot.path / "replay_index.json").read_text()
        found[bundle.step] = text, taken
    newest = max(confirmed.bundles, default=0)
    if max(found, default=0) < newest:
        raise Lost(f"bundle {newest} was confirmed, and the newest is {max(found, default=0)}")
    for step, text in confirmed.bundles.items():
        if step in found and int(found[step][0][1:]) < int(text[1:]):
            raise Lost(f"bundle {step} holds {found[step][0]}, older than what was confirmed")
    _look_at_bootstrap(snapshots, found, confirmed)
    return found


def _look_at_bootstrap(snapshots, found, confirmed):
    taken = snapshots.snapshots(snapshots.bootstrap)
    for snapshot in taken:
        snapshots.verify(snapshot)
    numbers = [number for number, _ in confirmed.snapshots.get("bootstrap", [])]
    if numbers and max((s.number for s in taken), default=0) < max(numbers):
        raise Lost(f"snapshot {max(numbers)} before the first step was confirmed and is gone")


# ── whole runs ──────────────────────────────────────────────────────────────────────────────────────


class CrashCase(Case):
    """A job with snapshots whose only misfortune is one crash."""

    def __init__(self, seed):
        super().__init__(seed)
        self.infra_failures = 0.0
        more = {"snapshot_attempt_interval_seconds": random.Random(f"crash {seed}").choice([0.2, 0.5, 2.0])}
        self.spec = self.spec.model_copy(
            update={
                "token_capture": self.spec.token_capture.model_copy(update={"enabled": True}),
                "rollout_checkpointing": self.spec.rollout_checkpointing.model_copy(update=more),
            }
        )
        self.capture = True

    def start(self, folder, number):
        return ChaosStart(
            self.spec,
            folder,
            prompts=self.prompts,
            train_seconds=lambda step: self.train_seconds * self.draw(f"train {step}"),
            case=self,
            plan=StartPlan((), None, None, 0.0, 0.0),
            number=number,
        )


def run_until_crashed(start):
    """The end of the run, or None if it crashed."""
    loop = ThreadlessLoop(10**9)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        try:
            return runner.run(start.run())
        except Crash:
            loop.stop()
            loop.run_forever()  # takes what asyncio had already queued out of the way of its own clean-up
            return None


def crash_run(root, seed, how):
    """Crash a run around one change of the disk, look what is found, and let it go on. Raises Lost."""
    case, dry, disk = CrashCase(seed), Disk(), Disk(how=how)
    with dry.attached():
        run_until_crashed(case.start(root / "dry", 0))
    disk.at = random.Random(f"{seed}/{how}").randint(1, dry.operations)
    first = case.start(root / "run", 0)
    with disk.attached():
        end = run_until_crashed(first)
    found = _found(root / "run", case, first)
    with Disk().attached():
        second = case.start(root / "run", 1)
        end = run_until_crashed(second)
    if end not in ("max_steps", "data_exhausted", "step_below_floor"):
        raise Lost(f"the run after the crash ended {end}")
    check(case, Outcome(second, end, 2, int(found is not None), 1, Counter(), 0.0, 0.0))
    return disk


def _found(folder, case, start):
    """What the next start will come back from: whole, and nothing older than what was confirmed."""
    store = DirectoryStore(folder)
    found = newest_usable(
        store, snapshots=DirectorySnapshots(store), mode="latest", identity=getattr(start, "identity", None)
    )
    saved = [event["step"] for event in start.events.of("checkpoint_saved")]
    taken = [event["path"] for event in start.events.of("snapshot_attempt") if event["reason"] == "saved"]
    step = 0 if found is None or found.bundle is None else found.bundle.step
    if step < max(saved, default=0):
        raise Lost(f"step {max(saved)} was saved, and step {step} is what is found")
    if found is None:
        if taken:
            raise Lost(f"{taken[-1]} was saved, and nothing is found")
        return None
    if found.skipped:
        raise Lost(f"a crash left something that is damaged: {found.skipped}")
    _check_snapshot(found, taken)
    _check_weights(found, case)
    return found


def _check_snapshot(found, taken):
    """The newest of its anchor."""
    anchor = "bootstrap" if found.bundle is None else found.bundle.path.name
    numbers = [int(path.rpartition("_")[2]) for path in taken if path.startswith(f"{anchor}/")]
    _, _, name = found.name.rpartition("/")
    number = int(name.rpartition("_")[2]) if name.startswith("snapshot_") else 0
    if number < max(numbers, default=0):
        raise Lost(f"snapshot {max(numbers)} of {anchor} was saved, and {found.name} is what is found")
    if found.bundle is not None and found.cut.steps != found.bundle.step:
        raise Lost(f"{found.name} is of step {found.cut.steps}")


def _check_weights(found, case):
    """The trainer's state is that of the step."""
    if found.bundle is None:
        return
    state = json.loads((found.bundle.path / "policy" / "weights" / "state.json").read_text())
    rows = found.cut.consumed_groups * Derived(case.spec).num_generations_per_prompt
    if len(state["trained"]) != rows:
        raise Lost(f"{found.name} counts {rows} rows, and its weights are of {len(state['trained'])}")
