"""Functions and classes that a user might write, for the tests of the function environment."""

import asyncio
import os
import time

WORKERS = []


def exact(completion, answer):
    return float(completion == answer)


async def exact_async(completion, answer):
    await asyncio.sleep(0.05)
    return completion == answer


def parts(completion, answer, weight=1.0):
    return {"exact": weight * (completion == answer), "short": 0.5 * (len(completion) <= 4)}


def fields(completion):
    return {"reward": 0.25, "components": {"a": 1}, "flagged": completion == "bad"}


def everything(prompt, completion, answer, task, messages, turns, extra, truncated, arguments):
    facts = [
        prompt,
        completion,
        answer,
        task,
        messages[0]["role"],
        turns[-1]["content"],
        extra["k"],
        truncated,
    ]
    assert facts == ["r12=", "21", "21", "reverse", "user", "21", 7, False], facts
    return arguments["value"]


def returns(completion):
    return eval(completion)


def raises(completion):
    raise KeyError(completion)


def hangs_on_x(completion, answer):
    if completion == "x":
        time.sleep(60)
    return float(completion == answer)


async def hangs_awaiting_on_x(completion, answer):
    if completion == "x":
        await asyncio.sleep(60)
    return float(completion == answer)


async def blocks_the_loop_on_x(completion, answer):
    if completion == "x":
        time.sleep(60)  # noqa: ASYNC251  what it is about
    return float(completion == answer)


def dies_on_x(completion):
    if completion == "x":
        os._exit(3)
    return 1.0


def factory(threshold):
    def judge(completion):
        return float(len(completion) > threshold)

    return judge


def broken_factory():
    raise RuntimeError("no index on disk")


def pid():
    return lambda completion: float(os.getpid())


class Guess:
    """Higher, lower: remembers its episodes."""

    def __init__(self, limit=4):
        self.limit, self.seen = limit, {}

    def step(self, episode):
        said = episode.turns[-1].text
        tries = self.seen[episode.episode_id] = self.seen.get(episode.episode_id, 0) + 1
        if said == episode.prompt.answer or tries == self.limit:
            return {"reward": float(said == episode.prompt.answer), "components": {"tries": tries}}
        hint = "higher" if said < episode.prompt.answer else "lower"
        return {"reward": 0, "terminated": False, "observation": hint}


class Callable:
    def __init__(self, bonus):
        self.bonus = bonus

    async def __call__(self, completion):
        return self.bonus + len(completion)
