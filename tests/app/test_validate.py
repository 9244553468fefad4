import json

import pytest
import yaml
from support.cli import SAMPLES, asyncrl

from asyncrl_runtime.app.starters import STARTERS

REVERSE, FULL = SAMPLES / "reverse-digits.yaml", SAMPLES / "full.yaml"
NO_VOLUME = "--set=spec.checkpointing.volume=null"


def validated(path, *options):
    """Status, and the facts that were printed as JSON."""
    result = asyncrl("validate", path, "--json", *options)
    return result.exit_code, json.loads(result.stdout)


def test_cli_2_a_job_for_a_cluster_is_valid_and_what_this_machine_refuses_is_noted():
    result = asyncrl("validate", FULL)

    assert (result.exit_code, result.stderr) == (0, "")
    assert "GPU split        16 for generation, 16 for training" in result.stdout
    assert "runs on          a cluster only" in result.stdout
    _, told = result.stdout.split("note: asyncrl run on this machine does not carry out these settings:\n")
    assert [line.split()[1] for line in told.splitlines()] == [
        "spec.checkpointing.isAsync",
        "spec.generation.backend",
        "spec.generation.gpusPerShard",
        "spec.training.backend",
        "spec.training.parallelism",
    ]
    assert f"{FULL}:68:5: spec.generation.backend vllm is not carried out" in told


def test_cli_21_what_is_only_noted_by_validate_is_refused_by_run(tmp_path):
    result = asyncrl("run", FULL, "--output", tmp_path / "run")

    assert result.exit_code == 2
    assert f"{FULL}:68:5: spec.generation.backend vllm" in result.stderr
    assert not (tmp_path / "run").exists()


def test_a_rule_of_clusters_is_an_error_where_only_a_cluster_can_carry_the_job_out():
    result = asyncrl("validate", FULL, NO_VOLUME)

    assert (result.exit_code, result.stdout) == (2, "")
    broken, why = result.stderr.splitlines()
    assert "spec.checkpointing.volume: [V-79] checkpointing is on and has no volume" in broken
    assert why.startswith("note: only a cluster can carry it out, because of spec.checkpointing.isAsync, ")


def test_a_rule_of_clusters_is_a_note_where_this_machine_can_carry_the_job_out():
    status, told = validated(REVERSE, NO_VOLUME)

    assert status == 0
    assert told["runs on"] == "this machine only"
    (note,) = told["not accepted by a cluster"]
    assert "spec.checkpointing.volume: [V-79] " in note
    assert told["not carried out by asyncrl run"] == []


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_cluster_accepts_every_sample(sample):
    status, told = validated(sample)
    assert status == 0
    assert "a cluster" in told["runs on"]


def test_a_wrong_manifest_shows_what_both_refuse_first():
    wrong = ("--set=spec.training.batchSize=4", "--set=spec.loss.ratioClipMin=x")
    result = asyncrl("validate", REVERSE, NO_VOLUME, *wrong)

    assert result.exit_code == 2
    assert [line.split(": ")[0] for line in result.stderr.splitlines()] == [
        "--set spec.training.batchSize=4",
        "--set spec.loss.ratioClipMin=x",
        "note",
    ]


def test_problems_as_json():
    status, told = validated(FULL, NO_VOLUME)

    assert (status, told["valid"]) == (2, False)
    assert "[V-79]" in told["problems"][0]


def test_a_job_that_runs_everywhere():
    status, told = validated(REVERSE, "--set=spec.checkpointing.volume={claimName: runs}")

    assert (status, told["runs on"]) == (0, "this machine and a cluster")


def test_what_concerns_pods_is_a_warning_of_its_own():
    result = asyncrl("validate", SAMPLES / "minimal.yaml")

    assert (
        "warning, on a cluster: spec.checkpointing.enabled: every restart begins at step 0" in result.stdout
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("{enabled: false}", "off"),
        ("{savePeriod: 10}", "every 10 step(s); the newest 3 kept"),
        (
            "{savePeriod: 10, metricName: 'val:accuracy'}",
            "every 10 step(s); the best 3 by val:accuracy and the newest kept",
        ),
        (
            "{savePeriod: 10, ftSavePeriod: 2, ftKeepLatestK: 4}",
            "every 10 step(s), and every 2 for restarts; the newest 3 kept, besides the newest 4",
        ),
    ],
)
def test_which_checkpoints_are_kept(settings, words):
    assert validated(REVERSE, f"--set=spec.checkpointing={settings}")[1]["checkpoints"] == words


def test_without_a_limit_all_checkpoints_are_kept(tmp_path):
    raw = yaml.safe_load(REVERSE.read_text())
    raw["spec"]["checkpointing"] = {"keepTopK": None}
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(raw))

    assert validated(path)[1]["checkpoints"].endswith("; all kept")


@pytest.mark.parametrize("name", [starter.manifest for starter in STARTERS])
def test_every_starter_is_valid(name):
    assert validated(SAMPLES / name)[0] == 0


def test_cli_23_v_adds_the_traceback():
    options = (REVERSE, "--set=spec.seed=1")

    assert "Traceback" not in asyncrl("validate", *options).stderr
    assert "Traceback" in asyncrl("validate", *options, "-v").stderr
