"""Where every task and thread of this process stands, written into the run folder."""

from __future__ import annotations

import asyncio
import faulthandler
import io
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path


@dataclass(slots=True)
class StackDumps:
    """Writes `stall-<n>.txt` files, at most `most` of them."""

    folder: Path
    most: int = 5
    written: int = field(default=0, init=False)

    def write(self, reason: str, loop: asyncio.AbstractEventLoop | None = None) -> str:
        """The path of the newest dump. `loop`: whose tasks are listed, by default the running one."""
        if self.written < self.most:
            self.written += 1
            self._path.write_text(self._heading(reason) + _tasks(loop), encoding="utf-8")
            with self._path.open("a", encoding="utf-8") as file:
                faulthandler.dump_traceback(file, all_threads=True)
        return str(self._path)

    @property
    def _path(self) -> Path:
        return self.folder / f"stall-{self.written}.txt"

    @staticmethod
    def _heading(reason: str) -> str:
        return f"{datetime.now().astimezone().isoformat(timespec='seconds')}: {reason}\n\n"


def _tasks(loop: asyncio.AbstractEventLoop | None) -> str:
    """Every task and the line that it waits at."""
    try:
        tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    except RuntimeError as error:
        return f"tasks: {error}\n\nthreads:\n"
    text = io.StringIO()
    text.write(f"{len(tasks)} tasks:\n\n")
    for task in tasks:
        text.write(f"{task.get_name()}\n")
        task.print_stack(file=text)
        text.write("\n")
    text.write("threads:\n")
    return text.getvalue()
