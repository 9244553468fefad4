import re

import pytest
from ports.environment_contract import EnvironmentContract, episode

from asyncrl_api.spec.environment import EnvironmentSpec
from asyncrl_runtime.adapters.environments.build import open_environment
from asyncrl_runtime.adapters.environments.math_worker import final_answer, same
from asyncrl_runtime.adapters.environments.pooled import EnvironmentUnusable
from asyncrl_runtime.adapters.environments.tools import InvalidCall, Markers, ToolCall, ToolLoop, parse_call
from asyncrl_runtime.adapters.sources.reasoning_gym import ReasoningGymPrompts
from asyncrl_runtime.core.errors import EnvironmentFailure
from asyncrl_runtime.core.records import PromptRef
from asyncrl_runtime.ports.environment import Episode, Turn


def environment(**spec):
    return open_environment(EnvironmentSpec.model_validate(spec), timeout_seconds=30)


class TestMath(EnvironmentContract):
    right, wrong = ("1/2 + 1/4?", "3/4", r"so \boxed{\frac{3}{4}}."), ("1/2 + 1/4?", "3/4", "0.5")

    def make_environment(self):
        return environment(math={"numWorkers": 2})


class TestByTask(EnvironmentContract):
    right, wrong = ("r12=", "21", "21"), ("r12=", "21", "99")
    prompt = {"task": "reverse"}  # noqa: RUF012

    def make_environment(self):
        return environment(byTask={"reverse": {"arithmetic": {}}, "sum": {"math": {"numWorkers": 1}}})


async def test_each_task_has_its_environment_and_an_unknown_one_is_named():
    mixed = TestByTask().make_environment()
    try:
        assert (await mixed.step(episode("1+1?", "2", "It is 2.0", task="sum"))).reward == 1
        with pytest.raises(EnvironmentFailure, match="no environment for task 'sort', only for reverse, sum"):
            await mixed.step(episode("s21=", "12", "12", task="sort"))
        with pytest.raises(EnvironmentFailure, match="task None"):
            await mixed.step(episode("s21=", "12", "12"))
    finally:
        await mixed.close()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("We get 3, then 4.", "4"),
        (r"\boxed{1} or rather \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        ("The answer is 1,234.5.", "1,234.5"),
        ("steps\n#### 42", "42"),
        ("costs 1,234 dollars", "1,234"),
        ("minus -3/4 in all", "-3/4"),
        ("no idea", None),
        (r"\boxed{never closed", None),
    ],
)
def test_the_final_answer_is_found(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0.5", r"\frac{1}{2}"),
        (r"\dfrac12", "0.5"),
        ("1,234", "1234.0"),
        (r"$\sqrt{16}$", "4"),
        (r"2\sqrt{3}", "sqrt(12)"),
        (r"2\pi", "6.283185307179586"),
        ("x = 7", "7"),
        (r"50\%", "50"),
        (r"90^\circ", "90"),
        ("2^{10}", "1024"),
        (r"\left(1, \frac{1}{2}\right)", "(1,0.5)"),
        (r"\{1,2\}", "{1, 2}"),
        (r"\text{blue}", "Blue"),
        ("-3/4", r"-\frac{3}{4}"),
        ("1/3", "0.33333333333"),
    ],
)
def test_equal_answers_are_equal(one, other):
    assert same(one, other)
    assert same(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3", "4"),
        ("1/3", "0.33"),
        ("10000001", "10000000"),
        ("(1,2)", "(2,1)"),
        ("(1,2)", "[1,2]"),
        ("1,2", "1,2,3"),
        ("9**9**9**9", "1"),
        ("__import__('os')", "1"),
        ("", "0"),
    ],
)
def test_unequal_or_odd_answers_are_not(one, other):
    assert not same(one, other)


async def test_a_prompt_without_reference_fails_and_text_without_a_number_earns_nothing():
    judge = environment(math={"numWorkers": 1})
    try:
        assert (await judge.step(episode("1+1?", "2", "hm"))).reward == 0
        with pytest.raises(EnvironmentFailure, match="math of environment math needs an answer"):
            await judge.step(episode("1+1?", None, "2"))
    finally:
        await judge.close()


async def test_reasoning_gym_scores_with_the_prompts_own_generator():
    source = ReasoningGymPrompts("chain_sum", size=2, seed=1)
    (prompt,) = await source.fetch([PromptRef(0, 1)])
    judge = environment(reasoningGym={})

    def said(text):
        return Episode("e", prompt, (Turn("assistant", text),))

    try:
        assert (await judge.step(said(prompt.answer))).reward == 1
        assert (await judge.step(said(f"so <answer> {prompt.answer} </answer>!"))).reward == 1
        assert (await judge.step(said("no"))).reward < 1
        with pytest.raises(EnvironmentFailure, match=r"prompts of data\.source\.reasoningGym only"):
            await judge.step(episode("1+1?", "2", "2"))
    finally:
        await judge.close()


def test_the_gym_services_are_refused():
    with pytest.raises(EnvironmentUnusable, match="nemoGym"):
        environment(nemoGym={})


def add(left, right):
    return str(int(left) + int(right))


def loop(**changes):
    return ToolLoop({"add": add}, score=lambda e: float(e.turns[-1].text == e.prompt.answer), **changes)


def test_a_call_is_read_between_its_markers():
    assert parse_call("so <tool>add 3 'a b'</tool> rest") == ToolCall("add", ("3", "a b"))
    assert parse_call("the answer is 3") is None
    assert parse_call("[f x]", Markers("[", "]")) == ToolCall("f", ("x",))
    for text, problem in [
        ("<tool>add 3", "lacks </tool>"),
        ("<tool> </tool>", "no tool"),
        ("<tool>'</tool>", "read"),
    ]:
        with pytest.raises(InvalidCall, match=problem):
            parse_call(text)


def test_a_tool_answers_and_the_last_turn_is_scored():
    first = loop().step(episode("3+4?", "7", "<tool>add 3 4</tool>"))
    assert first == {"reward": 0.0, "terminated": False, "observation": "<result>7</result>\n"}
    assert loop().step(episode("3+4?", "7", "<tool>add 3 4</tool>", "7")) == {"reward": 1.0}


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("<tool>mul 3 4</tool>", "no tool is called mul; there are add"),
        ("<tool>add 3</tool>", "add failed: .*right"),
        ("<tool>add 3 x</tool>", "add failed: invalid literal"),
    ],
)
def test_a_wrong_call_is_told_to_the_policy(call, problem):
    step = loop(invalid_call_reward=-0.1).step(episode("3+4?", "7", call))

    assert step["reward"] == -0.1
    assert re.search(problem, step["observation"])


def test_calls_are_bounded():
    calls = ["<tool>add 1 1</tool>"] * 3
    assert "observation" in loop(max_calls=2).step(episode("3+4?", "7", *calls[:2]))
    assert loop(max_calls=2).step(episode("3+4?", "7", *calls)) == {"reward": 0.0}
