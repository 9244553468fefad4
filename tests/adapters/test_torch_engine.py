import numpy as np
import pytest
import torch

from asyncrl_runtime.adapters.torch.engine import Engine
from asyncrl_runtime.adapters.torch.errors import BadRequest
from asyncrl_runtime.adapters.torch.model import Decoder
from asyncrl_runtime.adapters.torch.sampling import draw, filtered, uniforms
from asyncrl_runtime.adapters.torch.settings import EngineSettings, Tail, TorchModelSettings, engine_args
from asyncrl_runtime.adapters.torch.shape import DecoderShape
from asyncrl_runtime.ports.generator import Sampling

SHAPE = DecoderShape(
    vocab_size=24, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8,
    intermediate_size=48, max_positions=64,
)  # fmt: skip
MODEL = TorchModelSettings(shape=SHAPE)


class Bench:
    """An engine, a clock set by hand, and what came out by name."""

    def __init__(self, *, seed=0, scale=8.0, decode_text=None, **settings):
        self.now = 0.0
        self.model = Decoder.random(SHAPE, seed).requires_grad_(False)
        for parameter in self.model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(scale)  # far from uniform
        merged = {"max_sequence_tokens": 48, "max_running_requests": 8} | settings
        self.engine = Engine(
            self.model,
            EngineSettings(model=MODEL, **merged),
            clock=lambda: self.now,
            decode_text=decode_text,
        )
        self.outputs = {}

    def submit(self, name, prompt=(1, 2, 3), seed=0, **sampling):
        sampling = Sampling(**({"max_new_tokens": 8} | sampling))
        return self.engine.submit(tuple(prompt), sampling, seed, lambda out: self.outputs.update({name: out}))

    def run(self):
        while self.engine.busy:
            self.engine.step()
        return self.outputs

    def expected_logprobs(self, prompt, output, top_k=0, top_p=1.0, temperature=1.0):
        sequence = torch.tensor([[*prompt, *output[0]]])
        logits = self.model.logits(sequence, torch.ones(sequence.shape, dtype=torch.bool)) / temperature
        logprobs = filtered(logits, top_k, top_p).log_softmax(-1)
        made = range(len(prompt) - 1, sequence.shape[1] - 1)
        return [logprobs[at, sequence[0, at + 1]].item() for at in made]


def test_a_completion_depends_on_seed_prompt_and_weights_alone():
    alone = Bench()
    alone.submit("x", seed=7)
    crowd = Bench(max_running_requests=3)
    for n in range(4):
        crowd.submit(n, prompt=range(1, 3 + n), seed=100 + n, max_new_tokens=2 + n)
    crowd.submit("x", seed=7)
    crowd.submit("same prompt", seed=8)

    assert crowd.run()["x"][0] == alone.run()["x"][0]
    assert crowd.outputs["same prompt"][0] != crowd.outputs["x"][0]
    assert crowd.engine.running == 0


@pytest.mark.parametrize(
    "sampling",
    [{}, {"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.6}, {"temperature": 1.3, "top_k": 5, "top_p": 0.8}],
)
def test_logprobs_are_those_of_the_distribution_that_was_sampled(sampling):
    bench = Bench()
    for seed in range(6):
        bench.submit(seed, prompt=range(1, 3 + seed), seed=seed, **sampling)
    for seed, output in bench.run().items():
        where = {"top_k": 0, **sampling}
        expected = bench.expected_logprobs(range(1, 3 + seed), output, **where)

        np.testing.assert_allclose(output[1], expected, atol=1e-5)


def test_greedy_takes_the_most_likely_token():
    bench = Bench()
    bench.submit("greedy", temperature=0.0)
    bench.submit("sampled", temperature=1.0, seed=5)
    output = bench.run()["greedy"]
    sequence = torch.tensor([[1, 2, 3, *output[0]]])
    logits = bench.model.logits(sequence, torch.ones(sequence.shape, dtype=torch.bool))

    assert logits.argmax(-1)[2:-1].tolist() == output[0]
    np.testing.assert_allclose(output[1], bench.expected_logprobs((1, 2, 3), output), atol=1e-5)


def test_sampled_frequencies_follow_the_distribution():
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]]).expand(20_000, 4)
    numbers = torch.from_numpy(uniforms(np.arange(20_000, dtype=np.uint64), np.zeros(20_000, np.int64)))
    tokens, logprobs = draw(logits, numbers)
    frequencies = torch.bincount(tokens, minlength=4) / 20_000

    torch.testing.assert_close(frequencies, logits[0].softmax(-1), atol=0.01, rtol=0)
    torch.testing.assert_close(logprobs, logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0])


def test_filters_keep_the_crossing_token_and_top_k_comes_first():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()

    def kept(top_k, top_p):
        return torch.isfinite(filtered(logits, top_k, top_p))[0].tolist()

    assert kept(0, 1.0) == [True] * 4
    assert kept(2, 1.0) == [True, True, False, False]
    assert kept(0, 0.6) == [True, True, False, False]
    assert kept(0, 0.1) == [True, False, False, False]
    assert kept(2, 0.6) == [True, False, False, False]  # of the two that are left, 0.625 alone crosses


def test_draws_at_the_edges_take_no_filtered_token():
    logits = torch.tensor([[float("-inf"), 0.0, 0.0, float("-inf")]]).expand(2, 4)
    tokens, _ = draw(logits, torch.tensor([0.0, 1.0 - 2**-53], dtype=torch.float64))

    assert tokens.tolist() == [1, 2]


def test_stop_tokens_end_a_completion_and_belong_to_it():
    free = Bench()
    free.submit("x", seed=3)
    tokens = free.run()["x"][0]
    first = tokens.index(tokens[2])
    by_request, by_engine = Bench(), Bench(end_token_ids=(tokens[2],))
    by_request.submit("x", seed=3, stop_token_ids=(tokens[2],))
    by_engine.submit("x", seed=3)

    for bench in (by_request, by_engine):
        output = bench.run()["x"]
        assert (output[0], output[3]) == (tokens[: first + 1], "stop")
    assert free.outputs["x"][3] == "length"


def test_stop_strings_end_a_completion():
    def text(token_ids):
        return "".join(chr(97 + token) for token in token_ids)

    bench = Bench(decode_text=text)
    bench.submit("free", seed=3)
    tokens = bench.run()["free"][0]
    bench.submit("x", seed=3, stop_strings=(text(tokens[3:5]),))
    output = bench.run()["x"]

    assert text(tokens[3:5]) in text(output[0])
    assert text(tokens[3:5]) not in text(output[0][:-1])
    assert output[3] == "stop"


def test_lengths_are_limited_by_the_request_and_by_the_engine():
    bench = Bench(max_sequence_tokens=10)
    bench.submit("request", max_new_tokens=2)
    bench.submit("engine", max_new_tokens=50)
    bench.run()

    assert [len(bench.outputs[name][0]) for name in ("request", "engine")] == [2, 7]
    assert {output[3] for output in bench.outputs.values()} == {"length"}


def test_requests_that_cannot_be_served_say_why():
    bench = Bench(max_sequence_tokens=10)
    with pytest.raises(BadRequest, match="a prompt of 10 tokens leaves no room below the limit of 10"):
        bench.submit("x", prompt=[1] * 10)
    with pytest.raises(BadRequest, match="below 24"):
        bench.submit("x", prompt=[24])
    with pytest.raises(BadRequest, match="tokenizer"):
        bench.submit("x", stop_strings=("a",))
    assert bench.engine.state.waiting == 0


@pytest.mark.parametrize("steps", [0, 2])
def test_an_abort_frees_the_slot_and_leaves_the_others_alone(steps):
    bench, quiet = Bench(), Bench()
    requests = [bench.submit(n, seed=n) for n in range(3)]
    for _ in range(steps):
        bench.engine.step()
    bench.engine.abort(requests[0])
    bench.run()
    for n in (1, 2):
        quiet.submit(n, seed=n)

    assert bench.outputs.keys() == {1, 2}
    assert {n: output[0] for n, output in bench.outputs.items()} == {
        n: output[0] for n, output in quiet.run().items()
    }
    assert bench.engine.running == bench.engine.state.waiting == 0


def test_tokens_carry_the_version_of_the_weights_that_made_them():
    bench = Bench()
    bench.engine.version = 4
    bench.submit("x", max_new_tokens=6)
    bench.engine.step()
    bench.engine.step()
    bench.engine.version = 5
    bench.submit("late", max_new_tokens=2)

    assert bench.run()["x"][2] == [4, 4, 5, 5, 5, 5]
    assert bench.outputs["late"][2] == [5, 5]


def test_the_cache_is_recomputed_under_new_weights():
    bench = Bench(max_prefill_tokens=8)
    prompts = {"a": (1, 2, 3), "b": (4, 5, 6, 7, 8), "c": (9,)}
    for seed, (name, prompt) in enumerate(prompts.items()):
        bench.submit(name, prompt=prompt, seed=seed, max_new_tokens=10)
    for _ in range(4):
        bench.engine.step()
    with torch.no_grad():
        for parameter in bench.model.parameters():
            parameter.mul_(1.1)
    bench.engine.invalidate_kv_cache()
    for name, output in bench.run().items():
        expected = bench.expected_logprobs(prompts[name], output)

        np.testing.assert_allclose(output[1][4:], expected[4:], atol=1e-5)


def test_without_recomputing_the_cache_keeps_old_keys():
    bench = Bench()
    bench.submit("x", max_new_tokens=10)
    for _ in range(4):
        bench.engine.step()
    with torch.no_grad():
        for parameter in bench.model.parameters():
            parameter.mul_(1.1)
    output = bench.run()["x"]

    assert np.abs(np.subtract(output[1], bench.expected_logprobs((1, 2, 3), output))[4:]).max() > 1e-3


def test_a_long_tail_holds_a_request_in_its_slot_while_others_go_on():
    bench = Bench(tail=Tail(probability=1.0, seconds=2.0), max_running_requests=2)
    bench.submit("a", max_new_tokens=1)
    bench.submit("b", max_new_tokens=3)
    bench.submit("c", max_new_tokens=1)
    bench.run()
    assert bench.outputs == {}
    assert (bench.engine.running, bench.engine.state.waiting) == (2, 1)
    assert bench.engine.next_release() == 2.0

    bench.now = 2.0
    bench.engine.release_held()
    assert bench.outputs.keys() == {"a", "b"}
    bench.run()
    assert bench.engine.running == 1
    bench.now = 4.0
    bench.engine.release_held()
    assert bench.outputs.keys() == {"a", "b", "c"}


def test_a_lognormal_tail_is_seeded_and_spread_about_its_median():
    bench = Bench(tail=Tail(median_seconds=1.0, sigma=0.5))
    for n in range(200):
        bench.submit(n, seed=n, max_new_tokens=1)
    dues = []
    while len(bench.outputs) < 200:
        bench.engine.step()
        due = bench.engine.next_release()
        started = bench.now
        bench.now = due
        bench.engine.release_held()
        dues.append(due - started)

    one = Bench(tail=Tail(median_seconds=1.0, sigma=0.5))
    one.submit("x", seed=12, max_new_tokens=1)
    one.run()
    again = Bench(tail=Tail(median_seconds=1.0, sigma=0.5))
    again.submit("x", seed=12, max_new_tokens=1)
    again.run()
    assert one.engine.next_release() == again.engine.next_release()
    assert len(set(dues)) > 100


def test_engine_args_are_checked_by_name_and_range():
    assert engine_args({"maxRunningRequests": 4, "tail": {"medianSeconds": 1, "sigma": 0.5}}) == {
        "max_running_requests": 4,
        "tail": Tail(median_seconds=1.0, sigma=0.5),
    }
    with pytest.raises(ValueError, match=r"unknown keys maxRunning; known ones are .*maxRunningRequests"):
        engine_args({"maxRunning": 4})
    with pytest.raises(ValueError, match="numThreads must be a whole number of at least 1, not 0"):
        engine_args({"numThreads": 0})
    with pytest.raises(ValueError, match="needs probability and seconds"):
        engine_args({"tail": {"probability": 0.5}})
    with pytest.raises(ValueError, match="at most 1"):
        engine_args({"tail": {"probability": 2, "seconds": 1}})
