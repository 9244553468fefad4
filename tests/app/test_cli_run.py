"""`asyncrl run` from the command line to the run folder, on jobs of a few steps."""

import json

import pytest
import yaml
from support.cli import asyncrl, balanced, rows, shared_torch_server, small_job, summary

from asyncrl_runtime.adapters.folder_lock import FolderLock
from asyncrl_runtime.core.metric_names import check_name
from asyncrl_runtime.core.metric_table import METRICS

FILES = {
    ".lock",
    "checkpoints",
    "config.yaml",
    "events.jsonl",
    "metrics.jsonl",
    "run.log",
    "samples.jsonl",
    "state.json",
    "summary.json",
}


@pytest.fixture(scope="module", autouse=True)
def torch_process():
    with shared_torch_server() as server:
        yield server


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished run: its folder, its manifest, and what the command gave."""
    folder = tmp_path_factory.mktemp("done")
    job = small_job(
        folder,
        logging={"sampleEvery": 1},
        controller={"env": [{"name": "WANDB_API_KEY", "value": "s3cret"}, {"name": "MODE", "value": "x"}]},
    )
    result = asyncrl("run", job, "--output", folder / "run", "--json")
    return folder / "run", job, result


def last_line(result):
    return result.stderr.rstrip("\n").splitlines()[-1]


def resumed_steps(folder):
    return [event["step"] for event in rows(folder / "events.jsonl") if event["kind"] == "resumed"]


def trained_groups(folder):
    return {(row["step"], row["group"]) for row in rows(folder / "samples.jsonl")}


def test_cli_21_a_run_ends_with_0_and_json_is_the_summary(done):
    folder, _, result = done

    assert result.exit_code == 0
    assert json.loads(result.stdout) == summary(folder)
    assert summary(folder)["status"] == "complete"
    assert summary(folder)["failure"] is None
    assert summary(folder)["steps"] == 3


def test_the_run_folder_holds_what_its_page_says(done):
    folder, _, _ = done

    assert {path.name for path in folder.iterdir()} == FILES
    assert sorted(p.name for p in (folder / "checkpoints").glob("step_*")) == ["step_1", "step_2", "step_3"]
    assert (folder / "run.log").read_text() == ""


def test_every_metric_of_a_run_is_in_the_table(done):
    folder, _, _ = done
    steps = rows(folder / "metrics.jsonl")

    assert [row["step"] for row in steps] == [1, 2, 3]
    for name in {name for row in steps for name in row} - {"step", "time", "tick", "sample"}:
        check_name(name)
    assert {"train/reward", "train/grad_norm", "timing/train/total_step_time"} <= steps[-1].keys()


NOT_IN_A_GRPO_RUN = {
    "a critic": (
        "train/critic/",
        "train/critic_optimizer_steps",
        "train/is_policy_training_step",
        "train/lookahead_versions",
        "timing/train/value_",
    ),
    "float16": ("train/loss_scale",),
    "environments that flag messages": ("train/invalid_tool_call_rate", "train/malformed_thinking_rate"),
    "engines on the trainer's GPUs": (
        "timing/train/logprob_inference_prep",
        "timing/train/training_prep",
        "timing/train/weight_sync/calibrate",
    ),
    "a phase of its own; the advantage stage transforms rewards": ("timing/train/reward_calculation",),
    "the start of a run, which belongs to no step": ("timing/setup/", "timing/restore/"),
    "times of single groups, which nothing measures": (
        "timing/rollout/queue_s/",
        "timing/rollout/execution_s/",
    ),
    "snapshots between steps": (
        "checkpoint/saved",
        "checkpoint/failed",
        "checkpoint/bytes",
        "checkpoint/replay_rows",
        "checkpoint/unfinished_groups",
        "checkpoint/last_step",
        "checkpoint/mutation_version",
    ),
}
"""Names, or beginnings of names, by what they need."""


def test_every_metric_of_a_step_is_logged_by_a_grpo_run(tmp_path):
    # Divergence from a reference, validation with several completions, a prompt source without end.
    job = small_job(
        tmp_path,
        algorithm={"grpo": {"skipReferencePolicyLogprobsCalculation": False}},
        loss={"referencePolicyKlPenalty": 0.1},
        data={"validation": {"generated": {"task": "copy", "numDigits": 2, "numPrompts": 4}}},
        validation={"periodSteps": 1, "numGenerationsPerPrompt": 2},
    )
    assert asyncrl("run", job, "--output", tmp_path / "run").exit_code == 0
    logged = {
        check_name(name).metric.name
        for row in rows(tmp_path / "run" / "metrics.jsonl")
        for name in row
        if name not in ("step", "time")
    }
    exempt = {
        metric.name
        for metric in METRICS
        for beginnings in NOT_IN_A_GRPO_RUN.values()
        if metric.name.startswith(beginnings)
    }
    assert {metric.name for metric in METRICS if metric.axis == "step"} - logged == exempt


def test_cli_41_the_ledger_balances_and_counts_what_was_trained(done):
    folder, _, _ = done
    prompts = summary(folder)["prompts"]

    assert balanced(prompts)
    assert prompts["trained"] == 12
    assert len(trained_groups(folder)) == 12


def test_sc_14_168_the_stored_configuration_hides_credentials_and_runs_again(done):
    folder, _, _ = done
    stored = yaml.safe_load((folder / "config.yaml").read_text())
    env = {entry["name"]: entry["value"] for entry in stored["spec"]["controller"]["env"]}

    assert env == {"WANDB_API_KEY": "<redacted>", "MODE": "x"}
    assert "s3cret" not in "".join(p.read_text() for p in folder.rglob("config.yaml"))
    assert stored["spec"]["algorithm"]["grpo"]["maxNumSteps"] == 3
    assert asyncrl("validate", folder / "config.yaml").exit_code == 0


def test_status_tail_and_report_read_a_finished_run(done):
    folder, _, _ = done
    status = asyncrl("status", folder)
    told = json.loads(asyncrl("status", folder, "--json").stdout)

    assert "Phase:                  Succeeded" in status.stdout
    assert "maxLookaheadVersions=1" in status.stdout
    assert told["summary"] == summary(folder)
    assert told["alive"] is False
    assert "checkpoint saved  step 3" in asyncrl("tail", folder).stdout.splitlines()[-1]


def test_cli_1_the_same_command_goes_on_and_fresh_starts_anew(tmp_path):
    job, folder = small_job(tmp_path, logging={"sampleEvery": 1}), tmp_path / "run"
    first = asyncrl("run", job, "--output", folder)
    more = asyncrl("run", job, "--output", folder, "--quiet", "--set", "spec.algorithm.grpo.maxNumSteps=5")

    assert [line.split("  |")[0] for line in first.stdout.splitlines() if line.startswith("step")] == [
        "step 1 of 3",
        "step 2 of 3",
        "step 3 of 3",
    ]
    assert more.exit_code == 0
    assert more.stdout.startswith("complete: 5 steps, ")
    assert len(more.stdout.splitlines()) == 1
    assert resumed_steps(folder) == [3]
    assert [row["step"] for row in rows(folder / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    assert len(trained_groups(folder)) == len({group for _, group in trained_groups(folder)}) == 20
    assert summary(folder)["prompts"]["trained"] == 20

    again = asyncrl("run", job, "--output", folder, "--fresh", "--json")

    assert again.exit_code == 0
    assert summary(tmp_path / "run-2")["steps"] == 3
    assert summary(folder)["steps"] == 5


def test_steps_behind_a_checkpoint_stand_once_after_a_resume(tmp_path):
    job, folder = small_job(tmp_path, logging={"sampleEvery": 1}), tmp_path / "run"
    asyncrl("run", job, "--output", folder)
    for step in (2, 3):  # as if the run had been killed before these were written
        (folder / "checkpoints" / f"step_{step}").rename(tmp_path / f"gone_{step}")
    result = asyncrl("run", job, "--output", folder)

    assert result.exit_code == 0
    assert resumed_steps(folder) == [1]
    assert [row["step"] for row in rows(folder / "metrics.jsonl")] == [1, 2, 3]
    assert len(trained_groups(folder)) == len({group for _, group in trained_groups(folder)}) == 12
    assert balanced(summary(folder)["prompts"])


def test_cli_40_a_second_run_in_the_folder_is_refused(tmp_path):
    job, folder = small_job(tmp_path), tmp_path / "run"
    lock = FolderLock(folder / ".lock")
    lock.acquire()
    try:
        result = asyncrl("run", job, "--output", folder)
    finally:
        lock.release()

    assert result.exit_code == 3
    assert "is in use by process" in last_line(result)
    assert "--output" in last_line(result)
    assert not (folder / "summary.json").exists()


def damage(folder, step):
    path = folder / "checkpoints" / f"step_{step}" / "policy" / "weights" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_sc_9_83_a_damaged_checkpoint_makes_way_for_an_older_one_with_a_warning(tmp_path):
    job, folder = small_job(tmp_path), tmp_path / "run"
    asyncrl("run", job, "--output", folder)
    damage(folder, 3)
    result = asyncrl("run", job, "--output", folder)

    assert result.exit_code == 0
    assert "step_3 cannot be used: policy/weights/model.safetensors is not what was written" in result.stderr
    assert "going on from step_2 instead, 1 steps are trained again" in result.stderr
    assert resumed_steps(folder) == [2]

    for step in (1, 2, 3):
        for bundle in (folder / "checkpoints").glob(f"step_{step}*/"):
            (bundle / "manifest.json").write_text("{")
    result = asyncrl("run", job, "--output", folder)

    assert result.exit_code == 3
    assert last_line(result).startswith("error: none of the checkpoints in ")
    assert "start anew with --fresh" in last_line(result)
    assert summary(folder)["failure"]["message"] in last_line(result)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("spec.algorithm.grpo.numPromptsPerStep=8", "numPromptsPerStep was 4 when it was saved and is 8 now"),
        ("spec.data.source.generated.numPrompts=500", "the prompts changed (length 400 → 500"),
    ],
)
def test_a_checkpoint_of_another_job_is_refused(change, told, done, tmp_path):
    folder, job, _ = done
    before = summary(folder)
    result = asyncrl(
        "run", job, "--output", folder, "--set", change, "--set", "spec.algorithm.grpo.maxNumSteps=9"
    )

    assert result.exit_code == 3
    assert told in last_line(result)
    assert summary(folder)["failure"]["message"] in last_line(result)
    assert summary(folder)["prompts"]["trained"] == before["prompts"]["trained"]
    assert [row["step"] for row in rows(folder / "metrics.jsonl")] == [1, 2, 3]


@pytest.mark.parametrize("place", ["a-file", "a-file/below"])
def test_an_unusable_run_folder_is_one_line(place, tmp_path):
    (tmp_path / "a-file").write_text("")
    result = asyncrl("run", small_job(tmp_path), "--output", tmp_path / place)

    assert result.exit_code in (2, 3)
    assert "a-file" in last_line(result)
    assert "Traceback" not in result.stderr


FUNCTION = {"function": {"target": "judge:score", "numWorkers": 1}}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return float('nan')", "judge:score of environment function returned nan"),
        ("raise KeyError('boo')", "judge:score of environment function raised KeyError: 'boo'"),
        ("import time; time.sleep(60)", "did not return within 1 s (raise spec.asyncRL.rolloutFailure"),
        ("import os; os._exit(7)", "ended its process with exit code 7"),
        ("return 'much'", "judge:score of environment function returned"),
    ],
    ids=["nan", "raises", "hangs", "dies", "no-number"],
)
def test_a_reward_function_that_fails_is_named_with_its_prompt(body, told, tmp_path):
    (tmp_path / "judge.py").write_text(f"def score(completion, answer):\n    {body}\n")
    job = small_job(
        tmp_path,
        environment={"arithmetic": None, **FUNCTION},
        asyncRL={
            "sampler": {"maxLookaheadVersions": 0},
            "rolloutFailure": {
                "maxDataAttemptsPerPrompt": 1,
                "maxInfraAttemptsPerPrompt": 1,
                "native": {"envTimeoutSeconds": 1},
            },
        },
    )
    result = asyncrl("run", job, "--output", tmp_path / "run", "--quiet")

    assert result.exit_code == 3
    assert told in last_line(result)
    assert "prompt " in last_line(result)
    failure = summary(tmp_path / "run")["failure"]
    assert last_line(result) == f"error: {failure['message']}"
    assert failure["type"] == "PromptFailed"
    assert "Traceback" not in result.stderr


def test_diagnostics_and_validation_samples_are_written_down(tmp_path):
    job = small_job(
        tmp_path,
        asyncRL={"diagnostics": True},
        data={"validation": {"generated": {"task": "copy", "numDigits": 2, "numPrompts": 6}}},
        validation={"periodSteps": 2},
        logging={"numValSamplesToPrint": 2},
    )
    assert asyncrl("run", job, "--output", tmp_path / "run", "--quiet").exit_code == 0

    events = rows(tmp_path / "run" / "events.jsonl")
    rollouts = [event for event in events if event["kind"] == "rollout"]
    assert len(rollouts) == summary(tmp_path / "run")["prompts"]["committed"]
    assert all(len(event["completions"]) == 4 for event in rollouts)
    assert {"tokens", "reward", "weight_versions", "generation_seconds"} <= set(rollouts[0]["completions"][0])
    samples = [event for event in events if event["kind"] == "validation_sample"]
    passes = [event for event in events if event["kind"] == "validated"]
    assert len(samples) == 2 * len(passes) > 0
    logged = (tmp_path / "run" / "run.log").read_text()
    assert logged.count('"event": "validation sample"') == len(samples)


def test_a_run_in_which_nothing_moves_ends_and_leaves_the_stacks(tmp_path):
    job = small_job(
        tmp_path,
        generation={"engineArgs": {"tail": {"probability": 1, "seconds": 1000}}},
        asyncRL={
            "stallWatchdog": {"intervalSeconds": 0.3, "stallTimeoutSeconds": 1.5, "stallAction": "abort"}
        },
    )
    result = asyncrl("run", job, "--output", tmp_path / "run", "--quiet")

    assert result.exit_code == 3
    assert "no group was committed and no step completed for" in last_line(result)
    assert summary(tmp_path / "run")["failure"]["type"] == "Stalled"
    stacks = (tmp_path / "run" / "stall-1.txt").read_text()
    assert "rollout e0p" in stacks
    assert "threads:" in stacks
    assert "Thread 0x" in stacks


def test_a_prompt_that_fails_for_good_is_replaced_within_the_budget_and_the_run_says_so(tmp_path):
    (tmp_path / "judge.py").write_text(
        "def score(prompt, completion, answer):\n"
        "    if prompt[1] in '012':\n"
        "        raise ValueError('no small digits')\n"
        "    return float(completion == answer)\n"
    )
    job = small_job(
        tmp_path,
        environment={"arithmetic": None, **FUNCTION},
        asyncRL={
            "rolloutFailure": {
                "maxDataAttemptsPerPrompt": 1,
                "maxSkippedPrompts": 1000,
                "onDroppedPrompt": "replace",
                "maxReplacementAttempts": 9,
                "minStepBatchFraction": 0.01,
            }
        },
    )
    result = asyncrl("run", job, "--output", tmp_path / "run", "--quiet")

    assert result.exit_code == 1
    told = summary(tmp_path / "run")
    assert told["status"] == "complete"
    assert told["prompts"]["dropped"] > 0
    prompts = told["prompts"]
    gone = prompts["trained"] + prompts["dropped"] + prompts["discarded"] + prompts["live"]
    assert prompts["admitted"] == gone
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    dropped = [event for event in events if event["kind"] == "prompt_dropped"]
    assert len(dropped) == prompts["dropped"]
    assert all("no small digits" in event["reason"] for event in dropped)
    assert any(event["replaced_by"] for event in dropped)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"data": {"source": {"generated": None, "jsonl": {"path": "no.jsonl"}}}},
            "no.jsonl: cannot be read",
        ),
        ({"data": {"source": {"generated": None, "jsonl": {"path": "bad.jsonl"}}}}, "line 2 is not JSON"),
        ({"model": {"init": None, "name": "./empty"}}, "has no tokenizer.json"),
        ({"model": {"init": None, "name": "./nowhere"}}, "tokenizer ./nowhere is no folder"),
        (
            {"asyncRL": {"sampler": {"name": "custom", "target": "nowhere:Sampler"}}},
            "spec.asyncRL.sampler.target nowhere:Sampler: cannot be imported",
        ),
        (
            {"environment": {"arithmetic": None, "function": {"target": "nowhere:score"}}},
            "nowhere cannot be imported",
        ),
    ],
    ids=["no-data", "bad-data", "empty-model", "no-model", "no-sampler", "no-function"],
)
def test_what_is_missing_at_the_start_is_one_line_and_in_the_summary(changes, told, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a", "answer": "b"}\n{"prompt": \n')
    result = asyncrl("run", small_job(tmp_path, **changes), "--output", tmp_path / "run", "--quiet")

    assert result.exit_code == 3
    assert told in last_line(result)
    assert last_line(result) == f"error: {summary(tmp_path / 'run')['failure']['message']}"
    assert summary(tmp_path / "run")["status"] == "failed"
    assert "Failure:" in asyncrl("status", tmp_path / "run").stdout
    assert "Traceback" not in result.stderr


def test_a_custom_sampler_is_found_beside_the_manifest_and_its_run_resumes(tmp_path):
    (tmp_path / "freshest.py").write_text(
        "from asyncrl_runtime.core.samplers.ready_first import ReadyFirst\n\n\n"
        "class Freshest(ReadyFirst):\n"
        "    supports_buffer_checkpoint = True\n"
    )
    custom = {"name": "custom", "target": "freshest:Freshest", "arguments": {"window": 1}}
    job, folder = small_job(tmp_path, asyncRL={"sampler": custom}), tmp_path / "run"

    assert asyncrl("run", job, "--output", folder).exit_code == 0
    more = asyncrl("run", job, "--output", folder, "--set", "spec.algorithm.grpo.maxNumSteps=4")
    assert more.exit_code == 0
    assert "Name:                 freshest:Freshest" in asyncrl("status", folder).stdout


def test_sc_14_144_settings_are_refused_before_anything_is_built(tmp_path, monkeypatch):
    def connect(*args, **rest):
        raise AssertionError

    monkeypatch.setattr("asyncrl_runtime.app.run.connect", connect)
    job = small_job(tmp_path, asyncRL={"maxBufferedRollouts": 5})
    result = asyncrl("run", job, "--output", tmp_path / "run")
    assert result.exit_code not in (0, 1)
    assert "spec.asyncRL.maxBufferedRollouts" in result.stderr
    assert not (tmp_path / "run").exists()
