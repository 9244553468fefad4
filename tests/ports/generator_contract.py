"""What every generation shard keeps; a test module subclasses it, with a `generator` fixture.

The fixture gives a started shard whose completions take at least `seconds` of loop time.
"""

import asyncio

import pytest

from asyncrl_runtime.core.errors import InfraFailure, WorkerDied
from asyncrl_runtime.ports.generator import GenerationRequest, Sampling


def request(name, *, prompt=(1, 2, 3), seed=0, max_new_tokens=4, **sampling):
    """A request for tokens below 16."""
    return GenerationRequest(name, tuple(prompt), Sampling(max_new_tokens=max_new_tokens, **sampling), seed)


async def running(generator, count, seconds=10.0):
    """Wait until the shard reports `count` requests."""
    async with asyncio.timeout(seconds):
        while True:
            state = await generator.probe()
            if state.running + state.waiting == count:
                return
            await asyncio.sleep(0.001)


class GeneratorContract:
    long_tokens = 100_000
    """Tokens of a request that is still running when it is looked at."""

    async def test_a_completion_says_per_token_what_produced_it(self, generator):
        result = await generator.generate(request("a"))
        state = await generator.probe()

        assert 1 <= len(result.token_ids) <= 4
        assert len(result.token_ids) == len(result.logprobs) == len(result.weight_versions)
        assert set(result.weight_versions) == {state.weight_version}
        assert all(logprob <= 0 for logprob in result.logprobs)
        assert result.finish_reason in ("stop", "length")
        assert state.generated_tokens >= len(result.token_ids)

    async def test_equal_requests_get_equal_completions_beside_others(self, generator):
        alone = await generator.generate(request("a", seed=5))
        crowd = await asyncio.gather(
            *(generator.generate(request(f"b{n}", seed=n, prompt=range(1, 3 + n))) for n in range(5)),
            generator.generate(request("a", seed=5)),
        )

        assert crowd[-1].token_ids == alone.token_ids

    async def test_a_cancelled_call_aborts_its_request(self, generator):
        calls = [
            asyncio.ensure_future(generator.generate(request(f"a{n}", max_new_tokens=self.long_tokens)))
            for n in range(3)
        ]
        await running(generator, 3)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

        await running(generator, 0)

    async def test_the_cache_can_be_recomputed_while_requests_run(self, generator):
        call = asyncio.ensure_future(generator.generate(request("a", max_new_tokens=8)))
        await asyncio.sleep(0)
        await generator.invalidate_kv_cache()

        assert len((await call).token_ids) >= 1

    async def test_a_closed_shard_answers_with_an_infrastructure_failure(self, generator):
        await generator.close()
        await generator.close()

        with pytest.raises(InfraFailure):
            await generator.generate(request("a"))

    async def test_a_killed_shard_is_heard_of_and_its_requests_fail(self, generator):
        call = asyncio.ensure_future(generator.generate(request("a", max_new_tokens=self.long_tokens)))
        await running(generator, 1)
        end = asyncio.ensure_future(generator.until_ended())
        await asyncio.sleep(0)
        assert not end.done()
        generator.kill()
        generator.kill()

        assert await asyncio.wait_for(end, 5.0)
        with pytest.raises(WorkerDied):
            await call
        assert await generator.until_ended()
        assert not generator.alive

    async def test_a_killed_shard_starts_anew_without_weights(self, generator):
        generator.kill()
        await generator.start()

        assert generator.alive
        assert (await generator.probe()).weight_version == -1
        await generator.ping()
        assert (await generator.generate(request("a"))).token_ids
