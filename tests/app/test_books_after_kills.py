"""What a run tells of itself is exact, wherever it was killed: metrics, samples, sums."""

import json
import os
from dataclasses import dataclass, field

import pytest
from support.cli import rows
from support.jobs import Killed, ScriptedStart, job_spec, run_until_killed

from asyncrl_runtime.adapters.directory_store import DirectoryStore
from asyncrl_runtime.adapters.sinks.events import EventLog, SampleLog
from asyncrl_runtime.adapters.sinks.jsonl import JsonlSink
from asyncrl_runtime.adapters.virtual_clock import run_virtual
from asyncrl_runtime.app.observer import RunObserver
from asyncrl_runtime.app.summary import Tally

PROMPTS, STEPS, GENERATIONS = 12, 6, 2


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@dataclass
class WritingStart(ScriptedStart):
    """A scripted start that writes metrics and samples, and sums up, as the application does."""

    tally: Tally = field(default_factory=Tally)

    def _connect(self, store):
        done = self.found.cut.steps if self.found else 0
        self.records = JsonlSink(self.folder / "metrics.jsonl", resumed_step=done)
        samples = SampleLog(self.folder / "samples.jsonl")
        samples.forget_after(done)
        self.events = RunObserver(
            events=EventLog(self.folder / "events.jsonl"),
            samples=samples,
            sample_every=1,
            sample_max_bytes=1_000_000,
            tally=self.tally,
            elapsed=lambda: 0.0,
        )
        self.finished = lambda parts, step, metrics: self.events.finished_step(step, metrics)
        parts = super()._connect(store)
        parts.checkpointer.tallies = self.tally.to_json
        return parts

    async def _go(self, parts):
        if self.found is not None:
            ready = [slot.meta for slot in parts.buffer if slot.meta is not None]
            self.tally.restore(self.found.cut.tallies, ready)
        return await super()._go(parts)

    def close(self):
        self.records.close()
        self.events.close()


def start_of(folder, **checkpointing):
    spec = job_spec(
        generations=GENERATIONS,
        async_rl={"sampler": {"name": "in_order", "maxLookaheadVersions": 2}},
        checkpointing=checkpointing,
    )
    return WritingStart(spec, folder, prompts=PROMPTS, train_seconds=lambda step: 0.4)


def told(start):
    """Steps in `metrics.jsonl` and `samples.jsonl`, the sums, and the prompts."""
    start.close()
    lines = rows(start.folder / "metrics.jsonl")
    trained = sum(int(line["train/global_valid_toks"]) for line in lines)
    assert start.tally.trained_tokens == trained
    sums = (start.tally.generated_tokens, start.tally.trained_tokens, start.tally.lags.total())
    samples = {(row["step"], row["group"]) for row in rows(start.folder / "samples.jsonl")}
    return [line["step"] for line in lines], samples, sums, start.counts()


def undisturbed(folder):
    start = start_of(folder)
    run_virtual(start.run())
    return told(start)


@pytest.mark.parametrize("settings", [{}, {"savePeriod": 4}], ids=["each", "fourth"])
def test_a_run_that_was_killed_tells_the_same_as_an_undisturbed_one(settings, tmp_path):
    calm = undisturbed(tmp_path / "calm")
    assert calm[0] == list(range(1, STEPS + 1))
    resumed, turn = 0, 0
    while True:
        turn += 4
        first = start_of(tmp_path / str(turn), **settings)
        end = run_until_killed(first, turn)
        first.close()
        if end is not None:
            break
        second = start_of(first.folder, **settings)
        run_virtual(second.run())
        resumed += second.found is not None
        assert told(second) == calm, turn
    assert resumed > 10


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_kill_beside_the_publication_of_a_checkpoint_loses_no_line(moment, tmp_path, monkeypatch):
    calm = undisturbed(tmp_path / "calm")
    publish = DirectoryStore.publish

    def killed(store, step, staged):
        bundle = None if step == 2 and moment == "before" else publish(store, step, staged)
        if step == 2:
            raise Killed
        return bundle

    monkeypatch.setattr(DirectoryStore, "publish", killed)
    first = start_of(tmp_path / "killed")
    with pytest.raises(BaseException) as ended:
        run_virtual(first.run())
    first.close()
    assert ended.type is Killed or ended.group_contains(Killed)
    assert [line["step"] for line in rows(first.folder / "metrics.jsonl")] == [1, 2]
    monkeypatch.setattr(DirectoryStore, "publish", publish)
    second = start_of(first.folder)
    run_virtual(second.run())

    assert second.found.cut.steps == {"before": 1, "after": 2}[moment]
    assert told(second) == calm


def test_the_time_of_a_checkpoint_is_told_with_the_next_step(tmp_path):
    start = start_of(tmp_path, savePeriod=2)
    run_virtual(start.run())
    start.close()
    lines = rows(tmp_path / "metrics.jsonl")

    assert ["timing/train/checkpointing" in line for line in lines] == [
        False,
        False,
        True,
        False,
        True,
        False,
    ]
    assert all(("checkpoint/seconds" in line) == ("timing/train/checkpointing" in line) for line in lines)
    assert all(
        line["timing/train/total_step_time"] >= line.get("timing/train/checkpointing", 0) for line in lines
    )


def test_the_sums_of_a_checkpoint_hold_the_step_that_it_closes(tmp_path):
    start = start_of(tmp_path)
    run_virtual(start.run())
    start.close()
    info = json.loads((tmp_path / f"step_{STEPS}" / "training_info.json").read_text())

    assert info["tallies"]["trained_tokens"] == start.tally.trained_tokens > 0
    assert info["tallies"]["generated_tokens"] == start.tally.generated_tokens > 0
    assert sum(info["tallies"]["lags"].values()) == STEPS * 2 * GENERATIONS
