"""The supervisor: pumps run together, and the first end that matters ends them all."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")

DRAIN_SECONDS = 30.0


async def supervise(main: Coroutine[None, None, T], beside: Mapping[str, Coroutine[None, None, object]]) -> T:
    """Run `main` with the pumps beside it; its result, or the first failure of any of them.

    `beside` is in order of precedence: where several fail together, the earlier one is the cause and
    `main` comes last, since its own complaint is most often that another pump stopped (SC-5.5). A pump
    that returns leaves the others running. Whatever is left is cancelled and awaited, within a bound.
    """
    tasks: list[asyncio.Task[object]] = [
        asyncio.create_task(pump, name=name) for name, pump in beside.items()
    ]
    main_task = asyncio.create_task(main, name="train")
    ranked: list[asyncio.Task] = [*tasks, main_task]
    first: BaseException | None = None
    try:
        pending = set(ranked)
        while True:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)
            failed = next((t for t in ranked if t.done() and not t.cancelled() and t.exception()), None)
            if failed is not None:
                error = failed.exception()
                assert error is not None
                raise cause_of(error)
            if main_task in done:
                return main_task.result()
    except BaseException as error:
        first = error
        raise
    finally:
        for task in ranked:
            task.cancel()
        await asyncio.wait(ranked, timeout=DRAIN_SECONDS)
        if first is not None:
            _note_later_failures(first, ranked)


def _note_later_failures(first: BaseException, tasks: Iterable[asyncio.Task]) -> None:
    """What failed beside the error that ends the run, or on being ended, is told with it."""
    for task in tasks:
        later = task.exception() if task.done() and not task.cancelled() else None
        if later is not None and cause_of(later) is not first:
            first.add_note(f"pump {task.get_name()} failed as well: {cause_of(later)!r}")


def cause_of(error: BaseException) -> BaseException:
    """The first error inside nested groups, which task groups put around a single failure."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
