"""Rolling a prompt out: its siblings, their turns, their rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from asyncrl_runtime.core.errors import DataFailure, EnvironmentFailure
from asyncrl_runtime.core.records import Completion, GroupRecord, Prompt
from asyncrl_runtime.ports.environment import Environment, EnvironmentStep, Episode, Turn
from asyncrl_runtime.ports.generator import GenerationRequest, GenerationResult, Sampling
from asyncrl_runtime.ports.prompts import Tokenizer
from asyncrl_runtime.pumps.fleet import Fleet
from asyncrl_runtime.pumps.wakeup import deadline


@dataclass(eq=False)
class PromptTooLong(DataFailure):
    """A prompt leaves no room for a completion."""

    prompt: str
    tokens: int
    limit: int

    def __str__(self) -> str:
        return (
            f"prompt {self.prompt} has {self.tokens} tokens, and spec.model.maxTotalSequenceLength is "
            f"{self.limit}: raise it or drop the prompt"
        )


def rollout_seed(run_seed: int, group_id: str, attempt: int, sibling: int, turn: int) -> int:
    """A seed of its own for every generation of the run, on any shard and after any restart."""
    key = f"{run_seed}/{group_id}/{attempt}/{sibling}/{turn}".encode()
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little") >> 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutManager:
    """Rolls whole prompt groups out on the fleet.

    One failing sibling cancels and drains the others, so no partial group survives (SC-5.26).
    """

    fleet: Fleet
    environment: Environment
    tokenizer: Tokenizer
    sampling: Sampling
    max_total_tokens: int
    max_turns: int
    generation_timeout_seconds: float | None
    environment_timeout_seconds: float | None
    run_seed: int

    async def roll_group(
        self,
        prompt: Prompt,
        *,
        group_id: str,
        attempt: int,
        generations: int,
        sampling: Sampling | None = None,
    ) -> GroupRecord:
        """All siblings of a prompt, concurrently. Raises the first sibling's failure."""
        tokens = self.prompt_tokens(prompt)
        siblings = [
            asyncio.ensure_future(
                self.roll_sibling(
                    prompt, tokens, group_id=group_id, attempt=attempt, sibling=i, sampling=sampling
                )
            )
            for i in range(generations)
        ]
        try:
            completions = await asyncio.gather(*siblings)
        finally:
            await _drain(siblings)
        return GroupRecord(prompt, tuple(completions))

    def prompt_tokens(self, prompt: Prompt) -> list[int]:
        """The prompt as the model sees it. Raises PromptTooLong."""
        tokens = self.tokenizer.render(prompt.messages)
        if not 0 < len(tokens) < self.max_total_tokens:
            raise PromptTooLong(prompt.label, len(tokens), self.max_total_tokens)
        return tokens

    async def roll_sibling(
        self,
        prompt: Prompt,
        tokens: list[int],
        *,
        group_id: str,
        attempt: int,
        sibling: int,
        sampling: Sampling | None = None,
    ) -> Completion:
        """One completion: its turns, and what the environment says to them."""
        sampling = sampling or self.sampling
        loop = asyncio.get_running_loop()
        done = Completion(
            list(tokens), [0] * len(tokens), [0.0] * len(tokens), [-1] * len(tokens), len(tokens), "", 0.0
        )
        turns: tuple[Turn, ...] = ()
        episode_id = f"{group_id}_a{attempt}_g{sibling}"
        for turn in range(self.max_turns):
            began = loop.time()
            seed = rollout_seed(self.run_seed, group_id, attempt, sibling, turn)
            result = await self._generate(f"{episode_id}_t{turn}", done.token_ids, sampling, seed)
            generated = loop.time()
            text = self._text_of(result)
            turns += (Turn("assistant", text),)
            done.truncated = result.finish_reason == "length"
            _append_turn(done, result)
            step = await self._judge(Episode(episode_id, prompt, turns, done.truncated))
            done.generation_seconds += generated - began
            done.environment_seconds += loop.time() - generated
            done.turns = turn + 1
            done.reward += step.reward
            done.flagged = done.flagged or step.flagged
            for name, value in step.components.items():
                done.reward_components[name] = done.reward_components.get(name, 0.0) + value
            if step.terminated or done.truncated:
                break
            if turn + 1 == self.max_turns:
                done.max_turns_reached = True
                break
            turns += (Turn("user", step.observation or ""),)
            if not self._observe(done, step.observation or ""):
                break
        done.text = "\n".join(turn.text for turn in turns if turn.role == "assistant")
        return done

    async def _generate(
        self, request_id: str, tokens: Sequence[int], sampling: Sampling, seed: int
    ) -> GenerationResult:
        room = self.max_total_tokens - len(tokens)
        request = GenerationRequest(
            request_id,
            tuple(tokens),
            sampling if sampling.max_new_tokens <= room else replace(sampling, max_new_tokens=room),
            seed,
        )
        return await self.fleet.generate(request, timeout_seconds=self.generation_timeout_seconds)

    async def _judge(self, episode: Episode) -> EnvironmentStep:
        setting = "spec.asyncRL.rolloutFailure.native.envTimeoutSeconds"
        if self.environment_timeout_seconds is None:
            step = await self.environment.step(episode)
        else:
            what = f"environment {self.environment.name} for prompt {episode.prompt.label}"
            async with deadline(what, self.environment_timeout_seconds, setting):
                step = await self.environment.step(episode)
        if not step.terminated and step.observation is None:
            raise EnvironmentFailure(
                self.environment.name,
                "step",
                episode.prompt.label,
                "gave neither an end nor an observation",
            )
        return step

    def _text_of(self, result: GenerationResult) -> str:
        tokens = result.token_ids
        if tokens and tokens[-1] == self.tokenizer.eos_token_id:
            tokens = tokens[:-1]
        return self.tokenizer.decode(tokens)

    def _observe(self, done: Completion, observation: str) -> bool:
        """Append an observation, cut to fit; False when no room for another turn is left."""
        tokens = self.tokenizer.encode(observation)
        room = self.max_total_tokens - len(done.token_ids)
        if len(tokens) >= room:
            tokens, done.truncated = tokens[:room], True
        done.token_ids += tokens
        done.token_mask += [0] * len(tokens)
        done.logprobs += [0.0] * len(tokens)
        done.weight_versions += [-1] * len(tokens)
        return not done.truncated


def _append_turn(done: Completion, result: GenerationResult) -> None:
    done.token_ids += result.token_ids
    done.token_mask += [1] * len(result.token_ids)
    done.logprobs += result.logprobs
    done.weight_versions += result.weight_versions


async def _drain(tasks: Sequence[asyncio.Future[Completion]]) -> None:
    """Cancel what still runs and wait for its end, so that no generation outlives its group."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.gather(*running, return_exceptions=True)
