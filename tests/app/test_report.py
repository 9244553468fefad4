import json
import re
from xml.etree import ElementTree

import pytest

from asyncrl_runtime.app.report import write_report
from asyncrl_runtime.app.report.charts import charts_of, smoothed
from asyncrl_runtime.app.report.load import NothingToReport, load_runs
from asyncrl_runtime.app.report.scales import span_of, stacked, thinned, tick_text, ticks
from asyncrl_runtime.app.report.svg import svg

TIMING = "timing/train/"


def write_run(folder, *, num_steps=40, gain=1.0, failure=None, histogram=True, config="spec: {lr: 1}\n"):
    folder.mkdir(parents=True)
    rows = []
    for step in range(1, num_steps + 1):
        row = {
            "step": step,
            "time": 1000.0 + step,
            "train/reward_raw": min(1.0, gain * step / num_steps),
            "train/response_length/mean": 5.0,
            "train/response_length/min": 2,
            "train/response_length/max": 6,
            "train/token_mult_prob_error": 1.02,
            "train/gen_kl_error": 0.01,
            "train/kl_penalty": None,
            "train/clip_fraction": 0.1,
            "train/grad_norm": 1.0,
            "train/approx_entropy": 2.0,
            "train/total_num_tokens": 3000,
            f"{TIMING}total_step_time": 0.9,
            f"{TIMING}exposed_generation": 0.3,
            f"{TIMING}policy_training": 0.4,
            f"{TIMING}weight_sync": 0.05,
            "buffer/ready": 8,
            "buffer/reserved": 16,
            "buffer/free_permits": 40,
            "rollout/inflight": 16,
            "train/staleness/lag_max": 1,
        }
        if histogram:
            row |= {"train/staleness/lag_hist/0": 64, "train/staleness/lag_hist/1": 192}
        if step % 10 == 0:
            row |= {"val/accuracy": 0.5, f"{TIMING}validation": 0.1, f"{TIMING}checkpointing": 0.05}
        rows.append(row)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    events = [{"time": 1.0, "kind": "refit", "version": 1}]
    if failure:
        events.append({"time": 2.0, "kind": "prompt_retried", "reason": "<b>boom</b>"})
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    summary = {
        "status": "failed" if failure else "complete",
        "steps": num_steps,
        "reward_mean": gain,
        "seconds": 75,
        "seconds_to_first_step": 4.5,
        "trainer_idle_fraction": 0.33,
        "staleness": {"p50": 1, "p95": 1, "max": 1},
        "tokens": {"generated": 123456},
        "prompts": {"admitted": 20, "trained": 19, "dropped": 0, "discarded": 1, "live": 0},
        "failure": {"message": failure} if failure else None,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "config.yaml").write_text(config)
    return folder


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "digits")


def charts(*folders):
    return {chart.slug: chart for chart in charts_of(load_runs(list(folders)))}


def test_one_file_holds_everything_and_fetches_nothing(run):
    (path,) = write_report([run])
    text = path.read_text()

    assert path == run / "report.html"
    assert not re.search(r"(src|href)=|url\(|@import|https?://", text)
    for part in [
        "Reward and validation",
        "Response length",
        "Staleness over time",
        "Buffer occupancy",
        "Generation, training, weight sync and idle time",
        "Log-prob gap",
        "KL divergence",
        "Clipped and masked tokens",
        "Failures and losses",
        "spec: {lr: 1}",
        "1 min 15 s",
        "33 %",
        "20 admitted = 19 trained, 0 dropped, 1 discarded, 0 live",
    ]:
        assert part in text


def test_every_drawing_is_well_formed_and_inside_its_frame(run):
    for chart in charts(run).values():
        root = ElementTree.fromstring(svg(chart))
        width, height = map(float, root.get("viewBox").split()[2:])
        for element in root.iter():
            for path in [element.get("d") or ""]:
                numbers = [float(n) for n in re.findall(r"-?[\d.]+", path)]
                assert all(-1 <= x <= width + 1 for x in numbers[::2]), chart.slug
                assert all(-1 <= y <= height + 1 for y in numbers[1::2]), chart.slug
            if element.tag == "rect":
                assert float(element.get("x")) + float(element.get("width")) <= width + 1, chart.slug


def test_the_heat_map_shows_shares_of_rows_by_lag(run):
    cells = charts(run)["staleness"].cells

    assert {(cell.y, cell.strength) for cell in cells} == {(0, 0.25), (1, 0.75)}
    assert cells[0].note == "step 1: 25% of rows lag 0 versions"


def test_without_a_histogram_the_percentiles_stand_in(tmp_path):
    chart = charts(write_run(tmp_path / "a", histogram=False))["staleness"]
    assert (chart.kind, [line.label for line in chart.lines]) == ("lines", ["max"])


def test_the_gantt_puts_the_phases_of_a_step_one_after_the_other(run):
    spans = [span for span in charts(run)["gantt"].spans if "step 20:" in span.note]
    by_lane = {(span.lane, span.color): (span.begin, span.end) for span in spans}
    began = by_lane["generation", "s4"][0]

    assert by_lane["trainer", "idle"] == pytest.approx((began, began + 0.3))
    assert by_lane["trainer", "s1"] == pytest.approx((began + 0.3, began + 0.7))
    assert by_lane["weight sync", "s3"] == pytest.approx((began + 0.7, began + 0.75))
    assert by_lane["validation", "s5"] == pytest.approx((began + 0.75, began + 0.85))
    assert by_lane["checkpoint", "s7"] == pytest.approx((began + 0.85, began + 0.9))


def test_validation_points_stand_at_their_steps(run):
    (line,) = [line for line in charts(run)["reward"].lines if line.dots]
    assert [x for x, y in zip(line.x, line.y, strict=True) if y is not None] == [10, 20, 30, 40]


def test_several_runs_share_charts_and_show_their_config_difference(tmp_path):
    one = write_run(tmp_path / "one")
    two = write_run(tmp_path / "two", gain=0.5, config="spec: {lr: 2}\n")
    (path,) = write_report([one, two], tmp_path / "out" / "both.html")
    text = path.read_text()

    assert [line.label for line in charts(one, two)["reward"].lines if not line.faint] == [
        "one: reward, smoothed",
        "one: validation",
        "two: reward, smoothed",
        "two: validation",
    ]
    assert {"buffer-one", "buffer-two", "gantt-one", "gantt-two"} <= set(charts(one, two))
    assert "-spec: {lr: 1}" in text
    assert "+spec: {lr: 2}" in text


def test_runs_of_one_name_are_told_apart_by_their_parents(tmp_path):
    runs = load_runs([write_run(tmp_path / "a" / "digits"), write_run(tmp_path / "b" / "digits")])
    assert [run.label for run in runs] == ["a/digits", "b/digits"]


def test_a_failure_is_on_top_and_foreign_text_is_escaped(tmp_path):
    (path,) = write_report([write_run(tmp_path / "bad", failure="lost <all> shards")])
    text = path.read_text()

    assert "bad failed:</b> lost &lt;all&gt; shards" in text
    assert "1 × prompt retried" in text
    assert "&lt;b&gt;boom&lt;/b&gt;" in text
    assert "<b>boom</b>" not in text


def test_pictures_are_written_beside_the_page(run):
    page, *pictures = write_report([run], png=True)

    assert page.suffix == ".html"
    assert {path.stem for path in pictures} == set(charts(run))
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    assert {path.parent for path in pictures} == {run / "report"}


def test_a_single_step_is_enough(tmp_path):
    (path,) = write_report([write_run(tmp_path / "short", num_steps=1)])
    assert "nan" not in re.sub(r"<style>.*</style>", "", path.read_text()).lower()


def test_a_folder_without_steps_is_named(tmp_path):
    with pytest.raises(NothingToReport, match=r"holds no metrics.jsonl with a finished step"):
        write_report([tmp_path])


def test_ticks_are_round_and_inside():
    assert ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert ticks(-3, 47) == [0, 10, 20, 30, 40]
    assert [tick_text(v) for v in (0, 0.25, 1500, 250_000, 1e-5)] == ["0", "0.25", "1.5k", "2.5e+05", "1e-05"]


def test_spans_are_never_empty():
    assert span_of([]) == (0, 1)
    assert span_of([0, 0]) == (0, 1)
    low, high = span_of([2, None, 2])
    assert low < 2 < high
    assert span_of([1, 2], include_zero=True)[0] == 0


def test_thinning_keeps_means_and_gaps():
    assert thinned([1, 2, 3, 4], [1, 3, None, 5], most=2) == [(1.5, 2), (3.5, 5)]
    assert thinned([1, 2], [1, None]) == [(1, 1), (2, None)]


def test_stacks_add_up_and_smoothing_has_no_bias():
    assert stacked([[1, 2], [3, None]]) == [[1, 2], [4, 2]]
    assert smoothed([2, 2, None, 2]) == pytest.approx([2, 2, None, 2])
