"""`asyncrl simulate` as a person and a script use it."""

import json

import pytest
import yaml
from support.cli import SAMPLES, asyncrl, small_job

FAST = ("--steps", "20", "--train-seconds", "10", "--generation-seconds", "lognormal:median=8,p99=60")
SAMPLERS = ["in_order", "weight_fifo", "ready_first", "windowed"]


def results(*args):
    answer = asyncrl("simulate", *args, *FAST, "--json")
    assert answer.exit_code == 0, answer.stderr
    assert answer.stderr == ""
    return json.loads(answer.stdout)


def test_the_manifests_sampler_is_compared_with_the_others_at_its_window(tmp_path):
    job = small_job(tmp_path, asyncRL={"sampler": {"name": "in_order", "maxLookaheadVersions": 2}})
    found = results(job)

    assert [each["sampler"] for each in found] == SAMPLERS
    assert [each["is_manifest"] for each in found] == [True, False, False, False]
    assert {each["knobs"].partition("=")[2] for each in found} == {"2"}
    assert {each["outcome"] for each in found} == {"complete"}
    assert found[2]["figures"]["trainer_idle_percent"] < found[0]["figures"]["trainer_idle_percent"]
    assert found[0]["figures"]["staleness_max_versions"] == 2


def test_json_names_units_and_inputs(tmp_path):
    (first, *_) = results(small_job(tmp_path), "--seed", "5", "--refit-seconds", "uniform:min=1,max=2")

    assert set(first) == {
        "sampler", "knobs", "swept", "is_manifest", "outcome", "failure", "inputs", "figures", "wall_seconds",
        "groups_per_wall_second",
    }  # fmt: skip
    assert first["inputs"]["seed"] == 5
    assert first["inputs"]["refit_seconds"] == "uniform:min=1,max=2"
    assert first["inputs"]["steps"] == 20
    assert first["inputs"]["warm_up_steps"] == 4
    figures = first["figures"]
    for name in (
        "steps_per_hour", "trainer_idle_percent", "shard_idle_percent", "staleness_p50_versions",
        "staleness_p95_versions", "staleness_max_versions", "discarded_percent", "aborted_percent",
        "length_bias_ratio", "optimum_trainer_idle_percent", "simulated_seconds",
    ):  # fmt: skip
        assert isinstance(figures[name], int | float), name


def test_the_same_seed_gives_the_same_figures(tmp_path):
    job = small_job(tmp_path)
    first, second, other = (
        [each["figures"] for each in results(job, "--seed", seed)] for seed in ("1", "1", "2")
    )

    assert first == second != other


def test_a_sweep_of_the_sampler_is_a_grid_without_the_others(tmp_path):
    found = results(
        small_job(tmp_path),
        "--sweep", "asyncRL.sampler.maxLookaheadVersions=0,1,2",
        "--sweep", "spec.asyncRL.maxInflightPrompts=4,16",
    )  # fmt: skip

    assert len(found) == 6
    assert found[1]["swept"] == {
        "spec.asyncRL.sampler.maxLookaheadVersions": "0",
        "spec.asyncRL.maxInflightPrompts": "16",
    }
    pace = [each["figures"]["steps_per_hour"] for each in found]
    assert pace[1] < pace[3] < pace[5]


def test_a_sweep_of_something_else_compares_the_samplers_at_each_value(tmp_path):
    found = results(small_job(tmp_path), "--sweep", "asyncRL.maxInflightPrompts=4,16")

    assert [each["sampler"] for each in found] == SAMPLERS * 2


def test_lists_and_objects_can_be_swept(tmp_path):
    sweep = "asyncRL.sampler={name: windowed, maxStalenessVersions: 2},{name: in_order}"
    found = results(small_job(tmp_path), "--sweep", sweep)

    assert [(each["sampler"], each["knobs"]) for each in found] == [
        ("windowed", "maxStalenessVersions=2"),
        ("in_order", "maxLookaheadVersions=1"),
    ]


def test_a_job_for_a_cluster_of_gpus_is_simulated():
    found = results(SAMPLES / "full.yaml")

    assert found[0]["inputs"]["shards"] == 8
    assert found[0]["knobs"] == "maxStalenessVersions=2 overSamplingRatio=1.25"


def test_what_the_controller_cannot_do_is_refused(tmp_path):
    answer = asyncrl("simulate", small_job(tmp_path, generation={"colocated": True}))

    assert answer.exit_code == 2
    assert "spec.generation.colocated" in answer.stderr


def test_the_table_says_what_was_cut_and_what_to_read_from_it(tmp_path):
    job = small_job(tmp_path, algorithm={"grpo": {"maxNumSteps": 5000, "maxNumEpochs": 1000}})
    answer = asyncrl("simulate", job, "--generation-seconds", "5", "--train-seconds", "5")

    assert answer.exit_code == 0
    lines = answer.stdout.splitlines()
    assert lines[0].startswith("small: 400 steps of 5000 (--steps N for more), the first 20 not counted")
    assert lines[1].split()[:2] == ["setting", "steps/h"]
    assert lines[2].startswith("in_order maxLookaheadVersions=1 *")
    assert any(line.startswith("Best: ") for line in lines)
    assert "\x1b" not in answer.stdout


def test_a_tail_is_said_to_hold_in_order_up(tmp_path):
    answer = asyncrl("simulate", small_job(tmp_path), *FAST, "--steps", "100")

    assert "in_order maxLookaheadVersions=1 waits for the slowest group of each step" in answer.stdout
    assert "long answers first" in answer.stdout
    assert "does not bound the lag" in answer.stdout


def test_pictures_and_figures_are_written(tmp_path):
    answer = asyncrl("simulate", small_job(tmp_path), *FAST, "--output", tmp_path / "out")

    assert answer.exit_code == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "simulate.json", "simulate.svg", "simulate.png",
    }  # fmt: skip
    assert len(json.loads((tmp_path / "out" / "simulate.json").read_text())) == 4
    assert (tmp_path / "out" / "simulate.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("--generation-seconds", "slow"), "the words are constant, lognormal"),
        (("--fail", "meteor:at=3"), "'meteor' is no word of it"),
        (("--fail", "shard-death:shard=9,at=3"), "the job has"),
        (("--sweep", "asyncRL.sampler.name"), "is not of the form PATH=v1,v2"),
        (("--sweep", "asyncRL.maxInflightPrompts=" + ",".join(map(str, range(1, 203)))), "200 are the most"),
        (("--sweep", "asyncRL.sampler.maxLookahedVersions=1"), "maxLookaheadVersions"),
        (("--prompts", "1"), "a step takes 4"),
        (("--set", "spec.algorithm.grpo.maxNumSteps=0"), "maxNumSteps"),
    ],
)
def test_what_is_wrong_on_the_command_line_starts_nothing(options, part, tmp_path):
    answer = asyncrl("simulate", small_job(tmp_path), *options)

    assert answer.exit_code == 2
    assert part in answer.stderr
    assert answer.stdout == ""


def test_a_run_that_fails_among_others_is_a_loss(tmp_path):
    answer = asyncrl("simulate", small_job(tmp_path), *FAST, "--fail", "hang:probability=0.01")

    assert answer.exit_code == 1
    assert "in_order maxLookaheadVersions=1 * (stalled in step" in answer.stdout


def test_the_cause_is_on_the_last_line_where_every_run_fails(tmp_path):
    answer = asyncrl("simulate", small_job(tmp_path), *FAST, "--fail", "rollout-error:probability=1")

    assert answer.exit_code == 3
    assert answer.stderr.splitlines()[-1].startswith("error: in_order maxLookaheadVersions=1: prompt ")


def test_a_custom_sampler_beside_the_manifest_is_compared(tmp_path):
    (tmp_path / "mine_for_simulate.py").write_text(
        "from asyncrl_runtime.core.samplers.ready_first import ReadyFirst\n"
        "class Mine(ReadyFirst):\n"
        "    supports_training_claims = True\n"
    )
    sampler = {"name": "custom", "target": "mine_for_simulate:Mine", "arguments": {"window": 1}}
    job = small_job(tmp_path, asyncRL={"sampler": sampler})
    found = results(job)

    assert [each["sampler"] for each in found] == ["custom", *SAMPLERS]
    assert found[0]["figures"] == found[3]["figures"]


def test_a_sampler_that_cannot_be_imported_fails_its_run_alone(tmp_path):
    job = small_job(tmp_path, asyncRL={"sampler": {"name": "custom", "target": "nowhere_at_all:Mine"}})
    answer = asyncrl("simulate", job, *FAST)

    assert answer.exit_code == 1
    assert "custom target=nowhere_at_all:Mine failed: " in answer.stdout


def test_the_help_and_the_docs_name_every_word():
    from asyncrl_runtime.app.simulate import durations, faults

    text = asyncrl("simulate", "--help").stdout
    page = (SAMPLES.parents[1] / "docs" / "simulate.md").read_text()
    for word in (*durations.WORDS, "trace", *faults.WORDS):
        assert word in text.replace("\n", " "), word
        assert f"`{word}`" in page, word


def test_the_manifest_is_not_changed(tmp_path):
    job = small_job(tmp_path)
    before = yaml.safe_load(job.read_text())
    results(job)

    assert yaml.safe_load(job.read_text()) == before
