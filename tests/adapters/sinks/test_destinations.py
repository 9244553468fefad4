"""Each sink gets the same numbers: one contract, and each destination is read back by its own means."""

import json
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from ports.sink_contract import STEP_VALUES, SinkContract, step
from prometheus_client.parser import text_string_to_metric_families

from asyncrl_runtime.adapters.sinks.fanout import BackgroundSink
from asyncrl_runtime.adapters.sinks.jsonl import JsonlSink
from asyncrl_runtime.adapters.sinks.prometheus import MAX_SERIES, PortTaken, PrometheusSink
from asyncrl_runtime.adapters.sinks.tensorboard import TensorboardSink
from asyncrl_runtime.core.metric_names import check_name
from asyncrl_runtime.ports.metrics import MetricRecord

JOB = {"name": "digits", "sampler": "in_order", "algorithm": "grpo", "version": "0.1.0"}


class TestJsonl(SinkContract):
    def make_sink(self, path):
        return JsonlSink(path / "metrics.jsonl")

    def read(self, path, name):
        return json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])[name]


class TestTensorboard(SinkContract):
    def make_sink(self, path):
        return TensorboardSink(path / "tb")

    def read(self, path, name):
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

        folder = path / "tb" if check_name(name).metric.axis == "step" else path / "tb" / "ticks"
        values = []
        for file in folder.glob("events*"):
            for event in EventFileLoader(str(file)).Load():
                values += [v.tensor.float_val[0] for v in event.summary.value if v.tag == name]
        return values[-1]


class TestWandb(SinkContract):
    def make_sink(self, path):
        from asyncrl_runtime.adapters.sinks.wandb import WandbSink

        # A name of its own: the service behind all runs of a process tells them apart by it.
        return WandbSink(project="p", entity=None, run_name=f"digits-{path}", folder=path)

    @pytest.fixture(autouse=True)
    def _no_key(self, monkeypatch):
        for name in ("WANDB_API_KEY", "WANDB_MODE"):
            monkeypatch.delenv(name, raising=False)

    def read(self, path, name):
        """The service writes its file on its own: wait until it stands still, within a bound."""
        deadline, before = time.monotonic() + 20, []
        while time.monotonic() < deadline:
            values = self._values(path, name)
            if values and values == before:
                break
            before = values
            time.sleep(0.2)
        return before[-1]

    def _values(self, path, name):
        from wandb.proto import wandb_internal_pb2

        (file,) = path.glob("wandb/offline-run-*/*.wandb")
        values = []
        for data in wandb_records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            for item in record.history.item:
                if (item.key or "/".join(item.nested_key)) == name:
                    values.append(json.loads(item.value_json))
        return values


def wandb_records(content, block=32768, header=7):
    """Records of a log in LevelDB's format: blocks of fragments, each with checksum, length and type."""
    position, parts = header, []
    while position < len(content):
        left = block - position % block
        if left < header:
            position += left
            continue
        length, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
        parts.append(content[position + header : position + header + length])
        position += header + length
        if kind in (1, 4):
            yield b"".join(parts)
            parts = []


class TestMlflow(SinkContract):
    def make_sink(self, path):
        from asyncrl_runtime.adapters.sinks.mlflow import MlflowSink

        return MlflowSink(tracking_uri=None, experiment="e", run_name="digits", folder=path / "mlruns")

    @pytest.fixture(autouse=True)
    def _no_server(self, monkeypatch):
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def read(self, path, name):
        from mlflow.tracking import MlflowClient

        client = MlflowClient((path / "mlruns").absolute().as_uri())
        experiment = client.get_experiment_by_name("e")
        (run,) = client.search_runs([experiment.experiment_id])
        return run.data.metrics[name]


class TestPrometheus(SinkContract):
    def make_sink(self, path):
        self.sink = PrometheusSink(0, job=JOB, address="127.0.0.1")
        return self.sink

    def settle(self, sink):
        pass

    def read(self, path, name):
        series = check_name(name)
        for sample in samples(self.sink):
            if sample.name == series.metric.prometheus and sample.labels == series.labels:
                return sample.value
        raise KeyError(name)


class TestBackground(TestJsonl):
    def make_sink(self, path):
        return BackgroundSink("slow", lambda: JsonlSink(path / "metrics.jsonl"))


def samples(sink):
    with urllib.request.urlopen(f"http://127.0.0.1:{sink.port}/metrics") as reply:
        text = reply.read().decode()
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


@pytest.fixture
def prometheus():
    sink = PrometheusSink(0, job=JOB, address="127.0.0.1")
    yield sink
    sink.close()


def test_prometheus_adds_up_the_counts_of_steps(prometheus):
    prometheus.log(step(1))
    prometheus.log(step(2, **{"train/groups_trained": 15.0}))

    (found,) = [s.value for s in samples(prometheus) if s.name == "asyncrl_train_groups_trained_total"]
    assert found == 31


def test_prometheus_tells_which_job_it_is(prometheus):
    (info,) = [s for s in samples(prometheus) if s.name == "asyncrl_job_info"]
    assert (info.labels, info.value) == (JOB, 1)


def test_prometheus_bounds_its_series_and_says_so(prometheus):
    values = {f"train/reward_component/c{k}": 1.0 for k in range(MAX_SERIES + 5)}
    prometheus.log(MetricRecord("step", 1, 0.0, values))
    found = samples(prometheus)

    assert len([s for s in found if s.name == "asyncrl_train_reward_component"]) == MAX_SERIES
    assert [s.value for s in found if s.name == "asyncrl_metrics_left_out_series_total"] == [5]


def test_prometheus_gives_each_name_a_help_text(prometheus):
    prometheus.log(step(1))
    with urllib.request.urlopen(f"http://127.0.0.1:{prometheus.port}/metrics") as reply:
        lines = reply.read().decode().splitlines()

    helped = {line.split()[2] for line in lines if line.startswith("# HELP") and len(line.split()) > 3}
    typed = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert typed == helped
    assert "asyncrl_train_reward" in helped


def test_a_port_in_use_names_the_setting():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortTaken, match=rf"port {port}: something else listens.*metricsPort"):
            PrometheusSink(port, job=JOB, address="127.0.0.1")


def test_tensorboard_shows_no_step_that_was_rolled_back(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for resumed, steps in ((None, (1, 2, 3, 4)), (2, (3,))):
        sink = TensorboardSink(tmp_path, resumed_step=resumed)
        for index in steps:
            sink.log(step(index, **{"train/loss": 10.0 * index + (resumed or 0)}))
        sink.close()
        time.sleep(1.1)  # files are read in the order of their seconds
    shown = EventAccumulator(str(tmp_path))
    shown.Reload()

    assert [(each.step, each.value) for each in shown.Scalars("train/loss")] == [(1, 10), (2, 20), (3, 32)]


def test_an_attempt_goes_on_in_the_same_mlflow_run(tmp_path):
    contract = TestMlflow()
    for index in (1, 2):
        sink = contract.make_sink(tmp_path)
        sink.log(step(index, **{"train/loss": float(index)}))
        sink.close()

    assert contract.read(tmp_path, "train/loss") == 2


def test_sinks_of_the_controller_import_neither_torch_nor_tensorflow(tmp_path):
    code = """
import sys, pathlib
from asyncrl_runtime.adapters.sinks.tensorboard import TensorboardSink
from asyncrl_runtime.ports.metrics import MetricRecord
import asyncrl_runtime.adapters.sinks.build, asyncrl_runtime.adapters.sinks.prometheus
sink = TensorboardSink(pathlib.Path(sys.argv[1]))
sink.log(MetricRecord("step", 1, 0.0, {"train/loss": 1.0}))
sink.close()
sys.exit(",".join(m for m in ("torch", "tensorflow", "ray") if m in sys.modules) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_contract_covers_each_kind_of_metric():
    kinds = {check_name(name).metric.kind for name in STEP_VALUES}
    assert kinds == {"gauge", "count"}
