"""What every metric sink keeps; a test module subclasses it and gives `make_sink` and `read`."""

import pytest

from asyncrl_runtime.ports.metrics import MetricRecord, MetricSink

TIME = 1_700_000_000.25
STEP_VALUES = {
    "train/loss": 0.125,
    "train/reward": -0.5,
    "train/groups_trained": 16.0,
    "train/reward_component/exact": 0.75,
    "train/staleness/lag_hist/2": 96.0,
    "timing/train/policy_training": 0.5,
}
TICK_VALUES = {"buffer/ready": 3.0, "rollout/committed_total": 48.0, "gen_fleet/shards/HEALTHY": 2.0}


def step(index, **changes):
    return MetricRecord("step", index, TIME + index, {**STEP_VALUES, **changes})


class SinkContract:
    """`read(path, name)` gives the last value of a metric that reached the destination, after close."""

    def make_sink(self, path) -> MetricSink:
        raise NotImplementedError

    def read(self, path, name) -> float:
        raise NotImplementedError

    @pytest.fixture
    def sink(self, tmp_path):
        sink = self.make_sink(tmp_path)
        yield sink
        sink.close()

    def test_every_number_of_a_step_arrives_as_it_is(self, sink, tmp_path):
        sink.log(step(1))
        self.settle(sink)

        assert {name: self.read(tmp_path, name) for name in STEP_VALUES} == STEP_VALUES

    def test_a_later_step_replaces_a_gauge(self, sink, tmp_path):
        sink.log(step(1))
        sink.log(step(2, **{"train/loss": 0.0625}))
        self.settle(sink)

        assert self.read(tmp_path, "train/loss") == 0.0625

    def test_ticks_arrive_too(self, sink, tmp_path):
        sink.log(MetricRecord("tick", 7, TIME, TICK_VALUES))
        sink.log(step(1))
        self.settle(sink)

        assert {name: self.read(tmp_path, name) for name in TICK_VALUES} == TICK_VALUES

    def test_closing_twice_is_harmless(self, sink):
        sink.log(step(1))
        sink.close()
        sink.close()

    def settle(self, sink):
        """Bring everything to where `read` looks."""
        sink.close()
