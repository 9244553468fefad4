"""Worker services in the actors of a real Ray cluster on this machine."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ports.worker_contract import WorkerContract, gone
from support.ray_clusters import listening_addresses, local_cluster

from asyncrl_runtime.adapters.ray.sessions import processes_of
from asyncrl_runtime.core.errors import DeadlinePassed


@pytest.fixture(scope="module")
def cluster():
    with local_cluster() as cluster:
        yield cluster


@pytest.fixture
def host(cluster):
    return cluster.shard(0)


class TestRayHost(WorkerContract):
    async def test_arguments_are_shared_and_not_copied(self, worker):
        assert not await worker.call("writeable", np.zeros(1_000_000))

    async def test_a_bundle_that_is_taken_is_waited_for_within_the_start_deadline(self, worker, host):
        with pytest.raises(DeadlinePassed, match=r"the start of second .*1 s; raise spec\.start"):
            await self.launch(host, 1, name="second", start_seconds=1.0, setting="spec.start")

        await worker.close()
        third = await self.launch(host, 1, name="third")
        await third.close()

    async def test_arguments_that_the_worker_cannot_read_end_it_with_the_reason(self, worker):
        sys.modules["nowhere"] = module = type(sys)("nowhere")
        module.Thing = type("Thing", (), {"__module__": "nowhere"})
        call = asyncio.ensure_future(worker.call("add", module.Thing()))
        with pytest.raises(Exception, match=r"cannot read its arguments: .*No module named 'nowhere'"):
            await call
        del sys.modules["nowhere"]


def test_the_cluster_listens_on_the_loopback_alone(cluster):
    pids = processes_of(cluster.session.folder)

    assert len(pids) >= 5
    assert listening_addresses(pids) == {"127.0.0.1"}


OTHER = """
import asyncio, logging, sys
from asyncrl_runtime.adapters.ray.cluster import Cluster, Role
from asyncrl_runtime.core.errors import RunError

async def main():
    roles = {"generation": Role(5, size_setting="spec.generation.shards"), "training": Role(1)}
    cluster = Cluster(roles, address=sys.argv[1], start_seconds=15.0, setting="spec.start")
    try:
        await cluster.start()
    except RunError as error:
        print(type(error).__name__, error)
    finally:
        await cluster.close()

asyncio.run(main())
"""


def attach(address, **environ):
    path = os.pathsep.join(sys.path)
    return subprocess.run(
        [sys.executable, "-c", OTHER, address],
        env={**os.environ, "PYTHONPATH": path, **environ},
        capture_output=True,
        text=True,
        timeout=100,
    ).stdout


def test_a_cluster_with_too_few_places_is_told_with_what_is_missing_and_gets_its_places_back(cluster):
    import ray
    from ray.util import placement_group_table

    address = ray.get_runtime_context().gcs_address
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": cluster.token}
    told = attach(address, RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", **token)

    assert "BundlesMissing the Ray cluster gave no place to 3 of 5 generation bundles (generation 1)" in told
    assert "within 15 s: its 1 nodes offer generation 2; start the nodes that are missing, lower" in told
    assert "lower spec.generation.shards, or raise spec.start" in told
    states = [group["state"] for group in placement_group_table().values()]
    assert sorted(states) == ["CREATED", "CREATED", "REMOVED", "REMOVED"]
    assert ray.is_initialized()


def test_who_does_not_know_the_token_is_refused(cluster):
    import ray

    address = ray.get_runtime_context().gcs_address
    told = attach(address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64)

    assert told.startswith("ClusterUnavailable the Ray cluster at ")


def test_the_controllers_process_needs_no_ray():
    modules = "adapters.ray.cluster", "adapters.ray.worker", "app.backends", "app.build", "app.run"
    imports = "; ".join(f"import asyncrl_runtime.{name}" for name in modules)
    code = f"{imports}; import sys; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"


def test_a_folder_that_others_may_enter_is_refused(tmp_path):
    from asyncrl_runtime.adapters.ray.sessions import open_session

    parent = tmp_path / "sessions"
    session = open_session(parent)
    assert oct(parent.stat().st_mode)[-3:] == "700"
    session.remove()
    parent.chmod(0o755)
    with pytest.raises(PermissionError, match="only its owner may enter"):
        open_session(parent)


HOLDER = """
import subprocess, sys
from pathlib import Path
from asyncrl_runtime.adapters.ray.sessions import open_session

session = open_session(Path(sys.argv[1]))
log = open(session.folder / "log", "w")
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=log)
print(session.folder, child.pid, flush=True)
sys.stdin.read()
"""


def test_what_a_dead_owner_left_is_ended_by_the_next_start_and_a_living_one_is_left_alone(tmp_path):
    from asyncrl_runtime.adapters.ray.sessions import open_session

    parent = tmp_path / "sessions"
    command = [sys.executable, "-c", HOLDER, str(parent)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    dead, living = (subprocess.Popen(command, **pipes) for _ in range(2))
    (dead_folder, dead_child), (living_folder, living_child) = (
        holder.stdout.readline().split() for holder in (dead, living)
    )
    dead.kill()
    dead.wait()
    assert Path(f"/proc/{dead_child}").exists()
    open_session(parent).remove()

    assert not Path(dead_folder).exists()
    assert gone(int(dead_child))
    assert Path(living_folder).exists()
    assert Path(f"/proc/{living_child}").exists()
    living.kill()
    living.wait()
    open_session(parent).remove()
    assert gone(int(living_child))
    for holder in (dead, living):
        holder.stdin.close()
        holder.stdout.close()
