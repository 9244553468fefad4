import asyncio
from pathlib import Path

import pytest
from ports.environment_contract import EnvironmentContract, episode

from asyncrl_api.spec.environment import EnvironmentSpec
from asyncrl_runtime.adapters.environments.build import open_environment
from asyncrl_runtime.adapters.environments.pooled import EnvironmentUnusable
from asyncrl_runtime.core.errors import EnvironmentFailure, EnvironmentUnavailable

HERE = Path(__file__).parent


def function(target, *, workers=1, seconds=5.0, **arguments):
    spec = {"target": f"user_functions:{target}", "numWorkers": workers}
    if arguments:
        spec["arguments"] = arguments
    return open_environment(
        EnvironmentSpec.model_validate({"function": spec}), timeout_seconds=seconds, folders=[HERE]
    )


@pytest.fixture
async def made():
    environments = []

    def make(*args, **kwargs):
        environments.append(function(*args, **kwargs))
        return environments[-1]

    yield make
    for environment in environments:
        await environment.close()


class TestFunction(EnvironmentContract):
    right, wrong = ("r12=", "21", "21"), ("r12=", "21", "12")

    @pytest.fixture(autouse=True, params=["exact", "exact_async"])
    def _target(self, request):
        self.target = request.param

    def make_environment(self):
        return function(self.target, workers=2)


async def test_a_function_gets_what_it_declares(made):
    environment = made("everything", value=0.5)
    asked = episode("r12=", "21", "21", task="reverse", extra={"k": 7})

    assert (await environment.step(asked)).reward == 0.5


async def test_named_parts_add_up_to_the_reward(made):
    step = await made("parts", weight=2).step(episode("r12=", "21", "21"))

    assert (step.reward, step.components) == (2.5, {"exact": 2, "short": 0.5})


async def test_a_dict_of_fields_is_a_step(made):
    step = await made("fields").step(episode("r12=", "21", "bad"))

    assert (step.reward, step.components, step.flagged, step.terminated) == (0.25, {"a": 1}, True, True)


@pytest.mark.parametrize(
    ("target", "arguments", "reward"), [("factory", {"threshold": 1}, 1), ("Callable", {"bonus": 0.5}, 2.5)]
)
async def test_a_factory_or_class_is_built_once_with_the_arguments(made, target, arguments, reward):
    assert (await made(target, **arguments).step(episode("r12=", "21", "21"))).reward == reward


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("float('nan')", "returned nan, and must return a finite number"),
        ("float('-inf')", "returned -inf"),
        ("10**400", "returned a number too large for a float"),
        ("'0.5'", "returned '0.5', which is no number"),
        ("None", "returned None, which is no number"),
        ("[1.0]", "returned [1.0], which is no number"),
        ("{'a': float('nan')}", "returned nan, and must return a finite number under 'a'"),
        ("{'a/b': 1}", "a part called 'a/b'"),
        ("{'reward': 1, 'scores': 2}", "a dict with scores beside its fields"),
        ("{'reward': 1, 'terminated': False}", "not terminated and holds no observation"),
        ("{'reward': 1, 'observation': 3}", "the observation 3, which is no string"),
    ],
)
async def test_a_result_that_is_no_reward_names_prompt_function_and_value(made, value, problem):
    with pytest.raises(EnvironmentFailure) as failure:
        await made("returns").step(episode("r12=", "21", value, position=17))

    text = str(failure.value)
    assert problem in text
    assert text.startswith("user_functions:returns of environment function")
    assert text.endswith("for prompt 17 of epoch 0 ('r12=')")


@pytest.mark.parametrize(
    ("value", "reward"), [("True", 1), ("3", 3), ("__import__('numpy').float32(0.5)", 0.5)]
)
async def test_numbers_of_other_types_are_rewards(made, value, reward):
    assert (await made("returns").step(episode("r12=", "21", value))).reward == reward


async def test_what_a_function_raises_is_a_failure_with_its_traceback(made):
    with pytest.raises(EnvironmentFailure, match=r"raised KeyError: 'oops' for prompt 0") as failure:
        await made("raises").step(episode("r12=", "21", "oops"))

    assert "user_functions.py" in failure.value.__notes__[0]


@pytest.mark.parametrize("target", ["hangs_on_x", "hangs_awaiting_on_x", "blocks_the_loop_on_x"])
async def test_a_hung_step_fails_alone_and_its_worker_is_replaced(made, target):
    environment = made(target, workers=2, seconds=0.5)
    await environment.start()
    asked = [episode("r12=", "21", "x" if k == 1 else "21", position=k) for k in range(5)]
    results = await asyncio.gather(*(environment.step(one) for one in asked), return_exceptions=True)

    failed = [k for k, result in enumerate(results) if isinstance(result, BaseException)]
    assert 1 in failed
    assert "did not return within 0.5 s (raise spec.asyncRL" in str(results[1])
    if target != "blocks_the_loop_on_x":
        assert failed == [1]
    await asyncio.sleep(1.2)
    assert (await environment.step(episode("r12=", "21", "21"))).reward == 1
    assert await environment.health() is None


async def test_a_function_that_ends_its_process_fails_its_prompt(made):
    environment = made("dies_on_x")
    with pytest.raises(EnvironmentUnavailable, match="ended its process with exit code 3"):
        await environment.step(episode("r12=", "21", "x"))

    assert (await environment.step(episode("r12=", "21", "21"))).reward == 1


async def test_cancelling_a_step_stops_the_work_behind_it(made):
    environment = made("hangs_on_x", seconds=60)
    await environment.start()
    task = asyncio.ensure_future(environment.step(episode("r12=", "21", "x")))
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    async with asyncio.timeout(5):
        assert (await environment.step(episode("r12=", "21", "21"))).reward == 1


async def test_as_many_steps_run_at_once_as_there_are_workers(made):
    environment = made("pid", workers=3)
    steps = await asyncio.gather(*(environment.step(episode("p", None, "c", position=k)) for k in range(30)))

    assert len({step.reward for step in steps}) == 3


async def test_async_functions_overlap_in_one_worker(made):
    environment = made("exact_async")
    await environment.start()
    began = asyncio.get_running_loop().time()
    await asyncio.gather(*(environment.step(episode("p", "a", "a", position=k)) for k in range(40)))

    assert asyncio.get_running_loop().time() - began < 1.0  # one after the other: 2 s


async def test_the_turns_of_an_episode_meet_their_own_object(made):
    environment = made("Guess", workers=3)
    said = ["1", "9", "5"]
    for number in range(6):
        steps = [
            await environment.step(episode("guess", "5", *said[: k + 1], episode_id=f"e{number}"))
            for k in range(3)
        ]
        assert [step.observation for step in steps] == ["higher", "lower", None]
        assert (steps[-1].reward, steps[-1].components) == (1, {"tries": 3})


@pytest.mark.parametrize(
    ("target", "arguments", "problem"),
    [
        ("absent", {}, r"user_functions has no absent \(it has: .*exact"),
        ("broken_factory", {}, "cannot be built: RuntimeError: no index on disk"),
        ("exact", {"wieght": 1}, "takes no argument wieght; correct environment.function.arguments"),
        ("factory", {}, "missing 1 required positional argument: 'threshold'"),
        ("Guess", {"limits": 3}, "unexpected keyword argument 'limits'"),
    ],
)
async def test_a_target_that_cannot_be_used_says_why_at_start(made, target, arguments, problem):
    environment = made(target, **arguments)
    with pytest.raises(EnvironmentUnusable, match=problem):
        await environment.start()
    assert problem.split("\\")[0] in await environment.health()


async def test_a_module_that_is_not_there_is_named():
    spec = EnvironmentSpec.model_validate({"function": {"target": "no_such_module:score"}})
    environment = open_environment(spec, timeout_seconds=None, folders=[HERE])
    with pytest.raises(EnvironmentUnusable, match="no_such_module cannot be imported: ModuleNotFoundError"):
        await environment.step(episode("p", None, "c"))
    await environment.close()
