"""`asyncrl import` from file to manifest: what is written, what is said, and with which status."""

import json
import random
from pathlib import Path

import pytest
from support.cli import asyncrl
from support.nemo import reference, tree

from asyncrl_api.parse import parse
from asyncrl_runtime.app.nemo.chain import merged
from asyncrl_runtime.app.nemo.manifest import job_name
from asyncrl_runtime.app.nemo.table import INDEX
from asyncrl_runtime.app.yaml_document import read_documents

FILES = Path(__file__).parent / "nemo_files"
FILLED = {
    "spec.data.source": {"jsonl": {"path": "/data/train.jsonl"}},
    "spec.checkpointing.volume": {"claimName": "checkpoints"},
}


@pytest.fixture(autouse=True)
def _no_project(monkeypatch):
    monkeypatch.delenv("ASYNCRL_TEST_PROJECT", raising=False)


def write(folder, settings=None, algorithm="grpo", name="job.yaml"):
    path = folder / name
    path.write_text(json.dumps(reference(settings or {}, algorithm)))
    return path


def manifest(text):
    """A manifest as it was written, with its comments taken up."""
    (document,) = read_documents(text)
    return document.value


def filled(text):
    """The job of a manifest in which a person has filled the gaps."""
    return parse(merged(manifest(text), tree(FILLED)), cluster=True)


def test_cli_7_a_grpo_file_becomes_a_manifest_that_only_lacks_what_a_person_knows():
    result = asyncrl("import", FILES / "grpo.yaml", "--lossy")

    assert result.exit_code == 0
    spec = filled(result.stdout).spec
    grpo = spec.algorithm.grpo
    assert (grpo.num_prompts_per_step, grpo.num_generations_per_prompt, grpo.max_num_steps) == (32, 8, 4000)
    assert grpo.adv_estimator.use_leave_one_out_baseline is False
    assert (spec.async_rl.sampler.name, spec.async_rl.sampler.max_staleness_versions) == ("windowed", 2)
    assert spec.async_rl.rollout_failure.native.generation_timeout_seconds == 300.0
    assert (spec.generation.shards, spec.generation.gpus_per_shard) == (4, 2)
    assert (spec.training.backend, spec.training.hosts, spec.training.gpus_per_host) == ("torch", 1, 8)
    assert (spec.training.optimizer.lr, spec.training.optimizer.beta2) == (5e-6, 0.98)
    assert spec.training.scheduler.model_dump() == {
        "name": "cosine",
        "warmupSteps": 50,
        "decaySteps": 4000,
        "minLr": 5e-7,
    }
    assert spec.model.max_total_sequence_length == spec.generation.sampling.max_new_tokens == 2048
    assert (spec.checkpointing.mount_path, spec.checkpointing.directory) == ("/results", "grpo-1b")
    assert spec.checkpointing.must_save_by_seconds == 3 * 3600 + 45 * 60
    assert (spec.checkpointing.save_period, spec.checkpointing.keep_top_k) == (20, 2)
    assert spec.logging.log_dir == "/results/grpo-1b/logs"
    assert (spec.logging.wandb.enabled, spec.logging.wandb.project) == (True, "arithmetic")
    assert spec.environment.math.num_workers == 16
    assert spec.validation.max_samples is None


def test_cli_7_a_ppo_file_becomes_a_manifest_without_a_loss():
    result = asyncrl("import", FILES / "ppo.yaml")

    assert result.exit_code == 0
    spec = filled(result.stdout).spec
    assert spec.algorithm.ppo.max_num_epochs is None
    assert (spec.algorithm.ppo.ppo_epochs, spec.algorithm.ppo.critic_ppo_epochs) == (2, 4)
    assert spec.algorithm.ppo.adv_estimator.gae_lambda_value == 1.0
    assert spec.value.name == spec.model.name == "example-org/base-8b"
    assert (spec.value.parallelism.tensor, spec.value.optimizer.lr) == (4, 5e-6)
    assert (spec.value_loss.scale, spec.value_loss.cliprange) == (0.5, 0.2)
    assert spec.async_rl.sampler.warmup_lookahead_versions == 4
    assert (spec.generation.shards, spec.training.hosts) == (2, 3)
    assert "value.optimizer.kwargs.weight_decay: is not set: 0.01 there, 0.1 here" in result.stderr


def test_a_gap_is_a_comment_where_the_field_belongs():
    lines = asyncrl("import", FILES / "grpo.yaml").stdout.splitlines()

    place = lines.index("    # source: {jsonl: {path: /data/train.jsonl}}")
    assert lines[place - 1] == "    # to be filled in by hand: where the training prompts come from"
    assert "  data:" in lines[:place]
    assert "    # volume: {claimName: checkpoints}" in lines[lines.index("  checkpointing:") :]


def test_a_gap_can_be_filled_by_uncommenting_its_example(tmp_path):
    text = asyncrl("import", FILES / "grpo.yaml").stdout
    for key in ("source", "validation", "volume"):
        text = text.replace(f"    # {key}: ", f"    {key}: ")
    path = tmp_path / "job.yaml"
    path.write_text(text)

    assert asyncrl("validate", path).exit_code == 0


def test_what_was_lost_left_or_changed_is_listed_with_place_path_and_reason():
    result = asyncrl("import", FILES / "grpo.yaml")

    assert result.exit_code == 1
    parts = result.stderr.replace(f"{FILES}/", "").splitlines()
    assert parts[0] == "not carried over, and the run is another one without it:"
    assert parts[1].startswith(
        "  grpo.yaml:108:3: data.train: data sets of the reference have no counterpart"
    )
    assert "  grpo.yaml:66:3: policy.megatron_cfg: is not used, since it is not enabled" in parts
    assert any(each.startswith("  spec.checkpointing.volume: the volume that holds") for each in parts)
    assert parts[-1] == "2 setting(s) that change the run were lost; --lossy accepts that"


def test_lossy_accepts_what_was_lost_and_still_lists_it():
    result = asyncrl("import", FILES / "grpo.yaml", "--lossy")

    assert result.exit_code == 0
    assert "data.train: data sets of the reference" in result.stderr
    assert "--lossy" not in result.stderr


def test_settings_without_effect_on_what_is_learned_are_no_loss(tmp_path):
    result = asyncrl("import", write(tmp_path, {"logger.monitor_gpus": True}))

    assert result.exit_code == 0
    assert "not carried over, without effect on what is learned:" in result.stderr
    assert "logger.monitor_gpus" in result.stderr


def test_an_unknown_key_is_a_loss(tmp_path):
    result = asyncrl("import", write(tmp_path, {"policy.lora": {"rank": 8}}))

    assert result.exit_code == 1
    assert "policy.lora: is not known" in result.stderr


def test_defaults_that_differ_are_named_only_where_they_count(tmp_path):
    named = asyncrl("import", write(tmp_path)).stderr
    silent = asyncrl(
        "import",
        write(
            tmp_path,
            {
                "grpo.val_period": 0,
                "checkpointing.save_data_plane": True,
                "loss_fn.use_importance_sampling_correction": True,
            },
        ),
    ).stderr

    title = "not in the file, and the default differs:\n"
    _, listed = named.split(title)
    assert listed.split("to be filled")[0].splitlines() == [
        "  grpo.val_period: is not set: 10 there, 0 here (spec.validation.periodSteps)",
        "  checkpointing.save_data_plane: is not set: false there, true here "
        "(spec.checkpointing.saveDataPlane)",
        "  loss_fn.use_importance_sampling_correction: is not set: false there, true here "
        "(spec.loss.useImportanceSamplingCorrection)",
    ]
    assert title not in silent


def test_a_correction_that_is_null_is_left_to_our_default_and_named(tmp_path):
    result = asyncrl("import", write(tmp_path, {"loss_fn.use_importance_sampling_correction": None}))

    assert "loss" not in manifest(result.stdout)["spec"]
    assert "loss_fn.use_importance_sampling_correction: is not set: false there, true here" in result.stderr


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"grpo.batch_multiplier": 2.0}, "grpo.batch_multiplier: is 2.0: set it to 1.0, "),
        ({"grpo.num_prompts_per_step": 0}, "grpo.num_prompts_per_step: spec.algorithm.grpo.numPrompts"),
        ({"async_rl.max_buffered_rollouts": 1}, "async_rl.max_buffered_rollouts: "),
        ({"async_rl.sampler.name": "fastest"}, "async_rl.sampler.name: spec.asyncRL.sampler.name is"),
        ({"policy.precision": "int4"}, "policy.precision: spec."),
        ({"env.nemo": "${gone}"}, "env.nemo: ${gone} refers to gone, which is not set: set it"),
    ],
)
def test_what_no_manifest_can_say_is_an_error_at_its_place_and_nothing_is_written(tmp_path, settings, line):
    path, output = write(tmp_path, settings), tmp_path / "out.yaml"

    result = asyncrl("import", path, "--output", output, "--lossy")

    assert (result.exit_code, result.stdout) == (2, "")
    assert any(
        each.startswith(f"error: {path}:") and f": {line}" in each for each in result.stderr.splitlines()
    )
    assert not output.exists()


def test_all_errors_are_told_at_once(tmp_path):
    settings = {"grpo.batch_multiplier": 2.0, "data_plane.enabled": False, "grpo.max_num_epochs": -1}

    assert len(asyncrl("import", write(tmp_path, settings)).stderr.splitlines()) == 3


def test_a_file_that_is_not_there(tmp_path):
    result = asyncrl("import", tmp_path / "gone.yaml")

    assert result.exit_code == 2
    assert result.stderr == f"error: {tmp_path / 'gone.yaml'}: cannot be read: No such file or directory\n"


def test_verbose_adds_the_traceback(tmp_path):
    assert "Traceback" in asyncrl("import", tmp_path / "gone.yaml", "-v").stderr


def test_the_manifest_goes_to_a_file_that_was_not_there(tmp_path):
    path, output = write(tmp_path), tmp_path / "out.yaml"

    first, again = (asyncrl("import", path, "-o", output) for _ in range(2))

    assert (first.exit_code, first.stdout) == (0, "")
    assert output.read_text() == asyncrl("import", path).stdout
    assert again.exit_code == 2
    assert again.stderr == f"error: {output} exists: choose another file with --output, or remove it\n"


def test_a_folder_that_cannot_be_written(tmp_path):
    result = asyncrl("import", write(tmp_path), "-o", tmp_path / "gone" / "out.yaml")

    assert result.exit_code == 2
    assert "cannot be written: No such file or directory; choose another file" in result.stderr


@pytest.mark.parametrize(
    ("stem", "name"),
    [("grpo_Math-1.5B", "grpo-math-1-5b"), ("8b", "job-8b"), ("___", "job"), ("x" * 50, "x" * 40)],
)
def test_the_job_is_named_after_the_file(stem, name):
    assert job_name(stem) == name


def test_a_name_can_be_given_and_is_checked(tmp_path):
    given = asyncrl("import", write(tmp_path), "--name", "sums")
    wrong = asyncrl("import", write(tmp_path), "--name", "Sums!")

    assert manifest(given.stdout)["metadata"]["name"] == "sums"
    assert wrong.exit_code == 2
    assert "metadata.name Sums! must start with a letter" in wrong.stderr


def test_an_image_is_asked_for_where_code_of_ones_own_runs(tmp_path):
    settings = {"async_rl.sampler": {"name": "custom", "target": "mine:Sampler", "depth": 2}}

    result = asyncrl("import", write(tmp_path, settings))

    assert "  # image: registry.example.com/team/image:1" in result.stdout.splitlines()
    assert manifest(result.stdout)["spec"]["asyncRL"]["sampler"]["arguments"] == {"depth": 2}


def test_a_file_without_weights_and_environments_says_what_to_fill_in(tmp_path):
    path = write(tmp_path, {"policy.model_name": None, "env": None})

    result = asyncrl("import", path)

    assert result.exit_code == 0
    assert "  # environment: {math: {}}" in result.stdout.splitlines()
    assert "    # name: example-org/base-8b" in result.stdout.splitlines()


def test_no_volume_is_asked_for_where_nothing_is_saved(tmp_path):
    result = asyncrl("import", write(tmp_path, {"checkpointing.enabled": False}))

    assert result.exit_code == 0
    assert "volume" not in result.stdout + result.stderr


@pytest.mark.parametrize("text", ["1e-6", "007", "on", "null", "2024-01-01", "a: b", "x\ny", "~", "é", "- a"])
def test_a_text_is_written_so_that_it_is_read_as_the_same_text(tmp_path, text):
    result = asyncrl("import", write(tmp_path, {"custom.text": text}))

    assert manifest(result.stdout)["spec"]["custom"] == {"text": text}


ODD = (None, True, False, -1, 0, 3.5, 10**30, "", "x", "-1", "${b}", [], [1, None], {}, {"a": 1}, {"name": 3})


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_cli_23_no_value_anywhere_ends_in_a_traceback(tmp_path, algorithm):
    chance = random.Random(7)
    known = sorted({*INDEX.exact, *INDEX.blocks, *(f"{block}.other" for block in INDEX.any_key)})
    for path in chance.sample(known, 100):
        value = chance.choice(ODD)
        file = tmp_path / "job.yaml"
        file.write_text(json.dumps(merged(reference({}, algorithm), tree({path: value}))))

        result = asyncrl("import", file)

        assert result.exit_code in (0, 1, 2), (path, value)
        assert (result.exit_code == 2) == (result.stdout == ""), (path, value)
