"""Engine, trainer and weight sync on a GPU, in each number format. Run by hand: `pytest tests/gpu`."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from adapters.torch_bench import TRAINER, columns_of, meta_of

from asyncrl_runtime.adapters.in_process_plane import InProcessPlane
from asyncrl_runtime.adapters.torch.engine import Engine
from asyncrl_runtime.adapters.torch.generator import TorchGenerator
from asyncrl_runtime.adapters.torch.loading import build_model
from asyncrl_runtime.adapters.torch.policy import PolicyTrainer
from asyncrl_runtime.adapters.torch.settings import EngineSettings, OptimizerSettings, TorchModelSettings
from asyncrl_runtime.adapters.torch.shape import DecoderShape
from asyncrl_runtime.adapters.torch.shared_memory_sync import SharedMemorySync
from asyncrl_runtime.adapters.torch.trainer import TorchTrainer
from asyncrl_runtime.adapters.torch.weight_buffers import WeightReader
from asyncrl_runtime.ports import columns as col
from asyncrl_runtime.ports.columns import Jagged
from asyncrl_runtime.ports.generator import GenerationRequest, Sampling

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

DEVICE = "cuda"
SHAPE = DecoderShape(
    vocab_size=1024,
    hidden_size=512,
    num_layers=4,
    num_heads=8,
    num_kv_heads=4,
    head_dim=64,
    intermediate_size=1024,
    max_positions=512,
)
MODEL = TorchModelSettings(shape=SHAPE, seed=1, device=DEVICE)
DTYPES = ["float32", "bfloat16", "float16"]
MEAN_GAP = {"float32": 1e-5, "bfloat16": 0.02, "float16": 0.003}
"""Of a token's log-prob, engine against trainer: mean over tokens, and five times that for the worst."""


def trainer_of(dtype, **changes):
    settings = replace(
        TRAINER,
        model=replace(MODEL, dtype=dtype),
        precision=dtype,
        optimizer=OptimizerSettings(lr=1e-3),
        micro_batch_rows=8,
        logprob_batch_rows=8,
    )
    return PolicyTrainer(build_model(MODEL), replace(settings, **changes))


def engine_of(dtype):
    model = build_model(replace(MODEL, dtype=dtype)).requires_grad_(False)
    return Engine(model, EngineSettings(model=MODEL, max_sequence_tokens=256), clock=lambda: 0.0)


def prompts(count):
    rng = np.random.default_rng(0)
    return [tuple(rng.integers(0, SHAPE.vocab_size, 5 + 7 * n % 60).tolist()) for n in range(count)]


def generated(engine, count=24, **sampling):
    """Prompt and output of each request."""
    asked, outputs = prompts(count), {}
    for number, prompt in enumerate(asked):
        engine.submit(
            prompt,
            Sampling(max_new_tokens=20 + number, **sampling),
            number,
            lambda output, number=number: outputs.update({number: output}),
        )
    while engine.busy:
        engine.step()
    return [(prompt, outputs[number]) for number, prompt in enumerate(asked)]


def columns_from(samples):
    """Rows of what was generated."""
    rows = [np.array([*prompt, *output[0]]) for prompt, output in samples]
    masks = [np.arange(len(row)) >= len(prompt) for row, (prompt, _) in zip(rows, samples, strict=True)]
    logprobs = [np.r_[np.zeros(len(prompt)), output[1]] for prompt, output in samples]
    rng = np.random.default_rng(1)
    return {
        col.TOKEN_IDS: Jagged.of(rows, np.int64),
        col.TOKEN_MASK: Jagged.of(masks, np.int8),
        col.GENERATION_LOGPROBS: Jagged.of(logprobs, np.float32),
        col.ADVANTAGES: Jagged.of([mask * rng.normal() for mask in masks], np.float32),
        col.SAMPLE_MASK: Jagged.scalars(np.ones(len(rows)), np.float32),
    }


def assert_alike(found, expected, dtype):
    gaps = np.abs(np.asarray(found) - np.asarray(expected))
    assert gaps.mean() < MEAN_GAP[dtype]
    assert gaps.max() < 5 * MEAN_GAP[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_generation_gives_a_log_prob_and_a_version_for_every_token(dtype):
    engine = engine_of(dtype)
    engine.version = 3
    for prompt, (tokens, logprobs, versions, reason) in generated(engine, top_k=50, temperature=0.8):
        assert len(tokens) == len(logprobs) == len(versions) >= 20, prompt
        assert np.isfinite(logprobs).all()
        assert max(logprobs) <= 1e-6
        assert set(versions) == {3}
        assert reason == "length"
        assert max(tokens) < SHAPE.vocab_size


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_trainer_scores_what_the_engine_sampled_alike(dtype, packing):
    columns = columns_from(generated(engine_of(dtype)))
    trainer = trainer_of(dtype, micro_batch_tokens=700, packing=packing)
    scored = trainer.logprobs(columns, frozenset({"policy"}))[col.PREVIOUS_LOGPROBS].values
    made = columns[col.TOKEN_MASK].values != 0

    assert_alike(scored[made], columns[col.GENERATION_LOGPROBS].values[made], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_moves_float32_parameters_and_makes_good_tokens_likelier(dtype):
    columns = columns_from(generated(engine_of(dtype)))
    trainer = trainer_of(dtype)
    policy = frozenset({"policy"})
    columns |= trainer.logprobs(columns, policy)
    trainer.begin(None)
    trainer.accumulate(columns)
    metrics, tokens, rows = trainer.finish()
    after = trainer.logprobs(columns, policy)[col.PREVIOUS_LOGPROBS].values
    change = after - columns[col.PREVIOUS_LOGPROBS].values

    assert (tokens, rows) == (int(columns[col.TOKEN_MASK].values.sum()), 24)
    assert np.isfinite(list(metrics.values())).all()
    assert metrics["grad_norm"] > 0
    assert ("loss_scale" in metrics) == (dtype == "float16")
    assert trainer.weights.flat.dtype == torch.float32
    assert (change * columns[col.ADVANTAGES].values).sum() > 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_rows_give_the_gradient_of_padded_ones(dtype):
    columns = columns_from(generated(engine_of(dtype)))
    gradients = []
    for changes in ({"micro_batch_rows": 4}, {"micro_batch_tokens": 600, "packing": True}):
        trainer = trainer_of(dtype, **changes)
        columns |= trainer.logprobs(columns, frozenset({"policy"}))
        trainer.begin(None)
        trainer.accumulate(columns)
        trainer.arithmetic.unscale(trainer.optimizer)
        gradients.append(trainer.optimizer.grad)
    padded, packed = gradients
    gap = (packed - padded).norm() / padded.norm()

    assert padded.isfinite().all()
    assert gap < {"float32": 1e-5, "bfloat16": 0.05, "float16": 0.01}[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_float16_gradient_that_overflows_is_computed_again(dtype):
    columns = columns_from(generated(engine_of(dtype)))
    trainer = trainer_of(dtype)
    columns |= trainer.logprobs(columns, frozenset({"policy"}))
    if dtype == "float16":
        trainer.arithmetic.load_state({**trainer.arithmetic.state(), "scale": 2.0**30})
    trainer.begin(None)
    trainer.accumulate(columns)
    metrics, *_ = trainer.finish()

    assert np.isfinite(metrics["grad_norm"])
    assert metrics.get("loss_scale", 1.0) < 2.0**30


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_change_between_two_tokens(dtype, tmp_path):
    trainer, engine = trainer_of(dtype), engine_of(dtype)
    trainer.weights.flat.mul_(1.01)
    reader = WeightReader(engine.model)
    paths = (str(tmp_path / "a"), str(tmp_path / "b"))
    reader.attach(paths, trainer.weights.create(paths))
    outputs = []
    engine.version = 0
    prompt = prompts(4)[3]
    engine.submit(prompt, Sampling(max_new_tokens=40), 5, outputs.append)
    for _ in range(10):
        engine.step()
    before = reader.digest()
    buffer, _, digest = trainer.weights.publish()
    reader.load(buffer, digest)
    engine.version = 1
    engine.invalidate_kv_cache()
    while engine.busy:
        engine.step()
    ((tokens, logprobs, versions, _),) = outputs
    columns = columns_from([(prompt, outputs[0])])
    scored = trainer.logprobs(columns, frozenset({"policy"}))[col.PREVIOUS_LOGPROBS].values[len(prompt) :]

    assert before != reader.digest() == digest
    assert versions == [0] * 10 + [1] * 30
    assert len(tokens) == 40
    assert_alike(scored[10:], logprobs[10:], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_processes_of_trainer_and_shard_share_weights(dtype):
    """Forked workers bring CUDA up by themselves."""

    async def run():
        model = replace(MODEL, dtype=dtype)
        plane = InProcessPlane(1000)
        columns = columns_of(12)
        meta = meta_of(columns)
        await plane.put(meta.sample_ids, columns)
        shard = TorchGenerator(0, EngineSettings(model=model, max_sequence_tokens=128))
        trainer = TorchTrainer(replace(TRAINER, model=model, precision=dtype), plane)
        try:
            facts, _ = await asyncio.gather(trainer.start(), shard.start())
            sync = SharedMemorySync(lambda: trainer.worker, lambda: [shard])
            await sync.init_communicator()
            await sync.sync_weights(0)
            await trainer.begin()
            await trainer.accumulate(meta)
            report = await trainer.finish()
            landed = await sync.sync_weights(1)
            request = GenerationRequest("r", (1, 2, 3), Sampling(max_new_tokens=8), 0)
            return facts, report, landed, await shard.generate(request), shard.worker.pid
        finally:
            await asyncio.gather(trainer.close(), shard.close())

    facts, report, landed, result, _ = asyncio.run(run())

    assert facts.device.startswith(DEVICE)
    assert report.metrics["grad_norm"] > 0
    assert landed.participants == (0,)
    assert landed.bytes == facts.parameters * (4 if dtype == "float32" else 2)
    assert set(result.weight_versions) == {1}


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_model_of_transformers_is_served_and_trained(dtype, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=SHAPE.vocab_size, hidden_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, intermediate_size=512,
    )  # fmt: skip
    transformers.Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    named = TorchModelSettings(folder=str(tmp_path), device=DEVICE)
    served = build_model(replace(named, dtype=dtype)).requires_grad_(False)
    engine = Engine(served, EngineSettings(model=named, max_sequence_tokens=256), clock=lambda: 0.0)
    columns = columns_from(generated(engine, 8))
    settings = replace(TRAINER, model=replace(named, dtype=dtype), precision=dtype)
    trainer = PolicyTrainer(build_model(named), replace(settings, packing=True, micro_batch_tokens=300))
    columns |= trainer.logprobs(columns, frozenset({"policy"}))
    made = columns[col.TOKEN_MASK].values != 0
    assert_alike(
        columns[col.PREVIOUS_LOGPROBS].values[made], columns[col.GENERATION_LOGPROBS].values[made], dtype
    )
    trainer.begin(None)
    trainer.accumulate(columns)
    metrics, *_ = trainer.finish()

    assert metrics["grad_norm"] > 0
