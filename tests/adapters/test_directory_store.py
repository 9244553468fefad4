"""Checkpoints in a directory: torn, foreign and full folders, and a crash at any point."""

import errno
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ports.checkpoint_store_contract import CheckpointStoreContract, content, save
from support.crashes import HOWS, Crash, Disk

from asyncrl_runtime.adapters.directory_store import DirectoryStore
from asyncrl_runtime.adapters.folder_lock import FolderInUse, FolderLock, FolderUnusable
from asyncrl_runtime.adapters.sealed_folder import write_atomically
from asyncrl_runtime.ports.checkpoints import BundleDamaged, CheckpointFailed, Fenced


def opened(root):
    store = DirectoryStore(root)
    store.claim()
    store.sweep()
    return store


@pytest.fixture
def root(tmp_path):
    return tmp_path / "checkpoints"


@pytest.fixture
def store(root):
    return opened(root)


@pytest.fixture
def reopen(root):
    return lambda: opened(root)


class TestContract(CheckpointStoreContract):
    pass


# ── what lies in the folder ─────────────────────────────────────────────────────────────────────────


def test_foreign_names_are_no_bundles_and_stay(store, root):
    save(store, 7)
    foreign = ["step_", "step_x", "step_07a", "notes", "step_3.r1", "xstep_4", "step_5.tmp"]
    for name in foreign:
        (root / name).mkdir()
    (root / "step_9.json").write_text("{}")
    assert [bundle.step for bundle in store.bundles()] == [7]
    again = opened(root)
    assert [bundle.step for bundle in again.bundles()] == [7]
    assert all((root / name).exists() for name in foreign)


def test_a_folder_without_a_manifest_is_damaged_not_ignored(store, root):
    (root / "step_8").mkdir()
    (root / "step_8" / "training_info.json").write_text("{}")
    (bundle,) = store.bundles()
    with pytest.raises(BundleDamaged, match=r"manifest\.json cannot be read"):
        store.verify(bundle)


@pytest.mark.parametrize("text", ["", "[]", "{}", "nonsense", '{"files": 3}', '{"files": {}, "digest": "x"}'])
def test_a_manifest_that_is_none_is_damage(store, text):
    bundle = save(store, 1)
    (bundle.path / "manifest.json").write_text(text)
    with pytest.raises(BundleDamaged):
        store.verify(bundle)


def test_a_bundle_under_another_step_s_name_is_refused(store, root):
    save(store, 3).path.rename(root / "step_4")
    (bundle,) = store.bundles()
    with pytest.raises(BundleDamaged, match="it was written as step 3"):
        store.verify(bundle)


def test_every_changed_byte_is_found(store):
    bundle = save(store, 1)
    rng = random.Random(1)
    files = [path for path in sorted(bundle.path.rglob("*")) if path.is_file()]
    for _ in range(60):
        path = rng.choice(files)
        data = bytearray(path.read_bytes())
        place = rng.randrange(len(data))
        old = data[place]
        data[place] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        with pytest.raises(BundleDamaged):
            store.verify(bundle)
        data[place] = old
        path.write_bytes(data)
    store.verify(bundle)


def test_a_file_that_cannot_be_read_is_damage(store, monkeypatch):
    bundle = save(store, 1)
    real = Path.open

    def refuse(path, *args, **kwargs):
        if path.name == "model.bin":
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(BundleDamaged, match=r"model\.bin cannot be read .*Permission denied"):
        store.verify(bundle)


# ── SC-9.33 ─────────────────────────────────────────────────────────────────────────────────────────


def test_sc_9_33_a_replacement_is_named_by_a_pointer_and_the_old_one_is_deleted(store, root):
    first = save(store, 4, "first")
    second = save(store, 4, "second")
    third = save(store, 4, "third")
    assert [b.path.name for b in (first, second, third)] == ["step_4", "step_4.r1", "step_4.r2"]
    assert (root / "step_4.current").read_text() == "step_4.r2"
    assert sorted(p.name for p in root.glob("step_4*")) == ["step_4.current", "step_4.r2"]


def test_sc_9_33_a_replacement_that_no_pointer_names_is_no_candidate(store, root):
    save(store, 4, "first")
    shutil.copytree(root / "step_4", root / "step_4.r1")
    (bundle,) = store.bundles()
    assert bundle.path.name == "step_4"
    again = opened(root)
    assert not (root / "step_4.r1").exists()
    (bundle,) = again.bundles()
    again.verify(bundle)


@pytest.mark.parametrize("text", ["", "..", "/etc", "step_x"])
def test_a_pointer_that_names_no_bundle_is_damage_and_nothing_is_removed(store, root, text):
    save(store, 4, "first")
    save(store, 4, "second")
    (root / "step_4.current").write_text(text)
    again = opened(root)
    (bundle,) = again.bundles()
    with pytest.raises(BundleDamaged):
        again.verify(bundle)
    assert (root / "step_4.r1").is_dir()


# ── fencing and locks ───────────────────────────────────────────────────────────────────────────────


def test_the_start_count_only_grows(root):
    assert [DirectoryStore(root).claim() for _ in range(3)] == [1, 2, 3]
    (root / "fence.json").write_text("torn")
    with pytest.raises(BundleDamaged, match=r"fence\.json cannot be read"):
        DirectoryStore(root).claim()


def test_a_zombie_is_stopped_at_the_rename_also_if_it_was_owner_when_it_began(store, root, monkeypatch):
    staged = store.stage(2)
    (staged / "training_info.json").write_text("late")
    real, later = os.fsync, []

    def taken_over(descriptor):
        if not later:
            later.append(None)
            later[0] = DirectoryStore(root)
            later[0].claim()
        real(descriptor)

    monkeypatch.setattr(os, "fsync", taken_over)
    with pytest.raises(Fenced, match=r"start 2 of the job has taken .* over, and this is start 1"):
        store.publish(2, staged)
    assert later[0].bundles() == []


def test_sweeping_is_the_owner_s(store, root):
    DirectoryStore(root).claim()
    with pytest.raises(Fenced):
        store.sweep()


HOLD = """
import sys, time
from pathlib import Path
from asyncrl_runtime.adapters.folder_lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
time.sleep(60)
"""


def test_cli_40_a_lock_is_held_as_long_as_its_process_lives(tmp_path):
    lock = tmp_path / "run" / ".lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(FolderInUse, match=rf"run is in use by process {holder.pid}: wait") as caught:
            FolderLock(lock).acquire()
        assert caught.value.pid == str(holder.pid)
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    ours = FolderLock(lock)
    ours.acquire()
    assert lock.read_text() == str(os.getpid())
    with pytest.raises(FolderInUse):
        FolderLock(lock).acquire()
    ours.release()
    ours.release()
    FolderLock(lock).acquire()


# ── folders that cannot be written ──────────────────────────────────────────────────────────────────


def test_a_folder_that_cannot_be_made_says_so_and_what_to_do(tmp_path):
    (tmp_path / "file").write_text("")
    for act in (
        DirectoryStore(tmp_path / "file" / "x").claim,
        FolderLock(tmp_path / "file" / ".lock").acquire,
    ):
        with pytest.raises(FolderUnusable, match=r"file.* cannot be used: .*another folder with --output"):
            act()


def test_a_full_disk_fails_the_save_and_leaves_the_older_bundle(store, root, monkeypatch):
    save(store, 1)
    staged = store.stage(2)
    (staged / "training_info.json").write_text("x")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(
            CheckpointFailed, match=r"tmp_step_2 could not be written: .*No space.*free space"
        ):
            store.publish(2, staged)
    again = opened(root)
    assert [bundle.step for bundle in again.bundles()] == [1]
    again.verify(again.bundles()[0])
    assert not staged.exists()


def test_an_atomic_write_that_fails_leaves_the_old_text(tmp_path, monkeypatch):
    path = tmp_path / "f"
    write_atomically(path, "old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, "new")
    assert path.read_text() == "old"


# ── a crash at any point ────────────────────────────────────────────────────────────────────────────


def history(store, rng):
    """Saves, saves again and deletes; yields (step, text) as each save is confirmed, or a deleted step."""
    texts = iter(f"text{n}" for n in range(100))
    for step in range(1, 5):
        for _ in range(rng.choice([1, 1, 2, 3])):
            text = next(texts)
            save(store, step, text)
            yield "saved", step, text
        if step > 2 and rng.random() < 0.7:
            doomed = store.bundles()[-1]
            store.delete(doomed)
            yield "deleted", doomed.step, ""


@pytest.mark.parametrize("how", HOWS)
def test_a_crash_anywhere_leaves_the_newest_confirmed_bundle_or_a_newer_one(how, tmp_path):
    for seed in range(90):
        rng = random.Random(seed)
        root, confirmed, disk = tmp_path / f"{seed}", {}, Disk(rng.randint(1, 180), how)
        store = opened(root)
        with disk.attached():
            try:
                for what, step, text in history(store, rng):
                    confirmed.pop(step, None)
                    if what == "saved":
                        confirmed[step] = text
            except Crash:
                pass
        looked = DirectoryStore(root)
        before = check_whole(looked, confirmed, seed)
        again = opened(root)
        assert check_whole(again, confirmed, seed) == before, seed
        assert not list(root.glob("tmp_*")), seed
        if not disk.crashed_in:
            assert {step: text for step, (text, _) in before.items()} == confirmed
        save(again, 9, "next")
        assert again.bundles()[0].step == 9


def check_whole(store, confirmed, seed):
    """Every selectable bundle is whole, and none is older than what was confirmed; their texts."""
    found = {}
    for bundle in store.bundles():
        store.verify(bundle)
        found[bundle.step] = (content(bundle).split()[0], bundle.path.name)
    newest = max(confirmed, default=0)
    assert max(found, default=0) >= newest, seed
    for step, (text, _) in found.items():
        if step in confirmed:
            assert int(text[4:]) >= int(confirmed[step][4:]), (seed, step)
    missing = set(confirmed) - set(found)
    assert len(missing) <= 1, (seed, missing)
    assert not missing or missing == {min(confirmed)}, (seed, missing)
    return found


def test_the_manifest_says_who_wrote_what(store):
    facts = json.loads((save(store, 6).path / "manifest.json").read_text())
    assert (facts["step"], facts["start"]) == (6, 1)
    assert set(facts["files"]) == {"policy/weights/model.bin", "training_info.json"}
