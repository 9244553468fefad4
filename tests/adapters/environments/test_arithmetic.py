import pytest
from ports.environment_contract import EnvironmentContract, episode

from asyncrl_runtime.adapters.environments.arithmetic import ArithmeticEnvironment
from asyncrl_runtime.core.errors import EnvironmentFailure


class TestArithmetic(EnvironmentContract):
    def make_environment(self):
        return ArithmeticEnvironment()

    right = ("r4821=", "1284", "1284")
    wrong = ("r4821=", "1284", "9999")


@pytest.mark.parametrize(
    ("text", "dense", "exact"),
    [
        ("1284", 1, 1),
        (" 1284\n", 1, 1),
        ("1280", 0.8, 0),
        ("4821", 0.2, 0),
        ("128", 0.6, 0),
        ("12841", 0.8, 0),
        ("12841284", 0.8, 0),
        ("", 0, 0),
    ],
)
async def test_dense_pays_right_positions_and_exact_the_whole_answer(text, dense, exact):
    asked = episode("r4821=", "1284", text)

    assert (await ArithmeticEnvironment("dense").step(asked)).reward == pytest.approx(dense)
    step = await ArithmeticEnvironment("exact").step(asked)
    assert step.reward == exact
    assert step.components == {"dense": pytest.approx(dense), "exact": exact}
    assert step.terminated


async def test_a_prompt_without_an_answer_is_named():
    with pytest.raises(EnvironmentFailure, match=r"needs an answer.*prompt 0 of epoch 0 \('r1='\)"):
        await ArithmeticEnvironment().step(episode("r1=", None, "1"))
