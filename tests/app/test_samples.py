"""Every sample runs as it is, for a few steps."""

import shutil

import pytest
from support.cli import SAMPLES, asyncrl, balanced, shared_torch_server, summary

from asyncrl_runtime.app.starters import STARTERS

FEW = (
    "--set=spec.algorithm.grpo.maxNumSteps=2",
    "--set=spec.algorithm.grpo.numPromptsPerStep=2",
    "--set=spec.algorithm.grpo.numGenerationsPerPrompt=2",
    "--quiet",
)
RUNNING = ["minimal.yaml", *(s.manifest for s in STARTERS if s.task != "hugging-face")]


@pytest.fixture(scope="module", autouse=True)
def torch_process():
    with shared_torch_server() as server:
        yield server


@pytest.mark.parametrize("name", RUNNING)
def test_a_sample_runs_from_any_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = asyncrl("run", SAMPLES / name, *FEW)

    assert result.exit_code == 0, result.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert summary(folder)["steps"] == 2
    assert balanced(summary(folder)["prompts"])


def test_the_hugging_face_sample_runs_with_a_model_beside_it(tmp_path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({letter: i for i, letter in enumerate([*letters, "<end>"])}, []))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>").save_pretrained(tmp_path / "model")
    config = Qwen2Config(
        vocab_size=len(letters) + 1,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=32,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).save_pretrained(tmp_path / "model")
    shutil.copy(SAMPLES / "hugging-face.yaml", tmp_path)
    job = tmp_path / "hugging-face.yaml"
    result = asyncrl(
        "run", job, *FEW, "--output", tmp_path / "run", "--set=spec.generation.sampling.maxNewTokens=4"
    )

    assert result.exit_code == 0, result.stderr
    assert summary(tmp_path / "run")["steps"] == 2
    assert (tmp_path / "run/checkpoints/step_2/policy/weights/model.safetensors").exists()


def test_what_needs_a_cluster_is_refused_with_every_reason(tmp_path):
    result = asyncrl("run", SAMPLES / "full.yaml", "--output", tmp_path / "run")
    lines = result.stderr.splitlines()

    assert result.exit_code == 2
    assert any("spec.generation.backend vllm is not carried out" in line for line in lines)
    assert all("use " in line or "set " in line or "remove " in line for line in lines)
    assert not (tmp_path / "run").exists()
