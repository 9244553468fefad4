import re
from collections import defaultdict

import pytest

from asyncrl_runtime.core.metric_names import UnknownMetric, check_name
from asyncrl_runtime.core.metric_table import METRICS


def test_each_name_stands_once_with_a_help_text():
    names = [metric.name for metric in METRICS]

    assert len(names) == len(set(names))
    for metric in METRICS:
        assert metric.help.endswith(".")
        assert "\n" not in metric.help


def test_prometheus_names_follow_the_scheme():
    for metric in METRICS:
        assert re.fullmatch(r"asyncrl_[a-z][a-z0-9_]*", metric.prometheus), metric
        assert metric.prometheus.endswith("_total") == (metric.kind != "gauge"), metric
        if metric.unit:
            assert metric.unit in metric.prometheus, metric


def test_rows_that_share_a_prometheus_name_differ_in_label_values_only():
    rows = defaultdict(list)
    for metric in METRICS:
        rows[metric.prometheus].append(metric)
    for shared in rows.values():
        assert len({(m.kind, m.unit, m.labels) for m in shared}) == 1, shared
        assert len({tuple(m.fixed_labels.values()) for m in shared}) == len(shared)


def test_a_wildcard_gives_the_label_its_value():
    series = check_name("train/reward_component/format", "step")

    assert series.metric.prometheus == "asyncrl_train_reward_component"
    assert series.labels == {"component": "format"}


def test_phases_share_one_prometheus_name():
    one, two = check_name("timing/train/weight_sync"), check_name("timing/train/policy_training")

    assert one.metric.prometheus == two.metric.prometheus == "asyncrl_step_phase_duration_seconds"
    assert (one.labels, two.labels) == ({"phase": "weight_sync"}, {"phase": "policy_training"})


@pytest.mark.parametrize(
    "name", ["train/rewards", "train/reward_component/", "train/reward_component/a/b", "x"]
)
def test_an_unknown_name_is_a_mistake(name):
    with pytest.raises(UnknownMetric, match=re.escape(repr(name))):
        check_name(name)


def test_an_unknown_name_shows_the_nearest():
    with pytest.raises(UnknownMetric, match="nearest is 'train/reward'"):
        check_name("train/rewardd")


def test_a_name_on_another_axis_is_a_mistake():
    check_name("rollout/inflight", "tick")
    with pytest.raises(ValueError, match="belongs to axis tick"):
        check_name("rollout/inflight", "step")
