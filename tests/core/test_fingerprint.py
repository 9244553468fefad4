"""Which settings count for the rollouts of a run, and how a difference is told."""

import json

import pytest

from asyncrl_runtime.core.fingerprint import Identity, differences, identity_of

SPEC = {
    "generation": {"sampling": {"temperature": 1.0}},
    "logging": {"logDir": "a"},
    "env": {"private_agent": {"workers": {"0": {"log_dir": "x"}, "a": {"log_dir": "y"}, "log_dir": "z"}}},
    "custom": {"algo": {"steps": [1, 2]}},
}


def changed(path, value):
    spec = json.loads(json.dumps(SPEC))
    target = spec
    *above, last = path.split(".")
    for key in above:
        target = target.setdefault(key, {})
    target[last] = value
    return spec


def test_ex_9_3_operational_settings_do_not_count():
    assert identity_of(changed("logging.logDir", "b")) == identity_of(SPEC)
    assert differences(identity_of(SPEC), identity_of(changed("logging.logDir", "b"))) == []


def test_ex_9_3_a_sampling_setting_counts_and_is_named_with_both_values():
    now = identity_of(changed("generation.sampling.temperature", 0.5))
    assert now.fingerprint != identity_of(SPEC).fingerprint
    assert differences(identity_of(SPEC), now) == ["generation.sampling.temperature: 1 → 0.5"]


def test_ex_9_3_sc_14_167_a_new_key_counts_until_both_runs_exclude_it():
    now = changed("custom.algo.foo", 1)
    assert differences(identity_of(SPEC), identity_of(now)) == ["custom.algo.foo: absent → 1"]
    excluded = ["custom.algo.foo"]
    assert identity_of(SPEC, excluded).fingerprint == identity_of(now, excluded).fingerprint
    assert "extraFingerprintExcludedPaths" in differences(identity_of(SPEC), identity_of(now, excluded))[0]


@pytest.mark.parametrize(
    ("excluded", "left"),
    [
        ("env.private_agent.workers.*.log_dir", ["env.private_agent.workers.log_dir"]),
        ("**.log_dir", []),
        ("env.private_agent", []),
        (
            "env.*.log_dir",
            [
                "env.private_agent.workers.0.log_dir",
                "env.private_agent.workers.a.log_dir",
                "env.private_agent.workers.log_dir",
            ],
        ),
    ],
)
def test_ex_9_2_a_pattern_matches_levels(excluded, left):
    values = identity_of(SPEC, [excluded]).values
    assert [path for path in values if path.startswith("env.")] == left


def test_sc_9_101_equal_values_are_equal_whatever_their_form():
    assert identity_of({"a": 1, "b": {"c": 2.0}}) == identity_of({"b": {"c": 2}, "a": 1.0})
    assert identity_of({"a": 1}) != identity_of({"a": "1"})
    assert identity_of({"a": [1, 2]}) != identity_of({"a": [2, 1]})
    assert identity_of({"a": {}}) != identity_of({})


def test_an_identity_survives_json_and_another_format_is_not_read():
    identity = identity_of(SPEC, ["custom"])
    stored = json.loads(json.dumps(identity.to_json()))
    assert Identity.from_json(stored).fingerprint == identity.fingerprint
    assert Identity.from_json({**stored, "format": 99}) is None
