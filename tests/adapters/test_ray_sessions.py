"""Whose processes a sweep of dead owners' folders ends, and whose it spares."""

import os
import subprocess
import sys

import pytest

from asyncrl_runtime.adapters.ray.sessions import open_session, processes_of


@pytest.fixture
def parent(tmp_path):
    folder = tmp_path / "sessions"
    folder.mkdir(mode=0o700)
    return folder


def holding(path, *, delete=False):
    """A process with a file open."""
    code = (
        "import os, sys, time\n"
        "file = open(sys.stdin.readline().strip(), 'w')\n"
        f"os.unlink(file.name) if {delete} else None\n"
        "print('open', flush=True)\n"
        "time.sleep(100)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    process.stdin.write(f"{path}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "open\n"
    return process


def test_what_holds_a_file_of_a_session_belongs_to_it_and_ends_with_it(parent):
    session = open_session(parent)
    process = holding(session.folder / "log")
    assert processes_of(session.folder) == [process.pid]
    assert session.remove() == 1
    assert process.wait(10) < 0
    assert not session.folder.exists()


def test_a_process_that_keeps_a_deleted_file_open_is_spared(parent):
    session = open_session(parent)
    process = holding(session.folder / "log", delete=True)
    try:
        assert processes_of(session.folder) == []
        assert session.remove() == 0
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_an_owner_that_has_left_its_cluster_is_spared_by_the_next_sweep(parent):
    session = open_session(parent)
    owner = holding(session.folder / "log")
    (session.folder / "owner.lock").write_text(str(owner.pid))
    os.close(session._lock)
    later = open_session(parent)
    try:
        assert owner.poll() is None
        assert not session.folder.exists()
    finally:
        owner.kill()
        owner.wait()
        later.remove()
