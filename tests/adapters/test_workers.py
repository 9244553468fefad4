import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from adapters import worker_services

from asyncrl_runtime.adapters.workers import ForkServer, RemoteError, WorkerProcess
from asyncrl_runtime.core.errors import DeadlinePassed, EnvironmentFailure, WorkerDied


@pytest.fixture
async def worker():
    worker = await WorkerProcess.start(worker_services.Arithmetic, 1, name="arithmetic", start_seconds=20)
    yield worker
    worker.kill()
    await worker.close()


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


async def test_plain_deferred_and_async_methods_answer(worker):
    assert await worker.call("add", 2) == 3
    assert await worker.call("later", "x", 0.01) == "x"
    assert await worker.call("sleep", 0.01) is None


async def test_many_calls_of_one_tick_all_answer_in_their_own_call(worker):
    answers = await asyncio.gather(*(worker.call("later", n, 0.01) for n in range(500)))

    assert answers == list(range(500))


async def test_arrays_cross_the_socket_whole_and_aligned(worker):
    array = np.arange(3_000_001, dtype=np.float64)
    answer = await worker.call("doubled", array)

    assert answer["aligned"]
    np.testing.assert_array_equal(answer["doubled"], array * 2)
    rows = await worker.call("arrays", 5)
    assert [row.tolist() for row in rows] == [[n] * n for n in range(5)]


async def test_sc_14_42_errors_of_python_and_of_the_product_keep_type_and_fields(worker):
    with pytest.raises(EnvironmentFailure) as failure:
        await worker.call("raise_typed")
    assert failure.value.function == "f"
    assert str(failure.value) == "f of environment e was late for prompt p"
    assert "raise_typed" in failure.value.__notes__[0]

    with pytest.raises(TypeError):
        await worker.call("add", "x")
    with pytest.raises(AttributeError, match="Arithmetic has no method nothing"):
        await worker.call("nothing")


async def test_foreign_errors_become_text_with_their_type_name(worker):
    with pytest.raises(RemoteError, match=r"Foreign: no such thing") as failure:
        await worker.call("raise_foreign")
    assert failure.value.type_name.endswith("worker_services.Foreign")


async def test_what_cannot_be_pickled_fails_its_own_call_only(worker):
    good, bad_argument, bad_result = await asyncio.gather(
        worker.call("add", 1),
        worker.call("add", threading.Lock()),
        worker.call("unpicklable"),
        return_exceptions=True,
    )

    assert good == 2
    assert "arguments of add cannot be pickled" in str(bad_argument)
    assert "result cannot be pickled" in str(bad_result)


async def test_a_start_that_is_cut_short_leaves_no_task_behind():
    start = WorkerProcess.start(worker_services.slow_start, 30, name="slow", start_seconds=60)
    starting = asyncio.create_task(start)
    await asyncio.sleep(0.5)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    seen = set()
    for _ in range(20):
        seen |= asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.sleep(0)

    assert seen == set()


async def test_a_failing_factory_raises_in_start():
    with pytest.raises(ValueError, match="must not be negative"):
        await WorkerProcess.start(worker_services.Arithmetic, -1, name="w", start_seconds=20)


async def test_a_start_that_takes_too_long_names_the_setting():
    with pytest.raises(DeadlinePassed, match=r"raise some\.setting"):
        await WorkerProcess.start(
            worker_services.slow_start, 60, name="w", start_seconds=0.5, setting="some.setting"
        )


@pytest.mark.parametrize("method", ["sleep", "later"])
async def test_cancelling_a_call_cancels_the_work(worker, method):
    args = (60,) if method == "sleep" else ("x", 60)
    call = asyncio.ensure_future(worker.call(method, *args))
    await running(worker, 1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    await running(worker, 0)


async def test_death_fails_every_pending_call_at_once(worker):
    calls = [asyncio.ensure_future(worker.call("sleep", 60)) for _ in range(3)]
    await worker.call("add", 1)
    killed = time.monotonic()
    worker.kill()
    answers = await asyncio.gather(*calls, return_exceptions=True)

    assert time.monotonic() - killed < 0.5
    assert [type(answer) for answer in answers] == [WorkerDied] * 3
    assert answers[0].exit_code == -signal.SIGKILL
    assert "SIGKILL" in str(answers[0])
    assert not worker.alive
    with pytest.raises(WorkerDied):
        await worker.call("add", 1)


async def test_an_exit_code_is_reported(worker):
    with pytest.raises(WorkerDied, match="with exit code 7"):
        await worker.call("exit", 7)


async def test_a_frozen_worker_meets_the_deadline(worker):
    os.kill(worker.pid, signal.SIGSTOP)
    with pytest.raises(DeadlinePassed, match=r"add of arithmetic did not answer within 0\.2 s; raise a\.b"):
        await worker.call("add", 1, deadline_seconds=0.2, setting="a.b")
    os.kill(worker.pid, signal.SIGCONT)

    assert await worker.call("add", 1) == 2


async def test_close_is_graceful_then_forceful_and_idempotent(worker):
    await worker.close()
    await worker.close()
    assert worker.exit_code == 0

    stuck = await WorkerProcess.start(worker_services.Arithmetic, 1, name="stuck", start_seconds=20)
    call = asyncio.ensure_future(stuck.call("block", 60))
    await asyncio.sleep(0.05)
    await stuck.close(grace_seconds=0.1)
    assert stuck.exit_code == -signal.SIGKILL
    with pytest.raises(WorkerDied):
        await call


async def test_signals_of_the_terminal_do_not_end_a_worker(worker):
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(worker.pid, number)

    assert await worker.call("add", 1) == 2


async def test_a_dead_fork_server_is_replaced(worker):
    server = ForkServer()
    first = await WorkerProcess.start(
        worker_services.Arithmetic, 0, name="a", start_seconds=20, server=server
    )
    server._process.kill()
    with pytest.raises(WorkerDied):
        await first.call("sleep", 60)
    second = await WorkerProcess.start(
        worker_services.Arithmetic, 0, name="b", start_seconds=20, server=server
    )

    assert await second.call("add", 5) == 5
    server.close()
    await second.ended.wait()


PARENT = """
import asyncio
from adapters import worker_services
from asyncrl_runtime.adapters.workers import WorkerProcess

async def main():
    worker = await WorkerProcess.start(worker_services.Arithmetic, 1, name="w", start_seconds=20)
    print(worker.pid, flush=True)
    await worker.call("block", 600)

asyncio.run(main())
"""


async def test_no_worker_outlives_a_killed_parent():
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, env=environ)  # noqa: ASYNC220
    pid = int(parent.stdout.readline().split()[0])
    assert not gone(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()

    await eventually(lambda: gone(pid))


def test_a_fork_server_whose_parent_left_in_a_hurry_says_nothing():
    code = """
import asyncio
from adapters import worker_services
from asyncrl_runtime.adapters.workers import WorkerProcess

async def main():
    try:
        await WorkerProcess.start(worker_services.Arithmetic, -1, name="arithmetic", start_seconds=20)
    except ValueError:
        print("left")

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(__file__))},
    )
    assert (done.stdout, done.stderr) == ("left\n", "")
