"""Tokens per second of vLLM's CPU build on a model folder, as one JSON line. Run by engine_throughput.py."""

import argparse
import json
import sys
import time
from pathlib import Path


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a model without a tokenizer")
    parser.add_argument(
        "--cases", required=True, help="JSON: [[prompts, new tokens], ...]; a prompt is a list of tokens"
    )
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--eager", action="store_true", help="do not compile")
    asked = parser.parse_args()

    from vllm import LLM, SamplingParams

    llm = LLM(
        model=str(asked.folder),
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=256,
        enforce_eager=asked.eager,
        disable_log_stats=True,
    )
    rates = []
    for prompts, new_tokens in json.loads(asked.cases):
        sampling = SamplingParams(
            temperature=1.0, max_tokens=new_tokens, ignore_eos=True, logprobs=0, detokenize=False
        )
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        best = 0.0
        for _ in range(asked.repeats + 1):
            began = time.perf_counter()
            made = llm.generate(requests, sampling, use_tqdm=False)
            seconds = time.perf_counter() - began
            best = max(best, sum(len(output.outputs[0].token_ids) for output in made) / seconds)
        rates.append(best)
    sys.__stdout__.write(json.dumps({"tokens_per_second": rates}) + "\n")


if __name__ == "__main__":
    main()
