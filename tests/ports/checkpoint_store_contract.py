"""What every checkpoint store keeps; a test module subclasses it, with fixtures `store` and `reopen`.

`store` is owned and empty; `reopen()` gives the store as the next start of the job sees it, owned by that.
"""

import json

import pytest

from asyncrl_runtime.ports.checkpoints import BundleDamaged, Fenced


def save(store, step, text="x", files=("policy/weights/model.bin", "training_info.json")):
    """Stage, write and publish."""
    staged = store.stage(step)
    for name in files:
        path = staged / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text} {name}")
    return store.publish(step, staged)


def content(bundle):
    return (bundle.path / "training_info.json").read_text()


class CheckpointStoreContract:
    def test_an_empty_store_has_no_bundles(self, store):
        assert store.bundles() == []

    def test_what_was_published_is_found_whole_newest_first(self, store, reopen):
        for step in (2, 10, 9):
            save(store, step, f"step {step}")
        later = reopen()
        assert [bundle.step for bundle in later.bundles()] == [10, 9, 2]
        for bundle in later.bundles():
            later.verify(bundle)
            assert content(bundle).startswith(f"step {bundle.step} ")

    def test_sc_14_164_what_is_staged_is_not_selectable(self, store, reopen):
        save(store, 1)
        (store.stage(2) / "training_info.json").write_text("x")
        assert [bundle.step for bundle in store.bundles()] == [1]
        assert [bundle.step for bundle in reopen().bundles()] == [1]

    def test_a_stale_stage_of_the_same_step_is_emptied(self, store):
        (store.stage(3) / "left.bin").write_text("x")
        assert list(store.stage(3).iterdir()) == []

    def test_a_second_bundle_of_a_step_replaces_the_first(self, store, reopen):
        for text in ("first", "second", "third"):
            save(store, 4, text)
            (bundle,) = store.bundles()
            assert content(bundle).startswith(text)
        later = reopen()
        (bundle,) = later.bundles()
        later.verify(bundle)
        assert content(bundle).startswith("third")

    @pytest.mark.parametrize("damage", ["missing", "shorter", "changed", "manifest", "no manifest"])
    def test_damage_is_found(self, store, damage):
        bundle = save(store, 5)
        path = bundle.path / "policy" / "weights" / "model.bin"
        manifest = bundle.path / "manifest.json"
        data = path.read_bytes()
        match damage:
            case "missing":
                path.unlink()
            case "shorter":
                path.write_bytes(data[:-1])
            case "changed":
                path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
            case "manifest":
                facts = json.loads(manifest.read_text())
                facts["files"].pop("policy/weights/model.bin")
                manifest.write_text(json.dumps(facts))
            case _:
                manifest.unlink()
        with pytest.raises(BundleDamaged, match=r"step_5 cannot be used: "):
            store.verify(bundle)

    def test_a_deleted_bundle_is_gone_and_leaves_the_others(self, store, reopen):
        for step in (1, 2):
            save(store, step)
        save(store, 2, "again")
        store.delete(store.bundles()[0])
        assert [bundle.step for bundle in store.bundles()] == [1]
        assert [bundle.step for bundle in reopen().bundles()] == [1]

    def test_a_deleted_step_can_be_saved_again(self, store):
        save(store, 2)
        save(store, 2, "again")
        store.delete(store.bundles()[0])
        save(store, 2, "anew")
        (bundle,) = store.bundles()
        store.verify(bundle)
        assert content(bundle).startswith("anew")

    def test_an_owner_that_was_replaced_changes_nothing_any_more(self, store, reopen):
        bundle = save(store, 1)
        staged = store.stage(2)
        (staged / "training_info.json").write_text("late")
        later = reopen()
        for change in (
            lambda: store.publish(2, staged),
            lambda: store.stage(3),
            lambda: store.delete(bundle),
        ):
            with pytest.raises(Fenced, match="this process stops without writing"):
                change()
        assert [b.step for b in later.bundles()] == [1]
        later.verify(later.bundles()[0])
        save(later, 2)

    def test_a_status_for_monitors_can_be_written_again_and_again(self, store):
        store.report({"step": 1, "status": "saved"})
        store.report({"step": 2, "status": "saved"})
        assert store.bundles() == []
