"""Settings of trainer and advantage stage, from the manifest to a run."""

import math

import pytest
from support.cli import asyncrl, rows, shared_torch_server, small_job, summary

from asyncrl_api.resolve import resolve
from asyncrl_runtime.adapters.tokenizers.character import CharacterTokenizer
from asyncrl_runtime.adapters.torch import advantage_worker
from asyncrl_runtime.adapters.torch.advantage_worker import AdvantageWorkers
from asyncrl_runtime.app.backends import trainer_settings
from asyncrl_runtime.app.manifest import read_job

RUNS = {
    "dynamic batching": {"training": {"dynamicBatching": {"enabled": True, "microBatchTokens": 40}}},
    "sequence packing": {"training": {"sequencePacking": {"enabled": True, "microBatchTokens": 64}}},
    "float16 in the trainer": {"training": {"precision": "float16"}},
    "bfloat16 in the trainer": {"training": {"precision": "bfloat16"}},
    "float16 everywhere": {"model": {"dtype": "float16"}},
    "bfloat16 everywhere": {"model": {"dtype": "bfloat16"}},
}


@pytest.fixture(scope="module", autouse=True)
def torch_process():
    with shared_torch_server() as server:
        yield server


@pytest.mark.parametrize("changes", RUNS.values(), ids=RUNS)
def test_a_run_with(changes, tmp_path):
    changes = {"algorithm": {"grpo": {"maxNumSteps": 2}}, "checkpointing": {"enabled": False}, **changes}
    result = asyncrl("run", small_job(tmp_path, **changes), "--output", tmp_path / "run")

    assert result.exit_code == 0, result.stderr
    assert summary(tmp_path / "run")["steps"] == 2
    first, second = rows(tmp_path / "run" / "metrics.jsonl")
    for row in (first, second):
        assert math.isfinite(row["train/loss"])
        assert ("train/loss_scale" in row) == ("'float16'" in str(changes))
        assert 0 <= row["train/clip_fraction"] <= 1
    assert first["train/token_mult_prob_error"] == pytest.approx(1, abs=0.02), "shards and trainer agree"


def one_step(tmp_path, count, **settings):
    """A run of one step with so many workers of the advantage stage."""
    job = small_job(
        tmp_path,
        algorithm={"grpo": {"maxNumSteps": 1}},
        checkpointing={"enabled": False},
        asyncRL={"advantageWorkers": count, **settings},
    )
    return asyncrl("run", job, "--output", tmp_path / "run")


def refuse(*args):
    raise RuntimeError("not in this process")


def test_advantages_are_computed_in_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(advantage_worker, "run_stage", refuse)
    result = one_step(tmp_path, 2)

    assert result.exit_code == 0, result.stderr
    assert summary(tmp_path / "run")["steps"] == 1


def test_without_workers_advantages_are_computed_in_the_controller(tmp_path, monkeypatch):
    monkeypatch.setattr(advantage_worker, "run_stage", refuse)
    result = one_step(tmp_path, 0)

    assert result.exit_code == 3
    assert "not in this process" in result.stderr


@pytest.mark.parametrize("retries", [0, 1])
def test_sc_5_75_a_killed_worker_of_the_advantage_stage_costs_a_retry_of_the_step(
    retries, tmp_path, monkeypatch
):
    run, killed = AdvantageWorkers._run, []

    async def run_killed(self, index, *args):
        if not killed:
            killed.append(self._workers[index].pid)
            self._workers[index].kill()
        return await run(self, index, *args)

    monkeypatch.setattr(AdvantageWorkers, "_run", run_killed)
    result = one_step(tmp_path, 1, trainStepRetries=retries)
    kinds = [event["kind"] for event in rows(tmp_path / "run" / "events.jsonl")]

    assert len(killed) == 1
    assert kinds.count("train_step_retried") == retries
    assert summary(tmp_path / "run")["steps"] == retries
    if retries:
        assert result.exit_code == 0, result.stderr
    else:
        assert result.exit_code != 0
        assert "advantage worker 0 ended" in result.stderr
        assert "trainStepRetries" in result.stderr


def settings_of(tmp_path, **training):
    """What the manifest asks of the trainer's process."""
    spec = resolve(read_job(small_job(tmp_path, training=training))).spec
    return trainer_settings(spec, CharacterTokenizer("0123456789="), total_updates=1)


def test_sequences_form_batches_as_the_manifest_says(tmp_path):
    by_rows = settings_of(tmp_path, microBatchSize=3, logprobBatchSize=5)
    dynamic = settings_of(tmp_path, microBatchSize=3, dynamicBatching={"enabled": True})
    packed = settings_of(tmp_path, sequencePacking={"enabled": True, "microBatchTokens": 77})

    assert (by_rows.micro_batch_rows, by_rows.logprob_batch_rows) == (3, 5)
    assert by_rows.micro_batch_tokens is None
    assert dynamic.micro_batch_tokens == 3 * 32
    assert (packed.micro_batch_tokens, packed.packing, dynamic.packing) == (77, True, False)


def test_the_trainer_computes_in_its_precision_and_shards_get_the_model_s_type(tmp_path):
    own = settings_of(tmp_path, precision="float16")
    followed = settings_of(tmp_path)

    assert (own.precision, own.model.dtype) == ("float16", "float32")
    assert (followed.precision, followed.model.dtype) == ("float32", "float32")
