"""What every host of worker services does. A test class gives `host` and `name_of_death`."""

import asyncio
import os
import signal
import threading
import time

import numpy as np
import pytest
from adapters import worker_services

from asyncrl_runtime.adapters.workers import RemoteError
from asyncrl_runtime.core.errors import DeadlinePassed, EnvironmentFailure, WorkerDied


def gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def eventually(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "condition did not come true"
        await asyncio.sleep(0.01)


async def running(worker, count, seconds=5.0):
    async with asyncio.timeout(seconds):
        while await worker.call("count_running") != count:  # noqa: ASYNC110 - another process's state
            await asyncio.sleep(0.01)


class WorkerContract:
    start_seconds = 60.0

    @pytest.fixture
    async def worker(self, host):
        worker = await self.launch(host, 1, name="arithmetic")
        yield worker
        worker.kill()
        await worker.close()

    async def launch(self, host, *args, name="w", factory=worker_services.Arithmetic, **bounds):
        bounds = {"start_seconds": self.start_seconds, **bounds}
        return await host.launch(factory, *args, name=name, **bounds)

    async def test_plain_deferred_and_async_methods_answer(self, worker):
        assert await worker.call("add", 2) == 3
        assert await worker.call("later", "x", 0.01) == "x"
        assert await worker.call("sleep", 0.01) is None

    async def test_many_calls_of_one_tick_all_answer_in_their_own_call(self, worker):
        answers = await asyncio.gather(*(worker.call("later", n, 0.01) for n in range(3000)))

        assert answers == list(range(3000))

    async def test_calls_start_in_the_order_they_were_made_whatever_their_size(self, worker):
        sizes = [3_000_000, 1, 500_000, 2, 1_000_000, 3]
        calls = []
        for size in sizes:
            calls.append(asyncio.ensure_future(worker.call("noted", np.zeros(size))))
            await asyncio.sleep(0)
        await asyncio.gather(*calls)

        assert await worker.call("note") == sizes

    async def test_arrays_cross_whole_and_aligned_and_belong_to_the_caller(self, worker):
        array = np.arange(3_000_001, dtype=np.float64)
        answer = await worker.call("doubled", array)

        assert answer["aligned"]
        np.testing.assert_array_equal(answer["doubled"], array * 2)
        answer["doubled"][0] = 7.0
        rows = await worker.call("arrays", 5)
        assert [row.tolist() for row in rows] == [[n] * n for n in range(5)]

    async def test_sc_14_42_errors_of_python_and_of_the_product_keep_type_and_fields(self, worker):
        with pytest.raises(EnvironmentFailure) as failure:
            await worker.call("raise_typed")
        assert failure.value.function == "f"
        assert str(failure.value) == "f of environment e was late for prompt p"
        assert "raise_typed" in failure.value.__notes__[0]

        with pytest.raises(TypeError):
            await worker.call("add", "x")
        with pytest.raises(AttributeError, match="Arithmetic has no method nothing"):
            await worker.call("nothing")

    async def test_foreign_errors_become_text_with_their_type_name(self, worker):
        with pytest.raises(RemoteError, match=r"Foreign: no such thing") as failure:
            await worker.call("raise_foreign")
        assert failure.value.type_name.endswith("worker_services.Foreign")

    async def test_what_cannot_be_pickled_fails_its_own_call_only(self, worker):
        good, bad_argument, bad_result = await asyncio.gather(
            worker.call("add", 1),
            worker.call("add", threading.Lock()),
            worker.call("unpicklable"),
            return_exceptions=True,
        )

        assert good == 2
        assert "arguments of add cannot be pickled" in str(bad_argument)
        assert "result cannot be pickled" in str(bad_result)

    async def test_a_failing_factory_raises_in_start(self, host):
        with pytest.raises(ValueError, match="must not be negative"):
            await self.launch(host, -1)

    async def test_a_start_that_takes_too_long_names_the_setting(self, host):
        with pytest.raises(DeadlinePassed, match=r"the start of w .*raise some\.setting"):
            await self.launch(
                host, 60, factory=worker_services.slow_start, start_seconds=0.5, setting="some.setting"
            )

    @pytest.mark.parametrize("method", ["sleep", "later"])
    async def test_cancelling_a_call_cancels_the_work(self, worker, method):
        args = (60,) if method == "sleep" else ("x", 60)
        call = asyncio.ensure_future(worker.call(method, *args))
        await running(worker, 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

        await running(worker, 0)

    async def test_a_call_that_hangs_meets_its_deadline_and_is_cancelled_there(self, worker):
        with pytest.raises(
            DeadlinePassed, match=r"sleep of arithmetic did not answer within 0\.2 s; raise a\.b"
        ):
            await worker.call("sleep", 60, deadline_seconds=0.2, setting="a.b")

        await running(worker, 0)

    async def test_death_fails_every_pending_call_at_once(self, worker):
        calls = [asyncio.ensure_future(worker.call("sleep", 60)) for _ in range(3)]
        await worker.call("add", 1)
        killed = time.monotonic()
        worker.kill()
        answers = await asyncio.gather(*calls, return_exceptions=True)

        assert time.monotonic() - killed < 1.0
        assert [type(answer) for answer in answers] == [WorkerDied] * 3
        assert not worker.alive
        with pytest.raises(WorkerDied, match="arithmetic ended"):
            await worker.call("add", 1)

    async def test_death_is_noticed_without_a_call(self, worker):
        os.kill(worker.pid, signal.SIGKILL)
        await asyncio.wait_for(worker.ended.wait(), 1.0)

        assert not worker.alive
        assert str(worker.death).startswith("arithmetic ended")

    async def test_a_worker_that_exits_by_itself_fails_the_call(self, worker):
        with pytest.raises(WorkerDied, match="arithmetic ended"):
            await worker.call("exit", 7)

    async def test_a_frozen_worker_meets_the_deadline(self, worker):
        os.kill(worker.pid, signal.SIGSTOP)
        with pytest.raises(
            DeadlinePassed, match=r"add of arithmetic did not answer within 0\.2 s; raise a\.b"
        ):
            await worker.call("add", 1, deadline_seconds=0.2, setting="a.b")
        os.kill(worker.pid, signal.SIGCONT)

        assert await worker.call("add", 1) == 2

    async def test_a_frozen_worker_can_be_killed_at_once(self, worker):
        os.kill(worker.pid, signal.SIGSTOP)
        worker.kill()
        await asyncio.wait_for(worker.ended.wait(), 1.0)

        await eventually(lambda: gone(worker.pid), 1.0)

    async def test_close_is_graceful_then_forceful_and_idempotent(self, worker, host):
        await worker.close()
        await worker.close()
        await eventually(lambda: gone(worker.pid))
        assert worker.exit_code == 0

        stuck = await self.launch(host, 1, name="stuck")
        call = asyncio.ensure_future(stuck.call("block", 60))
        await asyncio.sleep(0.05)
        await stuck.close(grace_seconds=0.1)
        await eventually(lambda: gone(stuck.pid))
        assert stuck.exit_code != 0
        with pytest.raises(WorkerDied):
            await call

    async def test_the_interrupt_of_a_terminal_does_not_end_a_worker(self, worker):
        os.kill(worker.pid, signal.SIGINT)

        assert await worker.call("add", 1) == 2
