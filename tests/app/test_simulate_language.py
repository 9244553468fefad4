"""The durations and faults that a person types (CLI-3)."""

import math

import numpy as np
import pytest

from asyncrl_runtime.app.simulate.durations import Series, read_duration
from asyncrl_runtime.app.simulate.faults import WORDS, check_shards, read_faults
from asyncrl_runtime.app.simulate.words import OptionInvalid

OPTION = "--generation-seconds"


def drawn(text, size=200_000):
    return read_duration(OPTION, text).draw(np.random.default_rng(1), (size,))


def problem(text):
    with pytest.raises(OptionInvalid) as caught:
        read_duration(OPTION, text)
    return str(caught.value)


@pytest.mark.parametrize("text", ["10", "10.0", "1e1", "constant:10", "constant:seconds=10", " 10 "])
def test_a_constant_has_several_spellings(text):
    assert set(drawn(text, 5)) == {10.0}


def test_a_lognormal_has_the_median_and_tail_that_were_asked_for():
    values = drawn("lognormal:median=8,p99=60")

    assert np.median(values) == pytest.approx(8, rel=0.02)
    assert np.quantile(values, 0.99) == pytest.approx(60, rel=0.05)


def test_a_lognormal_by_mean_or_median_and_sigma():
    by_mean, by_median = drawn("lognormal:mean=10,sigma=0.5"), drawn("lognormal:median=10,sigma=0.5")

    assert by_mean.mean() == pytest.approx(10, rel=0.02)
    assert np.median(by_median) == pytest.approx(10, rel=0.02)
    assert np.log(by_median).std() == pytest.approx(0.5, rel=0.02)


def test_the_other_shapes():
    assert drawn("exponential:mean=4").mean() == pytest.approx(4, rel=0.02)
    assert drawn("uniform:min=2,max=6").mean() == pytest.approx(4, rel=0.02)
    pareto = drawn("pareto:min=2,alpha=3")
    assert pareto.min() >= 2
    assert pareto.mean() == pytest.approx(3, rel=0.02)
    bimodal = drawn("bimodal:short=1,long=9,share=0.25")
    assert set(bimodal) == {1.0, 9.0}
    assert (bimodal == 9).mean() == pytest.approx(0.25, abs=0.01)


def test_a_trace_is_drawn_from_its_file(tmp_path):
    path = tmp_path / "seconds.txt"
    path.write_text("# measured\n3\n\n5.5\n")

    assert set(drawn(f"trace:{path}", 1000)) == {3.0, 5.5}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("gaussian:mean=1", ["'gaussian' is no word", "lognormal", "bimodal", "trace"]),
        ("lognormal:p99=60", ["needs median", "lognormal:median=8,p99=60"]),
        ("lognormal:median=8", ["needs p99"]),
        ("lognormal:median=8,p99=6", ["p99 is 6 and must be at least 8"]),
        ("lognormal:median=0,p99=6", ["median is 0 and must be above 0"]),
        ("lognormal:median=8,p99=60,p95=3", ["has no p95"]),
        ("lognormal:median=8,median=9,p99=60", ["median is given twice"]),
        ("lognormal:8,60", ["'8' is not of the form key=value"]),
        ("exponential:mean=soon", ["'soon', which is no number"]),
        ("uniform:min=5,max=1", ["max is 1 and must be at least 5"]),
        ("bimodal:short=1,long=2,share=2", ["share is 2 and must be from 0 to 1"]),
        ("pareto:min=1,alpha=1", ["alpha is 1 and must be above 1"]),
        ("constant:", ["'seconds=' is not of the form key=value"]),
        ("-3", ["seconds is -3 and must be at least 0"]),
        ("1e308", ["seconds is 1e308 and must be at most 1e+12"]),
        ("lognormal:median=1e13,sigma=1", ["median is 1e13 and must be at most 1e+12"]),
        ("nan", ["no word"]),
        ("trace:", ["names no file"]),
        ("trace:/does/not/exist", ["cannot be read"]),
    ],
)
def test_what_is_wrong_is_said_with_the_way_out(text, parts):
    message = problem(text)

    assert message.startswith(f"{OPTION} {text}: ")
    for part in parts:
        assert part in message


def test_a_bad_line_of_a_trace_is_named(tmp_path):
    path = tmp_path / "seconds.txt"
    path.write_text("3\nfast\n")
    assert f"{path}:2 is 'fast'" in problem(f"trace:{path}")

    path.write_text("\n")
    assert "holds no number" in problem(f"trace:{path}")


def test_a_series_gives_the_same_value_for_the_same_index_in_any_order():
    series = Series(read_duration(OPTION, "exponential:mean=1"), (3, 7))
    forward = [series(index) for index in range(3000)]

    assert [series(index) for index in reversed(range(3000))] == forward[::-1]
    assert Series(series.distribution, (3, 8))(0) != forward[0]


@pytest.mark.parametrize("word", WORDS)
def test_each_form_of_a_fault_in_the_table_can_be_written(word):
    usage = WORDS[word][1]
    for form in usage.split(", with ")[0].split(" or "):
        assert not read_faults([form.strip()]).is_calm


def test_faults_add_up():
    scenario = read_faults(
        [
            "hang:probability=0.5",
            "hang:probability=0.5",
            "rollout-error:probability=0.1,kind=data",
            "shard-freeze:every=100,for=5",
            "shard-slow:shard=1,factor=2,at=3",
        ]
    )

    assert scenario.hang_probability == 0.75
    assert (scenario.infra_probability, scenario.data_probability) == (0.0, pytest.approx(0.1))
    freeze, slow = scenario.shards
    assert (freeze.action, freeze.shard, freeze.every_seconds, freeze.for_seconds) == ("freeze", None, 100, 5)
    assert (slow.shard, slow.at_seconds, slow.for_seconds, slow.factor) == (1, 3, math.inf, 2)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("meteor:at=3", f"the words are {', '.join(WORDS)}"),
        ("hang", "hang needs probability"),
        ("hang:probability=2", "must be from 0 to 1"),
        ("rollout-error:probability=0.1,kind=odd", "it is one of infra, data"),
        ("shard-death:at=3", "needs shard"),
        ("shard-death:shard=0.5,at=3", "shards are counted 0, 1, 2"),
        ("shard-freeze:shard=0,at=3", "needs for"),
        ("shard-slow:shard=0,factor=0", "must be above 0"),
        ("shard-death:every=3,at=5", "has no at"),
    ],
)
def test_what_is_wrong_with_a_fault(text, part):
    with pytest.raises(OptionInvalid) as caught:
        read_faults([text])

    assert str(caught.value).startswith(f"--fail {text}: ")
    assert part in str(caught.value)


def test_a_shard_that_is_not_there_is_refused():
    with pytest.raises(OptionInvalid, match=r"the job has 2 shard\(s\), 0 to 1"):
        check_shards(read_faults(["shard-death:shard=2,at=1"]), 2)
    check_shards(read_faults(["shard-death:shard=1,at=1", "shard-death:every=9"]), 2)
