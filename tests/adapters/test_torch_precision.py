"""Number formats: products in 16 bits over float32 parameters, and what shards get."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from adapters.torch_bench import ENGINE, LOSS, MODEL, TRAINER, columns_of

from asyncrl_runtime.adapters.torch import precision as precision_module
from asyncrl_runtime.adapters.torch.checkpoint import load_optimizer, save_optimizer
from asyncrl_runtime.adapters.torch.engine import Engine
from asyncrl_runtime.adapters.torch.errors import PrecisionUnsupported
from asyncrl_runtime.adapters.torch.loading import build_model
from asyncrl_runtime.adapters.torch.policy import PolicyTrainer
from asyncrl_runtime.adapters.torch.precision import check_precision
from asyncrl_runtime.adapters.torch.settings import OptimizerSettings
from asyncrl_runtime.adapters.torch.weight_buffers import WeightReader, WeightWriter
from asyncrl_runtime.core.errors import NonFiniteStep
from asyncrl_runtime.ports import columns as col
from asyncrl_runtime.ports.generator import Sampling

SIXTEEN_BITS = ["bfloat16", "float16"]
ERRORS = {"bfloat16": 0.05, "float16": 0.005}
"""Of a log-prob of the small model: some units in the last place of its logits."""

CPU = torch.device("cpu")


def trainer(**changes):
    return PolicyTrainer(build_model(MODEL), replace(TRAINER, **changes))


def step(trainer, columns):
    trainer.begin(None)
    trainer.accumulate(columns)
    return trainer.finish()[0]


def scaled_to(scale):
    """A float16 trainer whose loss is multiplied by `scale`."""
    one = trainer(precision="float16")
    one.arithmetic.load_state({**one.arithmetic.state(), "scale": scale})
    return one


@pytest.mark.parametrize("precision", SIXTEEN_BITS)
def test_products_are_in_the_precision_and_parameters_gradients_and_moments_in_float32(precision):
    columns = columns_of(6)
    exact, rounded = trainer(), trainer(precision=precision)
    names = frozenset({"policy"})
    expected = exact.logprobs(columns, names)[col.PREVIOUS_LOGPROBS].values
    found = rounded.logprobs(columns, names)[col.PREVIOUS_LOGPROBS].values
    gap = np.abs(found - expected).max()
    step(exact, columns)
    metrics = step(rounded, columns)

    assert 1e-6 < gap < ERRORS[precision]
    assert {rounded.weights.flat.dtype, rounded.optimizer.grad.dtype} == {torch.float32}
    assert all(moment.dtype == torch.float32 for moment in rounded.optimizer.state().values())
    assert ("loss_scale" in metrics) == (precision == "float16")


@pytest.mark.parametrize("precision", SIXTEEN_BITS)
def test_a_small_learning_rate_moves_parameters_that_16_bits_could_not(precision):
    """Master weights: steps far below a parameter's own resolution in 16 bits add up."""
    one = trainer(precision=precision, optimizer=OptimizerSettings(lr=1e-5))
    before = one.weights.flat.clone()
    for seed in range(3):
        step(one, columns_of(6, seed=seed))

    moved = (one.weights.flat - before).abs()
    assert (moved > 0).float().mean() > 0.9
    assert moved.max() < 5e-5


def test_the_gradient_under_a_loss_scale_is_that_of_the_plain_loss():
    columns = columns_of(6)
    gradients = []
    for scale in (1.0, 1024.0):
        one = scaled_to(scale)
        one.begin(None)
        one.accumulate(columns)
        one.arithmetic.unscale(one.optimizer)
        gradients.append(one.optimizer.grad)

    largest = float(gradients[0].abs().max())
    torch.testing.assert_close(gradients[1], gradients[0], atol=2e-3 * largest, rtol=0)


def test_a_gradient_that_overflows_its_scale_is_computed_again_under_a_smaller_one():
    first, second = columns_of(4, seed=1), columns_of(5, seed=2)
    plain, overflowing = scaled_to(1024.0), scaled_to(2.0**40)
    reports = []
    for one in (plain, overflowing):
        one.begin(None)
        one.accumulate(first)
        one.accumulate(second)
        reports.append(one.finish())
    (metrics, *counts), (again, *counts_again) = reports

    assert counts_again == counts
    assert again["loss_scale"] < 2.0**40
    assert again["grad_norm"] == pytest.approx(metrics["grad_norm"], rel=5e-3)
    assert again["loss"] == metrics["loss"]
    torch.testing.assert_close(overflowing.weights.flat, plain.weights.flat, atol=3e-3, rtol=0)
    assert overflowing.optimizer.tick == 1


def test_a_gradient_that_no_scale_makes_finite_changes_nothing(monkeypatch):
    one = trainer(precision="float16")
    before, scale = one.weights.flat.clone(), one.arithmetic.scale
    one.begin(None)
    one.accumulate(columns_of(4))
    monkeypatch.setattr(one, "_backward", lambda rows, totals: one.optimizer.grad.fill_(torch.inf))
    one.optimizer.grad.fill_(torch.nan)
    with pytest.raises(NonFiniteStep, match="the gradient norm is"):
        one.finish()

    assert torch.equal(one.weights.flat, before)
    assert (one.arithmetic.scale, one.optimizer.tick) == (scale, 0)
    monkeypatch.undo()
    step(one, columns_of(4))
    assert one.optimizer.tick == 1


def test_the_loss_scale_grows_while_nothing_overflows_and_a_checkpoint_keeps_it(tmp_path):
    one = trainer(precision="float16")
    one.arithmetic.load_state({**one.arithmetic.state(), "_growth_tracker": 1999})
    step(one, columns_of(4))
    save_optimizer(one, tmp_path)
    other = trainer(precision="float16")
    load_optimizer(other, tmp_path)
    plain = trainer()
    load_optimizer(plain, tmp_path)

    assert one.arithmetic.scale == other.arithmetic.scale == 2048
    assert other.arithmetic.state() == one.arithmetic.state()
    assert (plain.arithmetic.scale, plain.optimizer.tick) == (1.0, 1)


@pytest.mark.parametrize("dtype", ["float32", *SIXTEEN_BITS])
def test_shards_get_the_parameters_rounded_to_the_model_s_type_and_know_them_by_digest(dtype, tmp_path):
    writer = WeightWriter(build_model(MODEL), getattr(torch, dtype))
    served = build_model(replace(MODEL, seed=7, dtype=dtype))
    reader = WeightReader(served)
    paths = (str(tmp_path / "a"), str(tmp_path / "b"))
    reader.attach(paths, writer.create(paths))
    buffer, size, digest = writer.publish()
    reader.load(buffer, digest)

    expected = build_model(replace(MODEL, dtype=dtype))
    assert size == sum(p.numel() * p.element_size() for p in expected.parameters())
    assert reader.digest() == digest
    for found, parameter in zip(served.parameters(), expected.parameters(), strict=True):
        assert torch.equal(found, parameter)


def test_a_shard_of_another_type_cannot_attach(tmp_path):
    writer = WeightWriter(build_model(MODEL), torch.bfloat16)
    reader = WeightReader(build_model(replace(MODEL, dtype="float16")))
    paths = (str(tmp_path / "a"), str(tmp_path / "b"))
    with pytest.raises(ValueError, match=r"in bfloat16, this shard's has .* in float16"):
        reader.attach(paths, writer.create(paths))


@pytest.mark.parametrize("dtype", SIXTEEN_BITS)
def test_what_an_engine_of_16_bits_samples_the_trainer_scores_alike(dtype):
    engine = Engine(build_model(replace(MODEL, dtype=dtype)).requires_grad_(False), ENGINE, clock=lambda: 0.0)
    outputs = []
    for seed in range(4):
        engine.submit((1, 2, 3), Sampling(max_new_tokens=12), seed, outputs.append)
    while engine.busy:
        engine.step()
    one = trainer(precision=dtype)
    for made, logprobs, _, _ in outputs:
        token_ids = np.array([1, 2, 3, *made], np.int64)
        columns = {
            col.TOKEN_IDS: col.Jagged.of([token_ids], np.int64),
            col.TOKEN_MASK: col.Jagged.of([np.arange(len(token_ids)) >= 3], np.int8),
        }
        scored = one.logprobs(columns, frozenset({"policy"}))[col.PREVIOUS_LOGPROBS].values[3:]
        np.testing.assert_allclose(scored, logprobs, atol=ERRORS[dtype])


def test_rotary_frequencies_keep_their_precision(tmp_path):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=16, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, intermediate_size=48,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    model = build_model(replace(MODEL, shape=None, folder=str(tmp_path), dtype="bfloat16"))

    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert {b.dtype for name, b in model.named_buffers() if "inv_freq" in name} == {torch.float32}


def test_a_device_that_lacks_the_format_is_named_with_the_setting(monkeypatch):
    def unbuilt(*args, **kwargs):
        raise NotImplementedError('"rms_norm" not implemented for Half')

    monkeypatch.setattr(precision_module.F, "rms_norm", unbuilt)
    with pytest.raises(
        PrecisionUnsupported,
        match=r"spec\.training\.precision float16 does not work on device cpu: .*Half; use float32 there",
    ):
        check_precision("float16", CPU, "spec.training.precision")
    check_precision("float32", CPU, "spec.training.precision")


def test_a_loss_that_is_not_finite_is_no_matter_of_the_scale():
    columns = columns_of(4)
    columns[col.ADVANTAGES].values[:] = np.inf
    one = trainer(precision="float16", loss=LOSS)
    with pytest.raises(NonFiniteStep, match="the loss is"):
        step(one, columns)
    assert one.arithmetic.scale == 1024
