import json
import logging
import math

import numpy as np
import pytest
import structlog
from ports.sink_contract import step

from asyncrl_api.spec.logging import LoggingSpec
from asyncrl_runtime.adapters.sinks.build import open_sinks
from asyncrl_runtime.adapters.sinks.events import EventLog, SampleLog
from asyncrl_runtime.adapters.sinks.fanout import BackgroundSink, FanOut
from asyncrl_runtime.adapters.sinks.jsonl import JsonlSink
from asyncrl_runtime.adapters.sinks.lines import LineFile, read_rows
from asyncrl_runtime.adapters.sinks.logs import RunLogging
from asyncrl_runtime.ports.metrics import MetricRecord


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_step_is_one_object_with_the_latest_numbers_of_the_other_axes(tmp_path):
    sink = JsonlSink(tmp_path / "m.jsonl")
    sink.log(MetricRecord("tick", 3, 1.0, {"buffer/ready": 1.0}))
    sink.log(MetricRecord("tick", 4, 2.0, {"buffer/ready": 5.0}))
    sink.log(MetricRecord("sample", 9, 2.5, {"generation/tokens_per_second": 100.0}))
    sink.log(MetricRecord("step", 1, 3.0004, {"train/loss": 0.5}))
    sink.log(MetricRecord("step", 2, 4.0, {"train/loss": 0.25}))

    assert rows(tmp_path / "m.jsonl") == [
        {
            "step": 1,
            "time": 3.0,
            "train/loss": 0.5,
            "buffer/ready": 5.0,
            "tick": 4,
            "generation/tokens_per_second": 100.0,
            "sample": 9,
        },
        {
            "step": 2,
            "time": 4.0,
            "train/loss": 0.25,
            "buffer/ready": 5.0,
            "tick": 4,
            "generation/tokens_per_second": 100.0,
            "sample": 9,
        },
    ]


def test_numbers_that_json_lacks_become_null_and_numpys_become_plain(tmp_path):
    sink = JsonlSink(tmp_path / "m.jsonl")
    values = {
        "train/loss": math.nan,
        "train/lr": np.float32(0.5),
        "train/wd": -math.inf,
        "train/chunks": np.int64(3),
    }
    sink.log(MetricRecord("step", 1, 0.0, values))

    row = rows(tmp_path / "m.jsonl")[0]
    assert (row["train/loss"], row["train/lr"], row["train/wd"], row["train/chunks"]) == (None, 0.5, None, 3)


def test_after_a_resume_each_step_stands_once(tmp_path):
    path = tmp_path / "m.jsonl"
    first = JsonlSink(path)
    for index in range(1, 6):
        first.log(step(index))
    first.close()

    second = JsonlSink(path, resumed_step=3)
    second.log(step(4))

    assert [row["step"] for row in rows(path)] == [1, 2, 3, 4]


def test_the_torn_line_of_a_killed_writer_goes(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "tr')

    assert list(read_rows(path)) == [{"step": 1}]
    LineFile(path).append({"step": 3})
    assert rows(path) == [{"step": 1}, {"step": 3}]


def test_events_carry_time_and_kind(tmp_path):
    events = EventLog(tmp_path / "e.jsonl", clock=lambda: 12.3456)
    events.write("refit", {"version": 3, "participants": [0, 1], "who": ValueError("x")})

    assert rows(tmp_path / "e.jsonl") == [
        {"time": 12.346, "kind": "refit", "version": 3, "participants": [0, 1], "who": "x"}
    ]
    assert events.recent[-1]["kind"] == "refit"


def test_the_event_log_keeps_the_newest_within_its_bound_and_counts_the_rest(tmp_path):
    path = tmp_path / "e.jsonl"
    events = EventLog(path, max_bytes=4000, clock=lambda: 1.0)
    for number in range(1000):
        events.write("refit", {"version": number})
        assert path.stat().st_size <= 4100
    found = rows(path)

    assert found[0]["kind"] == "earlier_events_dropped"
    assert found[-1]["version"] == 999
    assert [row["version"] for row in found[1:]] == list(range(found[1]["version"], 1000))
    assert found[0]["count"] + len(found) - 1 == 1000


def test_a_dump_of_samples_stops_at_its_bound(tmp_path):
    log = SampleLog(tmp_path / "s.jsonl")
    sample = {"prompt": "r12=", "completion": "21", "reward": 1.0}

    assert log.dump(1, [sample] * 3, max_bytes=10_000) == 0
    assert log.dump(2, [sample] * 5, max_bytes=140) == 3
    assert [row.get("reward") for row in rows(tmp_path / "s.jsonl")] == [1.0] * 5 + [None]
    assert rows(tmp_path / "s.jsonl")[-1] == {"step": 2, "left_out": 3}


class Broken:
    name = "broken"
    closed = 0

    def log(self, record):
        raise OSError("disk full")

    def close(self):
        self.closed += 1
        raise OSError("disk full")


def test_a_failing_sink_is_reported_once_and_never_reaches_the_caller(tmp_path, caplog):
    broken = Broken()
    sinks = FanOut([broken, JsonlSink(tmp_path / "m.jsonl")])
    for index in range(3):
        sinks.log(step(index))
    sinks.close()

    assert len(rows(tmp_path / "m.jsonl")) == 3
    assert sinks.errors == {"broken": 4}
    assert broken.closed == 1
    assert caplog.text.count("disk full") == 1


def test_an_unknown_name_is_logged_once(tmp_path, caplog):
    sinks = FanOut([JsonlSink(tmp_path / "m.jsonl")])
    for index in range(2):
        sinks.log(MetricRecord("step", index, 0.0, {"train/nonsense": 1.0}))

    assert caplog.text.count("train/nonsense") == 1


@pytest.mark.parametrize("fails", ["open", "log"])
def test_a_failing_background_sink_counts_its_errors(fails, caplog):
    def open_sink():
        if fails == "open":
            raise ConnectionError("no route")
        return Broken()

    sink = BackgroundSink("far", open_sink)
    fan_out = FanOut([sink])
    for index in range(3):
        fan_out.log(step(index))
    fan_out.close()

    assert fan_out.errors == {"far": 4}
    assert caplog.text.count("metrics do not reach far") == 1


def test_the_manifest_chooses_the_sinks(tmp_path):
    spec = LoggingSpec.model_validate({"tensorboard": {"enabled": True}})
    sinks = open_sinks(spec, run_folder=tmp_path, job_name="digits", job_facts={}, metrics_port=0)
    sinks.log(step(1))
    sinks.close()

    assert len(rows(tmp_path / "metrics.jsonl")) == 1
    assert list((tmp_path / "tensorboard").glob("events*"))
    assert not (tmp_path / "wandb").exists()
    assert sinks.errors == {}


@pytest.fixture
def lines():
    return []


@pytest.fixture
def run_log(tmp_path, lines):
    logging_ = RunLogging(tmp_path / "run.log", terminal=lines.append)
    yield tmp_path / "run.log"
    logging_.close()


def test_the_log_file_holds_json_and_the_terminal_words(run_log, lines):
    logging.getLogger("asyncrl_runtime.x").warning("shard %d is slow", 3)
    structlog.get_logger("asyncrl_runtime.y").warning("refit landed", version=4, seconds=0.5)
    structlog.get_logger("asyncrl_runtime.y").info("quiet")

    first, second, third = rows(run_log)
    assert (first["level"], first["event"], first["logger"]) == (
        "warning",
        "shard 3 is slow",
        "asyncrl_runtime.x",
    )
    assert (second["event"], second["version"], second["seconds"]) == ("refit landed", 4, 0.5)
    assert third["event"] == "quiet"
    assert first["timestamp"].endswith("Z")
    assert len(lines) == 2
    assert lines[0].endswith("warning  shard 3 is slow")
    assert lines[1].endswith("warning  refit landed  version=4  seconds=0.5")
    assert "\x1b" not in "".join(lines)


def test_a_traceback_is_in_the_file_and_not_on_the_terminal(run_log, lines):
    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("a").exception("it failed")

    assert "ValueError: boom" in rows(run_log)[0]["exception"]
    assert len(lines) == 1
    assert "Traceback" not in lines[0]


def test_closing_takes_the_handlers_off(tmp_path):
    before = list(logging.getLogger().handlers)
    logging_ = RunLogging(tmp_path / "run.log", terminal=lambda line: None)
    logging_.close()
    logging_.close()

    assert logging.getLogger().handlers == before


def test_a_missing_package_is_named_and_the_run_goes_on(tmp_path, caplog):
    spec = LoggingSpec.model_validate({"swanlab": {"enabled": True}})
    sinks = open_sinks(spec, run_folder=tmp_path, job_name="digits", job_facts={}, metrics_port=0)
    sinks.log(step(1))
    sinks.close()

    assert "swanlab: its package is not installed" in caplog.text
    assert len(rows(tmp_path / "metrics.jsonl")) == 1
