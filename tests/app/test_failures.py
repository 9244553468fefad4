"""Errors that no port foresaw, as a person is told them."""

import errno
import os
from pathlib import Path

import pytest

from asyncrl_runtime.adapters.folder_lock import FolderUnusable
from asyncrl_runtime.app.failures import DiskFull, Unexpected, WorkersUnusable, as_run_error
from asyncrl_runtime.core.errors import DeadlinePassed, TrainerFailure, WorkerDied

FOLDER = Path("runs/digits")


def os_error(number, *names):
    return OSError(number, os.strerror(number), *names[:1], *([None, names[1]] if names[1:] else []))


@pytest.mark.parametrize(
    ("error", "path"),
    [
        (os_error(errno.EISDIR, "runs/digits/events.jsonl"), "runs/digits/events.jsonl"),
        (
            os_error(errno.EISDIR, "runs/digits/.summary.json.tmp", "runs/digits/summary.json"),
            "runs/digits/summary.json",
        ),
        (os_error(errno.EACCES, b"runs/digits/checkpoints/x"), "runs/digits/checkpoints/x"),
    ],
)
def test_a_file_of_the_run_folder_that_cannot_be_used_is_no_defect(error, path):
    told = as_run_error(error, FOLDER)

    assert isinstance(told, FolderUnusable)
    assert str(told) == (
        f"{path} cannot be used: {error.strerror}; repair it, or choose another folder with --output"
    )


def test_a_file_elsewhere_that_cannot_be_used_is_unexpected():
    assert isinstance(as_run_error(os_error(errno.EACCES, "/etc/x"), FOLDER), Unexpected)
    assert isinstance(as_run_error(os_error(errno.EPIPE), FOLDER), Unexpected)


def test_a_full_disk_comes_before_its_file():
    assert isinstance(as_run_error(os_error(errno.ENOSPC, "runs/digits/x"), FOLDER), DiskFull)


@pytest.mark.parametrize(
    ("failure", "way_out"),
    [
        (DeadlinePassed("the start of shard 0", 5, "spec.x"), "repair the cause, then run"),
        (WorkerDied("shard 0", 1, "MemoryError: 1.86 TiB"), "ask for less with spec.model, "),
    ],
)
def test_an_engine_that_does_not_come_up_is_no_defect(failure, way_out):
    told = as_run_error(failure, FOLDER)

    assert isinstance(told, WorkersUnusable)
    assert str(told).startswith(f"{failure}; {way_out}")


def test_an_error_of_a_run_stays_what_it_is():
    error = TrainerFailure("finish", "x")

    assert as_run_error(error, FOLDER) is error
