"""A loop whose clock jumps."""

import asyncio
import os
import threading
import time

import pytest

from asyncrl_runtime.adapters.virtual_clock import Stalled, run_virtual


def now():
    return asyncio.get_running_loop().time()


def test_sleeping_takes_virtual_time_only():
    async def main():
        began = now()
        await asyncio.gather(*(asyncio.sleep(3600 * hours) for hours in range(1, 25)))
        return began, now()

    real = time.perf_counter()
    assert run_virtual(main()) == (0.0, 86_400.0)
    assert time.perf_counter() - real < 5


def test_timers_fire_in_order_of_time_then_of_creation():
    async def main():
        fired = []

        async def at(seconds, name):
            await asyncio.sleep(seconds)
            fired.append((now(), name))

        await asyncio.gather(at(2, "a"), at(1, "b"), at(2, "c"), at(0, "d"), at(1, "e"))
        return fired

    assert run_virtual(main()) == [(0, "d"), (1, "b"), (1, "e"), (2, "a"), (2, "c")]


@pytest.mark.parametrize("start", [1e7, 1e9])
def test_small_steps_progress_at_large_times(start):
    async def main():
        await asyncio.sleep(start)
        for _ in range(100):
            await asyncio.sleep(1e-9)
        return now()

    assert run_virtual(main()) >= start


def test_time_stands_still_while_a_thread_works():
    async def main():
        late = asyncio.create_task(asyncio.sleep(0.001))
        result = await asyncio.to_thread(lambda: time.sleep(0.05) or 7)
        assert not late.done()
        began = now()
        await late
        return result, began, now()

    assert run_virtual(main()) == (7, 0.0, 0.001)


def test_a_deadline_does_not_expire_because_a_thread_is_slow():
    async def main():
        async with asyncio.timeout(0.01):
            await asyncio.to_thread(time.sleep, 0.05)
        return now()

    assert run_virtual(main()) == 0.0


def test_a_wait_for_nothing_is_told_instead_of_hanging():
    async def main():
        await asyncio.sleep(5)
        await asyncio.Event().wait()

    with pytest.raises(Stalled, match="at 5 s of virtual time every task waits") as caught:
        run_virtual(main())
    assert caught.value.seconds == 5


def test_a_timer_that_never_comes_is_no_timer():
    async def main():
        asyncio.get_running_loop().call_later(3, int)
        await asyncio.sleep(float("inf"))

    with pytest.raises(Stalled, match="at 3 s"):
        run_virtual(main())


def test_cancelled_timers_neither_fire_nor_move_the_clock():
    async def main():
        loop, fired = asyncio.get_running_loop(), []
        for number in range(20_000):
            loop.call_later(1 + number, fired.append, number).cancel()
        kept = [loop.call_later(5 + number, fired.append, -number) for number in range(3)]
        kept[1].cancel()
        await asyncio.sleep(10)
        return fired, now()

    assert run_virtual(main()) == ([0, -2], 10)


def test_timers_of_one_moment_fire_before_what_they_make_ready_in_the_same_order_each_time():
    async def main():
        loop, seen = asyncio.get_running_loop(), []

        def fire(name):
            seen.append(name)
            loop.call_soon(seen.append, name.upper())

        for name in "abcdefgh":
            loop.call_later(1, fire, name)
        await asyncio.sleep(2)
        return "".join(seen)

    first = run_virtual(main())
    assert sorted(first[:8]) == list("abcdefgh")
    assert first[8:] == first[:8].upper()
    assert run_virtual(main()) == first


def test_file_descriptors_are_waited_for_in_real_time():
    async def main():
        reader, writer = os.pipe()
        ready = asyncio.Event()
        asyncio.get_running_loop().add_reader(reader, ready.set)
        threading.Timer(0.02, os.write, (writer, b"x")).start()
        await ready.wait()
        asyncio.get_running_loop().remove_reader(reader)
        os.close(reader)
        os.close(writer)
        return now()

    assert run_virtual(main()) == 0.0


def test_errors_and_cancellation_come_out_as_from_any_loop():
    cancelled = []

    async def forever():
        try:
            await asyncio.sleep(1e9)
        except asyncio.CancelledError:
            cancelled.append(now())
            raise

    async def main():
        task = asyncio.create_task(forever())
        await asyncio.sleep(1)
        assert not task.done()
        raise KeyError("x")

    with pytest.raises(KeyError):
        run_virtual(main())
    assert cancelled == [1.0]
