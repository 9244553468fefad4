"""Models of transformers that the product's own decoder does not cover."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from adapters.torch_bench import ENGINE, TRAINER, columns_of

from asyncrl_runtime.adapters.torch.engine import Engine
from asyncrl_runtime.adapters.torch.errors import PackingUnsupported
from asyncrl_runtime.adapters.torch.loading import build_model
from asyncrl_runtime.adapters.torch.model import Decoder
from asyncrl_runtime.adapters.torch.policy import PolicyTrainer
from asyncrl_runtime.adapters.torch.settings import TorchModelSettings
from asyncrl_runtime.ports import columns as col
from asyncrl_runtime.ports.generator import Sampling


def qwen3():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=16,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            intermediate_size=48,
            initializer_range=0.3,
        )
    )


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(vocab_size=16, n_embd=32, n_layer=2, n_head=4, n_positions=256, initializer_range=0.3)
    )


@pytest.fixture(scope="module", params=[qwen3, gpt2])
def folder(request, tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp(request.param.__name__)
    request.param().save_pretrained(path)
    return path


@pytest.fixture
def model(folder):
    model = build_model(TorchModelSettings(folder=str(folder)))
    assert not isinstance(model, Decoder)
    return model


def test_cached_decoding_equals_the_whole_sequence(model):
    model.requires_grad_(False)
    token_ids = torch.randint(0, 16, (3, 12))
    expected = model.logits(token_ids, torch.ones_like(token_ids, dtype=torch.bool)).view(3, 12, 16)
    cache = model.new_cache(4, 16)
    lengths, slots = torch.tensor([5, 3, 4]), torch.tensor([2, 0, 1])
    first = model.prefill(cache, token_ids[:, :5], lengths, torch.arange(3), slots)
    torch.testing.assert_close(first, expected[torch.arange(3), lengths - 1], atol=1e-5, rtol=0)

    positions = torch.empty(3, dtype=torch.int64)
    positions[slots] = lengths
    rows = torch.argsort(slots)
    for _ in range(6):
        logits = model.decode(cache, token_ids[rows, positions], positions, int(positions.max()) + 1)
        torch.testing.assert_close(logits, expected[rows, positions], atol=1e-5, rtol=0)
        positions += 1


def test_the_engine_samples_what_the_trainer_scores(model, folder):
    engine = Engine(model.requires_grad_(False), ENGINE, clock=lambda: 0.0)
    outputs = {}
    for seed in range(5):
        engine.submit(
            tuple(range(1, 3 + seed)),
            Sampling(max_new_tokens=4 + 3 * seed),
            seed,
            lambda output, seed=seed: outputs.update({seed: output}),
        )
    while engine.busy:
        engine.step()
    for seed, output in outputs.items():
        prompt = list(range(1, 3 + seed))
        sequence = torch.tensor([[*prompt, *output[0]]])
        logits = model.logits(sequence, torch.ones_like(sequence, dtype=torch.bool))
        at = torch.arange(len(prompt), sequence.shape[1])
        expected = logits.log_softmax(-1)[at - 1, sequence[0, at]]

        np.testing.assert_allclose(output[1], expected, atol=1e-5)


def test_a_step_moves_it_and_its_weights_survive_a_folder(model, tmp_path):
    trainer = PolicyTrainer(model, TRAINER)
    before = trainer.weights.flat.clone()
    trainer.begin(None)
    trainer.accumulate(columns_of(6))
    metrics, *_ = trainer.finish()
    trained = trainer.weights.flat.clone()
    model.save(tmp_path)
    trainer.weights.flat.zero_()
    model.load_weights(tmp_path)

    assert metrics["grad_norm"] > 0
    assert not torch.equal(trained, before)
    assert torch.equal(trainer.weights.flat, trained)


@pytest.mark.parametrize("budget", [1, 17, 200])
def test_a_step_of_packed_rows_equals_one_of_single_rows(folder, budget):
    columns = columns_of(9)
    steps = []
    for changes in ({"micro_batch_rows": 1}, {"micro_batch_tokens": budget, "packing": True}):
        trainer = PolicyTrainer(
            build_model(TorchModelSettings(folder=str(folder))), replace(TRAINER, **changes)
        )
        written = trainer.logprobs(columns, frozenset({"policy"}))
        trainer.begin(None)
        trainer.accumulate(columns)
        steps.append((written[col.PREVIOUS_LOGPROBS].values, trainer.optimizer.grad))

    (expected, gradient), (found, packed) = steps
    np.testing.assert_allclose(found, expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(packed, gradient, atol=1e-6 * float(gradient.abs().max()) + 1e-6, rtol=0)


def test_a_model_that_mixes_the_sequences_of_a_packed_row_is_refused(tmp_path):
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(0)
    config = MambaConfig(vocab_size=16, hidden_size=16, state_size=4, num_hidden_layers=1)
    MambaForCausalLM(config).save_pretrained(tmp_path)
    model = build_model(TorchModelSettings(folder=str(tmp_path)))
    with pytest.raises(PackingUnsupported, match=r"sequencePacking: Mamba\w+ cannot .*enabled to false"):
        PolicyTrainer(model, replace(TRAINER, packing=True, micro_batch_tokens=64))


def test_a_model_that_cannot_be_loaded_says_why(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "abacus"}')
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ValueError, match=f"model {tmp_path} cannot be loaded: .*abacus"):
        build_model(TorchModelSettings(folder=str(tmp_path)))
