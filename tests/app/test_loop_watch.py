"""A thread that notices that the event loop stands still."""

import asyncio
import threading
import time

from asyncrl_api.spec.failure import StallWatchdogSpec
from asyncrl_runtime.app.dumps import StackDumps
from asyncrl_runtime.app.loop_watch import LoopWatch


def watch(folder, told, action):
    settings = StallWatchdogSpec(interval_seconds=0.02, stall_timeout_seconds=0.2, stall_action=action)
    return LoopWatch(settings=settings, dump=StackDumps(folder).write, frozen=told.append)


async def blocked_until(event):
    event.wait(20)
    await asyncio.sleep(0)


def test_sc_14_106_a_blocked_loop_is_told_with_the_threads_that_block_it(tmp_path):
    told, seen = [], threading.Event()

    class Told(list):
        def append(self, error):
            super().append(error)
            seen.set()

    told = Told()

    async def main():
        with watch(tmp_path, told, "abort").watching(asyncio.get_running_loop()):
            await blocked_until(seen)

    asyncio.run(main())
    assert len(told) == 1
    assert told[0].seconds > 0.2
    assert "stallTimeoutSeconds 0.2" in str(told[0])
    assert "blocked_until" in (tmp_path / "stall-1.txt").read_text()


def test_sc_14_106_under_warn_a_blocked_loop_is_only_dumped(tmp_path):
    told = []

    async def main():
        with watch(tmp_path, told, "warn").watching(asyncio.get_running_loop()):
            until = time.monotonic() + 20
            while not (tmp_path / "stall-1.txt").exists() and time.monotonic() < until:
                pass

    asyncio.run(main())
    assert (tmp_path / "stall-1.txt").exists()
    assert told == []


def test_a_loop_that_answers_is_left_alone(tmp_path):
    told = []

    async def main():
        with watch(tmp_path, told, "abort").watching(asyncio.get_running_loop()):
            for _ in range(40):
                await asyncio.sleep(0.01)

    asyncio.run(main())
    assert told == []
    assert list(tmp_path.iterdir()) == []


def test_only_so_many_dumps_are_kept(tmp_path):
    dumps = StackDumps(tmp_path, most=2)

    async def main():
        return [dumps.write("again") for _ in range(4)]

    paths = asyncio.run(main())
    assert len(list(tmp_path.iterdir())) == 2
    assert paths[1] == paths[2] == paths[3]
