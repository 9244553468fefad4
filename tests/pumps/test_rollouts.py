"""Rolling prompts out: siblings, turns, limits, seeds."""

import asyncio
from dataclasses import dataclass, field

import pytest

from asyncrl_runtime.adapters.scripted import ScriptedTokenizer
from asyncrl_runtime.adapters.scripted_fleet import ScriptedGenerator
from asyncrl_runtime.core.errors import (
    DataFailure,
    DeadlinePassed,
    EnvironmentFailure,
    FleetExhausted,
    InfraFailure,
)
from asyncrl_runtime.core.records import Prompt, PromptRef
from asyncrl_runtime.ports.environment import EnvironmentStep
from asyncrl_runtime.ports.generator import Sampling
from asyncrl_runtime.pumps.fleet import Fleet
from asyncrl_runtime.pumps.rollouts import PromptTooLong, RolloutManager, rollout_seed

pytestmark = pytest.mark.looptime


@dataclass
class Dialogue:
    """An environment that answers each turn with the next line of a script, and ends after the last."""

    lines: tuple = ()
    reward: float = 1.0
    seconds: float = 0.0
    step_of: object = None
    name: str = "dialogue"
    seen: list = field(default_factory=list)

    async def step(self, episode):
        self.seen.append(episode)
        await asyncio.sleep(self.seconds)
        if self.step_of:
            return self.step_of(episode)
        turn = len([t for t in episode.turns if t.role == "assistant"])
        if turn <= len(self.lines):
            return EnvironmentStep(self.reward, terminated=False, observation=self.lines[turn - 1])
        return EnvironmentStep(self.reward)


@dataclass
class Bench:
    environment: object = field(default_factory=Dialogue)
    seconds: object = lambda request: 1.0
    tokens: object = lambda request: 3
    failing: object = lambda request: None
    max_turns: int = 8
    max_total_tokens: int = 64
    max_new_tokens: int = 512
    generation_timeout: float | None = None
    environment_timeout: float | None = None

    def __post_init__(self):
        self.requests = []

        def seconds(request):
            self.requests.append(request)
            return self.seconds(request)

        self.shard = ScriptedGenerator(
            index=0, seconds=seconds, tokens=self.tokens, failing=self.failing, weight_version=7
        )
        self.manager = RolloutManager(
            fleet=Fleet(shards=[self.shard]),
            environment=self.environment,
            tokenizer=ScriptedTokenizer(),
            sampling=Sampling(max_new_tokens=self.max_new_tokens),
            max_total_tokens=self.max_total_tokens,
            max_turns=self.max_turns,
            generation_timeout_seconds=self.generation_timeout,
            environment_timeout_seconds=self.environment_timeout,
            run_seed=1,
        )

    async def roll(self, text="ab", generations=1, **rest):
        prompt = Prompt(PromptRef(0, 3), ({"role": "user", "content": text},))
        return await self.manager.roll_group(prompt, group_id="g", attempt=2, generations=generations, **rest)

    async def roll_one(self, text="ab"):
        (done,) = (await self.roll(text)).completions
        lengths = {len(done.token_ids), len(done.token_mask), len(done.logprobs), len(done.weight_versions)}
        assert len(lengths) == 1
        return done


async def test_a_single_turn_says_per_token_where_it_came_from(looptime):
    done = await Bench(Dialogue(seconds=0.5)).roll_one()
    assert done.token_ids == [97, 98, 1, 1, 1]
    assert done.token_mask == [0, 0, 1, 1, 1]
    assert done.logprobs == [0.0, 0.0, -1.0, -1.0, -1.0]
    assert done.weight_versions == [-1, -1, 7, 7, 7]
    assert (done.prompt_tokens, done.generated_tokens, done.turns, done.reward) == (2, 3, 1, 1.0)
    assert (done.generation_seconds, done.environment_seconds) == (1.0, 0.5)
    assert not done.truncated
    assert not done.max_turns_reached
    assert looptime == 1.5


async def test_turns_are_joined_by_observations_that_are_not_trained_on():
    environment = Dialogue(lines=("xy", "z"), reward=0.25)
    done = await Bench(environment).roll_one()
    assert done.token_ids == [97, 98, 1, 1, 1, 120, 121, 1, 1, 1, 122, 1, 1, 1]
    assert done.token_mask == [0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1]
    assert [v for v, m in zip(done.weight_versions, done.token_mask, strict=True) if not m] == [-1] * 5
    assert (done.turns, done.reward, done.generated_tokens) == (3, 0.75, 9)
    assert [turn.role for turn in environment.seen[-1].turns] == [
        "assistant",
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    assert done.text == "\n".join(["\x01\x01\x01"] * 3)


async def test_each_turn_is_asked_for_with_everything_before_it():
    bench = Bench(Dialogue(lines=("xy",)))
    await bench.roll_one()
    assert [request.token_ids for request in bench.requests] == [(97, 98), (97, 98, 1, 1, 1, 120, 121)]
    assert [request.request_id for request in bench.requests] == ["g_a2_g0_t0", "g_a2_g0_t1"]


async def test_the_turn_limit_ends_an_episode_and_is_noted():
    done = await Bench(Dialogue(lines=("x",) * 9), max_turns=2).roll_one()
    assert (done.turns, done.max_turns_reached, done.truncated) == (2, True, False)
    assert done.token_mask == [0, 0, 1, 1, 1, 0, 1, 1, 1]


async def test_the_length_limit_truncates_a_completion_and_is_told_to_the_environment():
    bench = Bench(Dialogue(lines=("x",)), tokens=lambda request: 50, max_new_tokens=4)
    done = await bench.roll_one()
    assert (done.truncated, done.turns, done.generated_tokens) == (True, 1, 4)
    assert bench.environment.seen[0].truncated


async def test_what_is_left_of_the_sequence_bounds_a_generation():
    bench = Bench(max_total_tokens=6, tokens=lambda request: 50)
    done = await bench.roll_one()
    assert bench.requests[0].sampling.max_new_tokens == 4
    assert len(done.token_ids) == 6
    assert done.truncated


@pytest.mark.parametrize(("observation", "kept"), [("wxyz", 4), ("uvwxyz", 4), ("uvwx", 4)])
async def test_sc_5_27_an_observation_is_cut_to_fit_and_truncates(observation, kept):
    bench = Bench(Dialogue(lines=(observation,)), max_total_tokens=9)
    done = await bench.roll_one()
    assert len(done.token_ids) == 9
    assert done.token_mask == [0, 0, 1, 1, 1] + [0] * kept
    assert (done.truncated, done.turns) == (True, 1)


async def test_an_observation_that_leaves_one_token_of_room_goes_on():
    done = await Bench(Dialogue(lines=("xyz",)), max_total_tokens=9).roll_one()
    assert (done.turns, done.generated_tokens, done.truncated) == (2, 4, True)


@pytest.mark.parametrize("text", ["", "a" * 64, "a" * 80])
async def test_a_prompt_without_room_for_an_answer_is_at_fault(text):
    bench = Bench()
    with pytest.raises(PromptTooLong, match=rf"prompt 3 .* has {len(text)} tokens.*is 64: raise it or drop"):
        await bench.roll(text)
    assert issubclass(PromptTooLong, DataFailure)
    assert bench.requests == []


async def test_flags_and_reward_components_add_up_over_turns():
    steps = iter(
        [
            EnvironmentStep(1.0, terminated=False, observation="x", components={"a": 1.0}, flagged=True),
            EnvironmentStep(2.0, components={"a": 0.5, "b": 4.0}),
        ]
    )
    done = await Bench(Dialogue(step_of=lambda episode: next(steps))).roll_one()
    assert (done.reward, done.reward_components, done.flagged) == (3.0, {"a": 1.5, "b": 4.0}, True)


async def test_an_environment_that_neither_ends_nor_observes_is_at_fault():
    bench = Bench(Dialogue(step_of=lambda episode: EnvironmentStep(0.0, terminated=False)))
    with pytest.raises(EnvironmentFailure, match="neither an end nor an observation"):
        await bench.roll()


async def test_the_stop_token_is_no_part_of_the_text():
    bench = Bench()
    object.__setattr__(bench.manager, "tokenizer", ScriptedTokenizer(eos_token_id=1))
    assert (await bench.roll_one()).text == "\x01\x01"


# ── siblings ────────────────────────────────────────────────────────────────────────────────────────


async def test_siblings_run_side_by_side_in_order(looptime):
    bench = Bench(seconds=lambda request: 5.0 - int(request.request_id.split("_g")[1][0]))
    done = (await bench.roll(generations=4)).completions
    assert [c.generation_seconds for c in done] == [5.0, 4.0, 3.0, 2.0]
    assert looptime == 5


async def test_sc_14_36_and_14_37_a_failing_sibling_ends_the_group_without_a_row(looptime):
    bench = Bench(
        seconds=lambda request: 2.0 if "_g1_" in request.request_id else 9.0,
        failing=lambda request: InfraFailure("lost") if "_g1_" in request.request_id else None,
    )
    with pytest.raises(InfraFailure, match="lost"):
        await bench.roll(generations=3)
    assert looptime == 2
    assert bench.shard.aborted == ["g_a2_g0_t0", "g_a2_g2_t0"]
    assert bench.shard.running == 0


async def test_sc_14_38_cancelling_a_group_cancels_its_requests():
    bench = Bench(seconds=lambda request: 9.0)
    task = asyncio.create_task(bench.roll(generations=2))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(bench.shard.aborted) == 2
    assert bench.shard.running == 0


async def test_every_generation_has_a_seed_of_its_own():
    bench = Bench(Dialogue(lines=("x", "y")))
    await bench.roll(generations=5)
    seeds = [request.seed for request in bench.requests]
    assert len(set(seeds)) == len(seeds) == 15
    assert all(0 <= seed < 2**63 for seed in seeds)
    again = Bench(Dialogue(lines=("x", "y")))
    await again.roll(generations=5)
    assert sorted(r.seed for r in again.requests) == sorted(seeds)


def test_seeds_differ_in_every_part_of_their_key():
    keys = [
        (run, group, attempt, sibling, turn)
        for run in range(3)
        for group in ("e0p1", "e0p11", "e1p1")
        for attempt in range(3)
        for sibling in range(12)
        for turn in range(12)
    ]
    assert len({rollout_seed(*key) for key in keys}) == len(keys)


async def test_sampling_can_be_chosen_per_call():
    bench = Bench()
    await bench.roll(sampling=Sampling(temperature=0.0, max_new_tokens=1))
    assert bench.requests[0].sampling.temperature == 0.0


# ── deadlines ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_generation_has_its_deadline(looptime):
    bench = Bench(seconds=lambda request: 9.0, generation_timeout=4.0)
    with pytest.raises(
        DeadlinePassed, match=r"generation g_a2_g0_t0 .* 4 s; raise .*generationTimeoutSeconds"
    ):
        await bench.roll()
    assert looptime == 4
    assert bench.shard.aborted == ["g_a2_g0_t0"]


async def test_an_environment_has_its_deadline(looptime):
    bench = Bench(Dialogue(seconds=9.0), environment_timeout=3.0)
    with pytest.raises(
        DeadlinePassed, match=r"environment dialogue for prompt 3 .* 3 s; raise .*envTimeoutSeconds"
    ):
        await bench.roll()
    assert looptime == 4


async def test_a_dead_shard_gets_no_request_and_the_others_share_its_turns():
    shards = [ScriptedGenerator(index=i, seconds=lambda request: 1.0) for i in range(3)]
    await shards[1].close()
    bench = Bench()
    object.__setattr__(bench.manager, "fleet", Fleet(shards=shards))
    await bench.roll(generations=6)
    assert [len(shard.started) for shard in shards] == [3, 0, 3]


async def test_sc_8_47_no_shard_left_ends_the_run():
    shards = [ScriptedGenerator(index=i, seconds=lambda request: 1.0) for i in range(2)]
    for shard in shards:
        await shard.close()
    bench = Bench()
    object.__setattr__(bench.manager, "fleet", Fleet(shards=shards))
    with pytest.raises(FleetExhausted, match=r"all 2 generation shards have ended \(.*\); run the job again"):
        await bench.roll()


async def test_requests_go_to_shards_in_turn():
    shards = [ScriptedGenerator(index=i, seconds=lambda request: 1.0) for i in range(3)]
    fleet = Fleet(shards=shards)
    bench = Bench()
    object.__setattr__(bench.manager, "fleet", fleet)
    task = asyncio.create_task(bench.roll(generations=7))
    await asyncio.sleep(0.5)
    assert fleet.outstanding == [3, 2, 2]
    await task
    assert fleet.outstanding == [0, 0, 0]
    assert [len(shard.started) for shard in shards] == [3, 2, 2]
