"""How a job is put together: what its parts share, and in which order their ends count."""

import asyncio
from dataclasses import fields

import pytest
from support.jobs import ScriptedStart, job_spec

from asyncrl_runtime.adapters.directory_store import DirectoryStore
from asyncrl_runtime.adapters.virtual_clock import run_virtual
from asyncrl_runtime.app import build
from asyncrl_runtime.pumps.watchdog import Watchdog


def with_parts(folder, look, **async_rl):
    """What `look` gives for the parts of a job that is not started."""

    async def main():
        parts = ScriptedStart(job_spec(async_rl=async_rl), folder)._connect(DirectoryStore(folder))
        found = look(parts)
        return await found if asyncio.iscoroutine(found) else found

    return run_virtual(main())


def test_sc_14_35_every_part_works_on_one_buffer_and_one_ledger(tmp_path):
    def holders(parts):
        rollout = parts.rollout
        return (
            [
                parts.buffer,
                parts.sampler.buffer,
                parts.train.buffer,
                parts.checkpointer.buffer,
                rollout.buffer,
                rollout.groups.buffer,
                rollout.groups.committer.buffer,
            ],
            [
                parts.ledger,
                parts.train.ledger,
                parts.checkpointer.ledger,
                rollout.ledger,
                rollout.groups.ledger,
            ],
        )

    for held in with_parts(tmp_path, holders):
        assert len({id(one) for one in held}) == 1


def test_sc_14_108_the_cause_is_looked_for_at_the_shards_first_and_in_training_last(tmp_path, monkeypatch):
    ranked = []

    async def note(main, beside):
        ranked.extend(beside)
        for pump in (main, *beside.values()):
            pump.close()

    monkeypatch.setattr(build, "supervise", note)

    async def prepare():
        raise AssertionError

    with_parts(tmp_path, lambda parts: parts.run(prepare), generationFleetHealth={"enabled": True})
    order = [ranked.index(name) for name in ("probe", "watchdog", "rollout", "snapshots")]
    assert order == sorted(order)
    assert ranked[0] == "probe"


def test_sc_14_105_a_watchdog_without_an_environment_cannot_be_built(tmp_path):
    given = with_parts(
        tmp_path,
        lambda parts: {f.name: getattr(parts.watchdog, f.name) for f in fields(Watchdog) if f.init},
    )
    assert Watchdog(**given).environment is given["environment"]
    del given["environment"]
    with pytest.raises(TypeError, match="environment"):
        Watchdog(**given)
