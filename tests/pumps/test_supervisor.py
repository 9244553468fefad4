"""Pumps run together and end together."""

import asyncio

import pytest

from asyncrl_runtime.pumps.supervisor import DRAIN_SECONDS, cause_of, supervise

pytestmark = pytest.mark.looptime


async def after(seconds, result=None):
    await asyncio.sleep(seconds)
    if isinstance(result, BaseException):
        raise result
    return result


class Endless:
    """A pump that notes its cancellation."""

    def __init__(self, linger=0.0, stubborn=False):
        self.cancelled, self.linger, self.stubborn = 0, linger, stubborn

    async def run(self):
        while True:
            try:
                await asyncio.sleep(1e9)
            except asyncio.CancelledError:
                self.cancelled += 1
                await asyncio.sleep(self.linger)
                if not self.stubborn:
                    raise


async def test_the_result_of_main_ends_the_pumps_beside_it(looptime):
    pumps = [Endless(), Endless(linger=2)]
    result = await supervise(after(5, "done"), {str(i): pump.run() for i, pump in enumerate(pumps)})
    assert result == "done"
    assert [pump.cancelled for pump in pumps] == [1, 1]
    assert looptime == 7


async def test_a_pump_that_returns_leaves_the_others_running(looptime):
    assert await supervise(after(5, "done"), {"short": after(1), "shorter": after(0)}) == "done"
    assert looptime == 5


async def test_the_first_failure_ends_everything(looptime):
    other = Endless()
    with pytest.raises(KeyError, match="broken"):
        await supervise(after(50), {"other": other.run(), "bad": after(3, KeyError("broken"))})
    assert other.cancelled == 1
    assert looptime == 3


@pytest.mark.parametrize("order", [("probe", "rollout"), ("rollout", "probe")])
async def test_sc_5_5_sc_14_108_of_failures_at_one_instant_the_earlier_pump_is_the_cause(order):
    beside = {name: after(3, ValueError(name)) for name in order}
    with pytest.raises(ValueError, match=order[0]):
        await supervise(after(3, RuntimeError("the train pump noticed it")), beside)


async def test_a_failure_at_the_instant_of_success_is_not_hidden():
    with pytest.raises(ValueError, match="rollout"):
        await supervise(after(3, "done"), {"rollout": after(3, ValueError("rollout"))})


async def test_groups_around_a_single_failure_are_unwrapped():
    async def pump():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(after(1, ValueError("inside")))
            tasks.create_task(after(9))

    with pytest.raises(ValueError, match="inside"):
        await supervise(after(5), {"pump": pump()})
    nested = ExceptionGroup("a", [ExceptionGroup("b", [KeyError("x"), ValueError("y")])])
    assert isinstance(cause_of(nested), KeyError)


async def test_sc_14_107_a_pump_that_will_not_end_holds_the_end_up_for_a_bounded_time(looptime):
    stubborn = Endless(stubborn=True)
    assert await supervise(after(1, "done"), {"stubborn": stubborn.run()}) == "done"
    assert looptime == 1 + DRAIN_SECONDS
    assert stubborn.cancelled == 1
    stubborn.stubborn = False
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.sleep(0)


async def test_sc_14_107_what_fails_while_it_is_ended_hides_no_error(looptime):
    stubborn = Endless(stubborn=True)

    async def breaks_at_the_end():
        try:
            await asyncio.sleep(1e9)
        finally:
            raise ValueError("while it was ended")

    beside = {"breaks": breaks_at_the_end(), "stubborn": stubborn.run()}
    try:
        with pytest.raises(KeyError, match="broken") as caught:
            await supervise(after(1, KeyError("broken")), beside)
        assert caught.value.__notes__ == ["pump breaks failed as well: ValueError('while it was ended')"]
        assert looptime == 1 + DRAIN_SECONDS
    finally:
        stubborn.stubborn = False
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)


async def test_cancelling_the_supervisor_cancels_every_pump():
    pumps = [Endless(), Endless()]
    whole = asyncio.create_task(supervise(pumps[0].run(), {"other": pumps[1].run()}))
    await asyncio.sleep(1)
    whole.cancel()
    with pytest.raises(asyncio.CancelledError):
        await whole
    assert [pump.cancelled for pump in pumps] == [1, 1]
