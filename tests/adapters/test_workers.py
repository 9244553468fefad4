import asyncio
import os
import signal
import subprocess
import sys

import pytest
from adapters import worker_services
from ports.worker_contract import WorkerContract, eventually, gone

from asyncrl_runtime.adapters.workers import ForkHost, ForkServer, WorkerProcess, light_server
from asyncrl_runtime.core.errors import WorkerDied


@pytest.fixture
def host():
    return ForkHost(light_server)


class TestForkHost(WorkerContract):
    pass


@pytest.fixture
async def worker():
    worker = await WorkerProcess.start(worker_services.Arithmetic, 1, name="arithmetic", start_seconds=20)
    yield worker
    worker.kill()
    await worker.close()


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


async def test_a_death_tells_its_signal(worker):
    call = asyncio.ensure_future(worker.call("sleep", 60))
    await worker.call("add", 1)
    worker.kill()
    with pytest.raises(WorkerDied, match="SIGKILL") as death:
        await call

    assert death.value.exit_code == -signal.SIGKILL


async def test_an_exit_code_is_reported(worker):
    with pytest.raises(WorkerDied, match="with exit code 7"):
        await worker.call("exit", 7)


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
