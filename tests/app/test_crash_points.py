"""Crashes around any change of the disk: the newest whole state is found, and the job comes to its end."""

from collections import Counter

import pytest
from support.crashes import HOWS, Lost, crash_run, crash_store

from asyncrl_runtime.adapters import directory_snapshots, directory_store
from asyncrl_runtime.adapters.sealed_folder import MANIFEST


@pytest.mark.parametrize("how", HOWS)
def test_sc_14_164_bundles_and_snapshots_survive_a_crash_at_any_point(how, tmp_path):
    crashed_in = Counter(crash_store(tmp_path / str(seed), seed, how).crashed_in for seed in range(60))
    assert set(crashed_in) >= {"fsync", "rename", "replace", "unlink", "mkdir", "open"}


@pytest.mark.parametrize("how", HOWS)
def test_sc_9_93_a_run_goes_on_from_the_newest_state_after_a_crash_at_any_point(how, tmp_path):
    crashed_in = Counter(crash_run(tmp_path / str(seed), seed, how).crashed_in for seed in range(100, 112))
    assert None not in crashed_in
    assert len(crashed_in) > 3


def test_a_power_loss_finds_a_seal_that_does_not_sync(tmp_path, monkeypatch):
    def careless(folder, facts):
        real(folder, facts)
        for path in folder.rglob("*"):
            if path.is_file() and path.name != MANIFEST:
                path.write_bytes(path.read_bytes())

    real = directory_store.seal
    for module in (directory_store, directory_snapshots):
        monkeypatch.setattr(module, "seal", careless)
    with pytest.raises((Lost, directory_store.BundleDamaged)):
        for seed in range(60):
            crash_store(tmp_path / str(seed), seed, "torn")


def test_a_rename_before_the_seal_is_found(tmp_path, monkeypatch):
    def hasty(store, step, staged):
        (store.root / f"step_{step}").mkdir(exist_ok=True)
        return real(store, step, staged)

    real = directory_store.DirectoryStore.publish
    monkeypatch.setattr(directory_store.DirectoryStore, "publish", hasty)
    with pytest.raises((Lost, directory_store.BundleDamaged)):
        for seed in range(60):
            crash_store(tmp_path / str(seed), seed, "after")
