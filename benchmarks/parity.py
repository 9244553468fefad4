"""B11 and B12: engine and trainer give equal log-probs, and no split of a step shows in loss or gradient.

    PYTHONPATH=tests python benchmarks/parity.py [--quick]

Float32 on one thread. Requests of different lengths join a running batch, and between two tokens the weights
change and the cache is computed again. The trainer then gives its log-probs of the same tokens, each under
the weights that made it, from whole rows in micro-batches. Weights are random and wide: far from uniform.
"""

import sys
import time
from dataclasses import replace

import numpy as np
import torch
from adapters.split_steps import LOSSES, SPLITS, whole_and_split
from adapters.torch_bench import LOSS, SHAPE
from common import Report, arguments

from asyncrl_runtime.adapters.torch.engine import Engine
from asyncrl_runtime.adapters.torch.loading import build_model
from asyncrl_runtime.adapters.torch.policy import PolicyTrainer
from asyncrl_runtime.adapters.torch.settings import EngineSettings, TorchModelSettings, TrainerSettings
from asyncrl_runtime.ports import columns as col
from asyncrl_runtime.ports.columns import Jagged
from asyncrl_runtime.ports.generator import Sampling

LOGPROB_BOUND, SPLIT_BOUND = 1e-5, 1e-6
WIDENED = 6.0
SHAPES = {
    "llama": SHAPE,
    "qwen2": replace(SHAPE, qkv_bias=True, tied_embeddings=False, rope_theta=1e6),
}
SAMPLINGS = {
    "temperature 1": {},
    "temperature 0.7": {"temperature": 0.7},
    "top-k 5, top-p 0.8": {"top_k": 5, "top_p": 0.8},
}


def widened(shape, version):
    """A model whose matrices are scaled up."""
    model = build_model(TorchModelSettings(shape=shape, seed=version)).requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.mul_(WIDENED)
    return model


def generate(shape, sampling, requests, new_tokens):
    """(prompt, output) of requests that join a batch in threes; new weights come half-way."""
    model = widened(shape, 0)
    settings = EngineSettings(
        model=TorchModelSettings(shape=shape),
        max_sequence_tokens=shape.max_positions,
        max_running_requests=16,
    )
    engine, rng, done = Engine(model, settings, clock=time.monotonic), np.random.default_rng(0), {}
    engine.version = 0
    for request in range(requests):
        prompt = tuple(rng.integers(0, shape.vocab_size, rng.integers(2, 40)).tolist())
        asked = Sampling(max_new_tokens=int(rng.integers(1, new_tokens + 1)), **sampling)
        engine.submit(
            prompt, asked, request, lambda output, r=request, p=prompt: done.update({r: (p, output)})
        )
        if request % 3 == 2:
            engine.step()
    while engine.busy:
        engine.step()
        if engine.version == 0 and engine.generated_tokens > requests * new_tokens / 4:
            model.load_state_dict(widened(shape, 1).state_dict())
            engine.version = 1
            engine.invalidate_kv_cache()
    return [done[request] for request in range(requests)]


def trainer_logprobs(shape, sampling, made, version):
    """Of every generated token, under the weights of one version."""
    settings = TrainerSettings(
        model=TorchModelSettings(shape=shape), loss=LOSS, micro_batch_rows=5, **sampling
    )
    rows = [[*prompt, *output[0]] for prompt, output in made]
    masks = [[0] * len(prompt) + [1] * len(output[0]) for prompt, output in made]
    columns = {col.TOKEN_IDS: Jagged.of(rows, np.int64), col.TOKEN_MASK: Jagged.of(masks, np.int8)}
    found = PolicyTrainer(widened(shape, version), settings).logprobs(columns, frozenset({"policy"}))
    found = found[col.PREVIOUS_LOGPROBS].rows()
    return np.concatenate([row[len(prompt) :] for row, (prompt, _) in zip(found, made, strict=True)])


def compare(report, name, shape, sampling, requests, new_tokens):
    """One cell of B11."""
    made = generate(shape, sampling, requests, new_tokens)
    logprobs, versions = (np.concatenate([output[field] for _, output in made]) for field in (1, 2))
    ours = [trainer_logprobs(shape, sampling, made, version) for version in (0, 1)]
    difference = np.abs(np.where(versions == 0, *ours) - logprobs)
    report.at_most(f"{name}: largest difference", float(difference.max()), LOGPROB_BOUND, "nats")
    report.note(f"{name}: mean difference", float(difference.mean()), "nats")
    report.note(f"{name}: mean log-prob of {len(logprobs):,} tokens", float(logprobs.mean()), "nats")
    report.note(f"{name}: share made by the first weights", float((versions == 0).mean()))


def split_differences(report):
    """B12. Gradients as a share of their largest element."""
    for loss in LOSSES:
        for split in SPLITS if loss != "nll" else ["single rows"]:
            whole, parts = whole_and_split(loss, split)
            (metrics, *_), (split_metrics, *_) = whole.report, parts.report
            report.at_most(
                f"loss {loss}, {split}: loss", abs(metrics["loss"] - split_metrics["loss"]), SPLIT_BOUND
            )
            gradients = float((whole.raw - parts.raw).abs().max() / whole.raw.abs().max())
            report.at_most(f"loss {loss}, {split}: gradient", gradients, SPLIT_BOUND)


def main():
    quick = arguments(__doc__).quick
    torch.set_num_threads(1)
    requests, new_tokens = (12, 40) if quick else (96, 200)
    report = Report("log-probs of engine and trainer")
    for shape_name, shape in SHAPES.items():
        for name, sampling in SAMPLINGS.items():
            compare(report, f"{shape_name}, {name}", shape, sampling, requests, new_tokens)
    print("a step in one chunk and in parts")
    split_differences(report)
    return report.exit_status()


if __name__ == "__main__":
    sys.exit(main())
