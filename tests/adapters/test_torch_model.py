import json

import pytest
import torch

from asyncrl_runtime.adapters.torch.errors import IncompleteModelFolder
from asyncrl_runtime.adapters.torch.flat import flatten_parameters
from asyncrl_runtime.adapters.torch.loading import build_model
from asyncrl_runtime.adapters.torch.model import Decoder
from asyncrl_runtime.adapters.torch.settings import TorchModelSettings
from asyncrl_runtime.adapters.torch.shape import DecoderShape

SHAPE = {
    "vocab_size": 32,
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "max_positions": 64,
}
LAYOUTS = {
    "llama": DecoderShape(**SHAPE, tied_embeddings=True),
    "qwen2": DecoderShape(**SHAPE, tied_embeddings=False, qkv_bias=True, rope_theta=1e6),
}


@pytest.fixture(params=sorted(LAYOUTS))
def model(request):
    model = Decoder.random(LAYOUTS[request.param], seed=3).requires_grad_(False)
    for parameter in model.parameters():  # so that norms and biases matter
        parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.05)
    return model


def everywhere(token_ids):
    return torch.ones(token_ids.shape, dtype=torch.bool)


def test_a_saved_folder_means_the_same_to_transformers(model, tmp_path):
    from transformers import AutoModelForCausalLM

    model.save(tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="sdpa")
    ours = build_model(TorchModelSettings(folder=str(tmp_path)))
    token_ids = torch.randint(0, 32, (3, 20))
    with torch.no_grad():
        expected = theirs(token_ids).logits

        assert (ours.logits(token_ids, everywhere(token_ids)).view(3, 20, 32) - expected).abs().max() < 1e-5
        assert torch.equal(
            ours.logits(token_ids, everywhere(token_ids)), model.logits(token_ids, everywhere(token_ids))
        )


def test_a_folder_of_transformers_loads(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    theirs = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=48,
        )
    )
    theirs.save_pretrained(tmp_path)
    ours = build_model(TorchModelSettings(folder=str(tmp_path)))
    token_ids = torch.randint(0, 32, (2, 9))

    assert isinstance(ours, Decoder)
    with torch.no_grad():
        difference = ours.logits(token_ids, everywhere(token_ids)).view(2, 9, 32) - theirs(token_ids).logits
    assert difference.abs().max() < 1e-5


@pytest.mark.parametrize("lacking", ["config.json", "model.safetensors"])
def test_a_folder_without_a_file_is_named_with_the_file(tmp_path, lacking):
    Decoder.random(LAYOUTS["llama"], 0).save(tmp_path)
    (tmp_path / lacking).unlink()

    with pytest.raises(IncompleteModelFolder, match=f"model folder {tmp_path} lacks {lacking}"):
        build_model(TorchModelSettings(folder=str(tmp_path)))


def test_an_absent_tensor_is_named(tmp_path):
    Decoder.random(LAYOUTS["llama"], 0).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))

    with pytest.raises(ValueError, match=r"holds no tensor model\.layers\.2\."):
        build_model(TorchModelSettings(folder=str(tmp_path)))


def test_decoding_from_the_cache_gives_the_logits_of_the_whole_sequence(model):
    token_ids = torch.randint(0, 32, (3, 12))
    expected = model.logits(token_ids, everywhere(token_ids)).view(3, 12, 32)
    cache = model.new_cache(4, 16)
    lengths = torch.tensor([5, 3, 4])
    slots = torch.tensor([2, 0, 1])
    first = model.prefill(cache, token_ids[:, :5], lengths, torch.arange(3), slots)
    torch.testing.assert_close(first, expected[torch.arange(3), lengths - 1], atol=2e-6, rtol=0)

    positions = torch.empty(3, dtype=torch.int64)
    positions[slots] = lengths
    row_of_slot = torch.argsort(slots)
    for _ in range(6):
        fed = token_ids[row_of_slot, positions]
        logits = model.decode(cache, fed, positions, int(positions.max()) + 1)
        torch.testing.assert_close(logits, expected[row_of_slot, positions], atol=2e-6, rtol=0)
        positions += 1


def test_one_prefilled_row_can_fill_several_slots_and_slots_can_move(model):
    token_ids = torch.randint(0, 32, (1, 6))
    cache = model.new_cache(4, 16)
    model.prefill(cache, token_ids, torch.tensor([6]), torch.tensor([0, 0, 0]), torch.tensor([0, 1, 3]))
    cache.move(3, 2, 6)
    logits = model.decode(cache, torch.tensor([1, 1, 1]), torch.tensor([6, 6, 6]), 7)

    torch.testing.assert_close(logits[0], logits[2], atol=1e-6, rtol=0)


def test_random_weights_depend_on_the_seed_alone():
    shape = LAYOUTS["llama"]
    first, again, other = (flatten_parameters(Decoder.random(shape, seed)) for seed in (1, 1, 2))

    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_flat_parameters_are_the_model(model):
    token_ids = torch.randint(0, 32, (1, 6))
    before = model.logits(token_ids, everywhere(token_ids))
    flat = flatten_parameters(model)
    assert torch.equal(model.logits(token_ids, everywhere(token_ids)), before)

    flat.zero_()
    assert not model.logits(token_ids, everywhere(token_ids)).any()
