import io

import pytest
from rich.console import Console

from asyncrl_runtime.app import words
from asyncrl_runtime.app.live import RunView, line, render, setup_line

VIEW = RunView(
    name="reverse-digits",
    phase="Running",
    step=120,
    max_steps=300,
    eta_seconds=14.2,
    reward=0.9125,
    best_reward=0.934,
    reward_history=[k / 120 for k in range(120)],
    validation={"accuracy": 0.97},
    staleness_p50=0,
    staleness_p95=1,
    staleness_max=1,
    staleness_bound=1,
    buffer_ready=3,
    buffer_inflight=16,
    buffer_capacity=64,
    shards={"HEALTHY": 1, "DEAD": 1},
    generated_tokens_per_second=52_140.0,
    trained_tokens_per_second=9_800.0,
    trainer_idle_fraction=0.62,
    events=[
        {"time": 1.0, "kind": "refit", "version": 118},
        {"time": 2.0, "kind": "refit", "version": 119},
        {"time": 3.0, "kind": "checkpoint_saved", "step": 120, "seconds": 0.0123456},
        {"time": 4.0, "kind": "prompt_retried", "reason": "it\nraised"},
    ],
)


def shown(view, width=110):
    console = Console(file=io.StringIO(), width=width, force_terminal=False, color_system=None)
    console.print(render(view))
    return console.file.getvalue()


def test_the_picture_shows_every_part_with_units():
    text = shown(VIEW)

    for part in [
        "reverse-digits  Running",
        "120 of 300, 14 s left",
        "0.912  best 0.934",
        "▁▁▁▁▂",
        "validation accuracy 0.970",
        "p50 0, p95 1, max 1 of 1 versions  at bound",
        "3 ready, 16 in flight, capacity 64 groups",
        "1 HEALTHY, 1 DEAD  some out of service",
        "generation 52.1 k tokens/s, training 9.8 k tokens/s",
        "idle 62 %  waits for generation",
        "refit  version 119",
        "checkpoint saved  step 120, seconds 0.01235",
        "prompt retried  reason it raised",
    ]:
        assert part in text
    assert "version 118" not in text


def test_the_bars_add_up():
    step, buffer = (row for row in shown(VIEW).splitlines() if "░" in row)

    assert (step.count("█"), step.count("░")) == (13, 19)
    assert (buffer.count("█"), buffer.count("▒"), buffer.count("░")) == (2, 8, 22)


@pytest.mark.parametrize(("ready", "word"), [(30, ""), (44, "nearly full"), (48, "full")])
def test_a_buffer_near_its_capacity_is_marked_by_a_word(ready, word):
    from dataclasses import replace

    row = next(r for r in shown(replace(VIEW, buffer_ready=ready)).splitlines() if r.startswith("buffer"))
    assert row.rstrip().endswith(word or "groups")


def test_nothing_known_yet_still_renders():
    view = RunView(name="a", phase="Initializing", progress="loading weights of 2 shards")
    text = shown(view)

    assert "Initializing  loading weights of 2 shards" in text
    assert "nothing trained yet" in text
    assert setup_line(view) == "Initializing: loading weights of 2 shards"


def test_the_line_form_has_no_control_codes_and_one_line():
    text = line(VIEW)

    assert text.isprintable()
    assert "step 120 of 300  |  reward 0.912 (best 0.934)  |  validation accuracy 0.970" in text
    assert "max 1 of 1 versions (at bound)" in text
    assert "3 ready, 16 in flight of 64 groups" in text


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_picture_fits_its_width(width):
    assert all(len(row) <= width for row in shown(VIEW, width).splitlines())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"),
        (0.25, "0.2 s"),
        (9, "9 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (100_000, "1 d 3 h"),
    ],
)
def test_durations_read_well(seconds, text):
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(None, "?"), (0, "0"), (0.5, "0.5"), (950, "950"), (12_345, "12.3 k"), (4.56e6, "4.56 M")],
)
def test_counts_read_well(number, text):
    assert words.count(number) == text


def test_a_sparkline_goes_from_lowest_to_highest():
    assert words.sparkline([1, 2, 3], 10) == "▁▅█"
    assert words.sparkline([5, 5], 10) == "▁▁"
    assert len(words.sparkline(list(range(1000)), 32)) == 32
    assert words.sparkline([], 10) == ""


@pytest.mark.parametrize(
    ("value", "bound", "word"),
    [(0, 4, ""), (3.7, 4, "near bound"), (4, 4, "at bound"), (5, 4, "over bound"), (1, None, "")],
)
def test_a_value_near_its_bound_has_a_word(value, bound, word):
    assert words.near_bound(value, bound) == word
