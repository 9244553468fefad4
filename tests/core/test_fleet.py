"""The fleet's state machine: every cell of its table, its examples, and what no sequence of events may do."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl_runtime.core.errors import FleetExhausted
from asyncrl_runtime.core.fleet import (
    ABSENT,
    DEAD,
    HEALTHY,
    RESTARTING,
    RETIRED,
    SERVING,
    STALE,
    SUSPECT,
    FleetLedger,
    FleetSettings,
    ImpossibleTransition,
    ShardHealth,
)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Told(FleetLedger):
    """A ledger that remembers its transitions."""


def ledger(shards=1, *, version=6, **settings):
    """A fleet that serves `version`."""
    fleet = Told(num_shards=shards, settings=FleetSettings(**settings), clock=Clock())
    fleet.seen = []
    fleet.landed(version, range(shards))
    fleet.on_transition = fleet.seen.append
    return fleet


EVENTS = {
    "probe ok": lambda f, i: f.probe_ok(i),
    "probe fail": lambda f, i: f.probe_failed(i, "no answer"),
    "req fail": lambda f, i: f.request_failed(i, "time-out"),
    "req ok": lambda f, i: f.request_ok(i),
    "death": lambda f, i: f.died(i, "killed"),
    "condemn": lambda f, i: f.condemn(i, "silent"),
    "restarting": lambda f, i: f.restarting(i),
    "loaded": lambda f, i: f.loaded(i),
    "load fail": lambda f, i: f.load_failed(i, "no memory"),
    "partial": lambda f, i: f.partial(i, "aborted"),
    "refit+": lambda f, i: f.landed(f.landed_version + 1, [i]),
    "refit-": lambda f, i: f.landed(f.landed_version + 1, []),
    "retire": lambda f, i: f.retire(i, "asked for"),
}


def play(fleet, *events, shard=0):
    for event in events:
        EVENTS[event](fleet, shard)
    return fleet


def facts(fleet, shard=0):
    record = fleet.shards[shard]
    return record.state, record.probe_failures, record.probe_successes, record.reported_failures


# How each state is reached from a fleet at version 6, with streaks that a wrong rule would show.
PATHS = {
    HEALTHY: [],
    SUSPECT: ["req fail", "probe fail"],
    DEAD: ["req fail", "probe fail", "death"],
    RESTARTING: ["req fail", "probe fail", "death", "restarting"],
    STALE: ["req fail", "probe fail", "death", "restarting", "loaded"],
    RETIRED: ["retire"],
}

ERROR = "error"
SAME = None
# (pf, ps, rf, version) after the event; SAME where nothing changes. SUSPECT and what follows have pf 1, rf 1.
TABLE = {
    HEALTHY: {
        "probe ok": (HEALTHY, (0, 1, 0, 6)),
        "probe fail": (SUSPECT, (1, 0, 0, 6)),
        "req fail": (SUSPECT, (0, 0, 1, 6)),
        "req ok": (HEALTHY, (0, 0, 0, 6)),
        "death": (DEAD, SAME),
        "condemn": (DEAD, SAME),
        "restarting": (ERROR, SAME),
        "loaded": (ERROR, SAME),
        "load fail": (ERROR, SAME),
        "partial": (STALE, SAME),
        "refit+": (HEALTHY, (0, 0, 0, 7)),
        "refit-": (STALE, SAME),
        "retire": (RETIRED, SAME),
    },
    SUSPECT: {
        "probe ok": (SUSPECT, (0, 1, 1, 6)),
        "probe fail": (SUSPECT, (2, 0, 1, 6)),
        "req fail": (SUSPECT, (1, 0, 2, 6)),
        "req ok": (SUSPECT, (1, 0, 0, 6)),
        "death": (DEAD, SAME),
        "condemn": (DEAD, SAME),
        "restarting": (ERROR, SAME),
        "loaded": (ERROR, SAME),
        "load fail": (ERROR, SAME),
        "partial": (STALE, SAME),
        "refit+": (SUSPECT, (1, 0, 1, 7)),
        "refit-": (STALE, SAME),
        "retire": (RETIRED, SAME),
    },
    DEAD: {
        "probe ok": (DEAD, SAME),
        "probe fail": (DEAD, SAME),
        "req fail": (DEAD, SAME),
        "req ok": (DEAD, (1, 0, 0, 6)),
        "death": (DEAD, SAME),
        "condemn": (DEAD, SAME),
        "restarting": (RESTARTING, SAME),
        "loaded": (ERROR, SAME),
        "load fail": (DEAD, SAME),
        "partial": (DEAD, SAME),
        "refit+": (DEAD, SAME),
        "refit-": (DEAD, SAME),
        "retire": (RETIRED, SAME),
    },
    RESTARTING: {
        "probe ok": (RESTARTING, SAME),
        "probe fail": (RESTARTING, SAME),
        "req fail": (RESTARTING, SAME),
        "req ok": (RESTARTING, SAME),
        "death": (DEAD, SAME),
        "condemn": (RESTARTING, SAME),
        "restarting": (ERROR, SAME),
        "loaded": (STALE, (1, 0, 1, -1)),
        "load fail": (DEAD, SAME),
        "partial": (RESTARTING, SAME),
        "refit+": (RESTARTING, SAME),
        "refit-": (RESTARTING, SAME),
        "retire": (RETIRED, SAME),
    },
    STALE: {
        "probe ok": (STALE, SAME),
        "probe fail": (STALE, SAME),
        "req fail": (STALE, SAME),
        "req ok": (STALE, SAME),
        "death": (DEAD, SAME),
        "condemn": (DEAD, SAME),
        "restarting": (ERROR, SAME),
        "loaded": (ERROR, SAME),
        "load fail": (ERROR, SAME),
        "partial": (STALE, SAME),
        "refit+": (HEALTHY, (0, 0, 0, 7)),
        "refit-": (STALE, SAME),
        "retire": (RETIRED, SAME),
    },
    RETIRED: dict.fromkeys(EVENTS, (RETIRED, SAME)),
}


def numbers(fleet):
    record = fleet.shards[0]
    return record.probe_failures, record.probe_successes, record.reported_failures, record.weight_version


def test_the_table_has_every_cell():
    assert TABLE.keys() == set(ShardHealth)
    assert all(row.keys() == EVENTS.keys() for row in TABLE.values())


@pytest.mark.parametrize(("state", "event"), [(s, e) for s in TABLE for e in EVENTS])
def test_sc_7_10_to_7_37_each_cell(state, event):
    fleet = play(ledger(), *PATHS[state])
    before, epoch, told = numbers(fleet), fleet.epoch, len(fleet.seen)
    expected, after = TABLE[state][event]
    if expected == ERROR:
        with pytest.raises(ImpossibleTransition, match=f"shard 0 is {state}: the event {event.split()[0]}"):
            play(fleet, event)
        expected = state
    else:
        play(fleet, event)
    assert fleet.state(0) is expected
    assert numbers(fleet) == (before if after is SAME else after)
    assert fleet.epoch - epoch == ((state in SERVING) != (expected in SERVING))
    assert [(t.old, t.new) for t in fleet.seen[told:]] == ([(state, expected)] if expected != state else [])
    assert all(t.reason for t in fleet.seen)


@pytest.mark.parametrize("state", [HEALTHY, SUSPECT])
@pytest.mark.parametrize(("event", "times"), [("probe fail", 3), ("req fail", 3)])
def test_a_streak_that_reaches_the_threshold_is_fatal(state, event, times):
    fleet = play(ledger(), *PATHS[state])
    done = {"probe fail": fleet.shards[0].probe_failures, "req fail": fleet.shards[0].reported_failures}
    play(fleet, *[event] * (times - 1 - done[event]))
    assert fleet.state(0) is SUSPECT
    play(fleet, event)
    assert (fleet.state(0), fleet.epoch) == (DEAD, 1)
    assert "3" in fleet.seen[-1].reason


def test_sc_7_14_good_probes_in_a_row_make_a_suspect_healthy():
    assert facts(play(ledger(healthy_threshold=3), "probe fail", "probe ok", "probe ok")) == (
        SUSPECT,
        0,
        2,
        0,
    )
    assert play(ledger(healthy_threshold=3), "probe fail", *["probe ok"] * 3).state(0) is HEALTHY
    assert play(ledger(healthy_threshold=1), "probe fail", "probe ok").state(0) is HEALTHY


def test_sc_7_4_times_and_errors_are_kept():
    fleet = ledger()
    fleet.clock.now = 5.0
    play(fleet, "probe ok", "probe fail")
    assert (fleet.shards[0].last_ok, fleet.shards[0].last_error, fleet.last_error) == (
        5.0,
        "no answer",
        "no answer",
    )
    play(fleet, "death", "restarting", "loaded")
    fleet.clock.now = 9.0
    play(fleet, "refit+")
    assert fleet.shards[0].last_ok == 9.0


def test_sc_7_18_a_death_needs_no_threshold():
    assert play(ledger(unhealthy_threshold=100), "death").state(0) is DEAD


def test_sc_7_38_with_a_threshold_of_one_suspect_is_skipped():
    fleet = play(ledger(unhealthy_threshold=1), "req fail")
    assert [(t.old, t.new) for t in fleet.seen] == [(HEALTHY, DEAD)]


def test_a_new_engine_may_have_a_new_address():
    fleet = FleetLedger(num_shards=1, clock=Clock(), urls=["http://a"])
    play(fleet, "death", "restarting")
    fleet.loaded(0, "http://b")
    assert fleet.shards[0].url == "http://b"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("unhealthy_threshold", 0),
        ("healthy_threshold", 0),
        ("min_healthy_shards", 0),
        ("max_restart_attempts", 0),
    ],
)
def test_sc_7_6_thresholds_are_at_least_one(name, value):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
        FleetSettings(**{name: value})


def test_sc_7_6_a_fleet_has_a_shard_and_an_address_for_each():
    with pytest.raises(ValueError, match="at least one shard"):
        FleetLedger(num_shards=0, clock=Clock())
    with pytest.raises(ValueError, match="2 shards and 1 addresses"):
        FleetLedger(num_shards=2, clock=Clock(), urls=["http://a"])


# ── examples ────────────────────────────────────────────────────────────────────────────────────────


def test_ex_7_1_probes():
    fleet, seen = ledger(), []
    for event in ("probe fail", "probe ok", "probe ok", "probe fail", "probe fail", "probe fail"):
        play(fleet, event)
        seen.append((*facts(fleet)[:3], fleet.epoch))
    assert seen == [
        (SUSPECT, 1, 0, 0),
        (SUSPECT, 0, 1, 0),
        (HEALTHY, 0, 2, 0),
        (SUSPECT, 1, 0, 0),
        (SUSPECT, 2, 0, 0),
        (DEAD, 3, 0, 1),
    ]


def test_ex_7_2_sc_14_60_a_wedged_shard_is_condemned_in_spite_of_clean_probes():
    fleet, seen = ledger(), []
    for event in ("req fail", "probe ok", "probe ok", "req fail", "probe ok", "req fail"):
        play(fleet, event)
        seen.append((fleet.state(0) in SERVING, fleet.shards[0].reported_failures))
    assert seen == [(True, 1), (True, 1), (True, 1), (True, 2), (True, 2), (False, 3)]
    assert fleet.state(0) is DEAD


def test_ex_7_3_sc_14_61_a_success_clears_the_reported_streak():
    fleet = play(ledger(), "req fail", "req fail", "req ok", "req fail")
    assert facts(fleet) == (SUSPECT, 0, 0, 1)


def test_ex_7_4_restart_attempts_count_over_the_run():
    fleet = ledger(max_restart_attempts=2)
    cycle = ["probe fail", "probe fail", "probe fail", "restarting"]
    play(fleet, *cycle, "loaded", "refit+", *cycle, "loaded", "refit+", *cycle)
    assert (fleet.state(0), fleet.shards[0].restart_attempts) == (RETIRED, 3)


def test_ex_7_5_sc_7_39_the_streaks_are_never_added():
    fleet = play(ledger(), "probe fail", "probe fail", "req fail", "req fail")
    assert facts(fleet) == (SUSPECT, 2, 0, 2)


@pytest.mark.parametrize(
    ("windows", "state", "reported"),
    [
        (["fail ok fail ok fail"], SUSPECT, [1]),
        (["fail fail ok"], HEALTHY, [0]),
        (["ok fail fail"], SUSPECT, [2]),
        (["fail fail fail"], DEAD, [3]),
        (["fail fail", "fail ok fail"], SUSPECT, [2, 1]),
    ],
)
def test_ex_7_6_sc_14_62_only_failures_after_the_last_success_of_a_window_count(windows, state, reported):
    fleet, seen = ledger(), []
    for window in windows:
        # As the router hands a window over: whether one succeeded, and the failures since (SC-7.63).
        outcomes = window.split()
        trailing = outcomes[::-1].index("ok") if "ok" in outcomes else len(outcomes)
        play(fleet, *["req ok"] * ("ok" in outcomes), *["req fail"] * trailing)
        seen.append(fleet.shards[0].reported_failures)
    assert seen == reported
    assert fleet.state(0) is state


def test_ex_7_7_condemned_and_partial():
    fleet = play(ledger(), "condemn")
    assert (fleet.state(0), fleet.epoch, len(fleet.seen)) == (DEAD, 1, 1)
    fleet = play(ledger(), "partial")
    assert (fleet.state(0), fleet.shards[0].weight_version, fleet.epoch) == (STALE, 6, 1)
    play(fleet, *["probe fail"] * 5)
    assert (fleet.state(0), fleet.shards[0].weight_version) == (STALE, 6)
    play(fleet, "condemn")
    assert (fleet.state(0), fleet.epoch) == (DEAD, 1)
    play(fleet, "restarting", "partial")
    assert fleet.state(0) is RESTARTING
    play(fleet, "loaded")
    assert (fleet.state(0), fleet.shards[0].weight_version) == (STALE, -1)
    play(fleet, "death")
    assert fleet.state(0) is DEAD


def test_ex_6_1_sc_14_65_to_14_68_what_landed_is_stamped():
    fleet = ledger(4)
    play(fleet, "probe fail", "probe fail", shard=1)
    play(fleet, "death", "restarting", "loaded", shard=2)
    play(fleet, "death", "restarting", shard=3)
    participants = fleet.present
    assert participants == (0, 1, 2)
    play(fleet, "loaded", shard=3)  # mid-transfer
    fleet.landed(7, participants)
    assert [(shard.state, shard.weight_version) for shard in fleet.shards] == [
        (HEALTHY, 7),
        (SUSPECT, 7),
        (HEALTHY, 7),
        (STALE, -1),
    ]
    assert fleet.shards[1].probe_failures == 2
    assert fleet.stale_serving == ()


def test_sc_7_44_a_serving_shard_that_a_refit_left_out_is_taken_out_and_counted():
    fleet = ledger(2)
    fleet.landed(7, [0])
    assert (fleet.state(1), fleet.missed_refits, fleet.epoch) == (STALE, 1, 1)
    assert "left it out" in fleet.seen[-1].reason


# ── membership and exhaustion ───────────────────────────────────────────────────────────────────────


def test_sc_7_47_the_least_busy_serving_shard_is_picked_ties_by_index():
    fleet = ledger(3)
    assert fleet.pick([2, 1, 1]) == 1
    assert fleet.pick([0, 0, 0]) == 0
    play(fleet, "death", shard=0)
    play(fleet, "probe fail", shard=2)
    assert fleet.pick([0, 3, 2]) == 2
    play(fleet, "death", shard=1)
    play(fleet, "death", shard=2)
    assert fleet.pick([0, 0, 0]) is None


def test_sc_7_74_too_few_serving_shards_exhaust_the_fleet_with_their_states():
    fleet = ledger(3, min_healthy_shards=2)
    play(fleet, "death", shard=0)
    assert fleet.exhausted() is None
    play(fleet, "condemn", shard=2)
    error = fleet.exhausted()
    assert isinstance(error, FleetExhausted)
    assert str(error).startswith("1 of 3 generation shards serve (1 HEALTHY, 2 DEAD), fewer than")
    assert "minHealthyShards 2; the last error was: silent" in str(error)


def test_sc_7_75_shards_that_come_back_defer_exhaustion_for_the_grace_only():
    fleet = ledger(2, min_healthy_shards=2, restart_grace_seconds=10.0)
    fleet.clock.now = 100.0
    play(fleet, "death", shard=1)
    assert fleet.exhausted() is not None  # nobody brings it back
    play(fleet, "restarting", shard=1)
    assert fleet.deferred
    play(fleet, "loaded", shard=1)
    fleet.clock.now = 109.9
    assert (fleet.deferred, fleet.exhausted()) == (True, None)
    fleet.clock.now = 110.0
    assert (fleet.deferred, bool(fleet.exhausted())) == (False, True)
    play(fleet, "refit+", shard=1)
    assert fleet.exhausted() is not None  # refit+ of shard 1 alone left shard 0 out
    fleet.landed(9, [0, 1])
    assert fleet.exhausted() is None


def test_sc_7_75_a_dead_shard_that_is_about_to_be_restarted_is_coming_back():
    fleet = ledger(restart_grace_seconds=10.0)
    fleet.restart_due = lambda shard: shard == 0
    play(fleet, "death")
    assert (fleet.deferred, fleet.exhausted()) == (True, None)
    fleet.restart_due = lambda shard: False
    assert fleet.exhausted() is not None


def test_sc_7_75_the_grace_counts_from_the_first_missing_shard():
    fleet = ledger(3, min_healthy_shards=3, restart_grace_seconds=10.0)
    play(fleet, "death", "restarting", shard=0)
    fleet.clock.now = 8.0
    play(fleet, "death", "restarting", shard=1)
    fleet.clock.now = 10.0
    assert not fleet.deferred


def test_sc_7_75_without_a_grace_nothing_is_deferred():
    fleet = play(ledger(), "death", "restarting", "loaded")
    assert fleet.exhausted() is not None


def test_sc_8_33_restart_attempts_survive_a_checkpoint():
    fleet = ledger(2)
    play(fleet, "death", "restarting", "loaded", "death", "restarting", shard=1)
    saved = json.loads(json.dumps(fleet.counters()))
    after = ledger(3, max_restart_attempts=2)
    after.restore_counters(saved)
    assert [shard.restart_attempts for shard in after.shards] == [0, 2, 0]
    assert [shard.state for shard in after.shards] == [HEALTHY] * 3
    play(after, "death", "restarting", shard=1)
    assert after.state(1) is RETIRED
    after.restore_counters({})


# ── any sequence ────────────────────────────────────────────────────────────────────────────────────

STEP = st.tuples(st.sampled_from(sorted(EVENTS)), st.integers(0, 2))


@settings(max_examples=300, deadline=None)
@given(
    steps=st.lists(STEP, max_size=60),
    unhealthy=st.integers(1, 4),
    healthy=st.integers(1, 3),
    restarts=st.integers(1, 3),
)
def test_no_sequence_of_events_breaks_the_rules(steps, unhealthy, healthy, restarts):
    fleet = ledger(3, unhealthy_threshold=unhealthy, healthy_threshold=healthy, max_restart_attempts=restarts)
    for event, shard in steps:
        before = [record.state for record in fleet.shards]
        serving, epoch, numbers_before = fleet.serving, fleet.epoch, facts(fleet, shard)
        try:
            EVENTS[event](fleet, shard)
        except ImpossibleTransition:
            assert [record.state for record in fleet.shards] == before
        for index, record in enumerate(fleet.shards):
            if before[index] not in SERVING and record.state in SERVING:
                # SC-7.5, 14.64, 14.65: only a landed refit, only from STALE, and at the current version.
                assert (event, before[index], record.weight_version) == (
                    "refit+",
                    STALE,
                    fleet.landed_version,
                )
            if before[index] is RETIRED:
                assert record.state is RETIRED
            if record.state in SERVING:
                assert record.probe_failures < unhealthy
                assert record.reported_failures < unhealthy
                assert record.weight_version == fleet.landed_version
            assert record.restart_attempts <= restarts + 1
        _, pf, ps, rf = numbers_before
        _, pf_now, ps_now, rf_now = facts(fleet, shard)
        if event == "probe ok":
            assert rf_now == rf  # SC-7.40
        if event == "req fail":
            assert (pf_now, ps_now) == (pf, ps)
        if event == "probe fail":
            assert rf_now == rf
        changed = (
            len(serving) - len(set(serving) & set(fleet.serving)) + len(set(fleet.serving) - set(serving))
        )
        assert fleet.epoch - epoch == changed  # one per transition in or out (SC-7.45)
        assert set(fleet.present) == set(range(3)) - fleet.absent
        assert all((fleet.state(i) in ABSENT) == (i in fleet.absent) for i in range(3))
