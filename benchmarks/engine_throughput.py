"""Tokens per second of the torch engine on one thread, beside transformers.generate on the same model.

    python benchmarks/engine_throughput.py [--no-transformers]

Prints each figure beside its goal. Prompts are groups of 16 equal ones, as in training.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch

from asyncrl_runtime.adapters.torch.engine import Engine
from asyncrl_runtime.adapters.torch.loading import build_model
from asyncrl_runtime.adapters.torch.settings import EngineSettings, TorchModelSettings
from asyncrl_runtime.adapters.torch.shape import DecoderShape
from asyncrl_runtime.ports.generator import Sampling

SHAPE = DecoderShape(
    vocab_size=16,
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=4,
    head_dim=16,
    intermediate_size=256,
    max_positions=256,
)
MODEL = TorchModelSettings(shape=SHAPE)
PROMPT_TOKENS = 8
CASES = ((256, 6, 40_000), (256, 16, 40_000), (64, 128, 8_400))
"""Requests, new tokens each, goal in tokens per second (the last: vLLM's compiled CPU build, measured)."""


def prompt(request):
    return tuple((request // 16 * 7 + at) % SHAPE.vocab_size for at in range(PROMPT_TOKENS))


def engine_rate(requests, new_tokens, repeats=5):
    settings = EngineSettings(model=MODEL, max_sequence_tokens=PROMPT_TOKENS + new_tokens)
    engine = Engine(build_model(MODEL).requires_grad_(False), settings, clock=time.monotonic)
    engine.warm_up()
    best = 0.0
    for _ in range(repeats):
        made = []
        began = time.perf_counter()
        for request in range(requests):
            engine.submit(prompt(request), Sampling(max_new_tokens=new_tokens), request, made.append)
        while engine.busy:
            engine.step()
        best = max(best, sum(len(output[0]) for output in made) / (time.perf_counter() - began))
    return best


def transformers_rate(requests, new_tokens, repeats=2):
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()

    with tempfile.TemporaryDirectory() as folder:
        build_model(MODEL).save(Path(folder))
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    token_ids = torch.tensor([prompt(request) for request in range(requests)])
    best = 0.0
    for _ in range(repeats):
        began = time.perf_counter()
        made = model.generate(
            token_ids,
            attention_mask=torch.ones_like(token_ids),
            do_sample=True,
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            pad_token_id=0,
        )
        rate = (made.shape[1] - PROMPT_TOKENS) * requests / (time.perf_counter() - began)
        best = max(best, rate)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-transformers", action="store_true", help="leave the comparison out")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    columns = (("requests x tokens", 18), ("engine tok/s", 13), ("goal", 8), ("ratio", 6))
    columns += () if arguments.no_transformers else (("transformers", 13), ("speed-up", 9))
    print(" ".join(f"{name:>{width}}" for name, width in columns))
    for requests, new_tokens, goal in CASES:
        ours = engine_rate(requests, new_tokens)
        line = f"{f'{requests} x {new_tokens}':>18} {ours:>13,.0f} {goal:>8,} {ours / goal:>6.2f}"
        if not arguments.no_transformers:
            theirs = transformers_rate(requests, new_tokens)
            line += f" {theirs:>13,.0f} {ours / theirs:>8.1f}x"
        print(line, flush=True)


if __name__ == "__main__":
    main()
