"""A whole run whose rows travel through TransferQueue and whose workers are actors of Ray, and its resume."""

import subprocess
import sys

from support.cli import balanced, rows, small_job, summary

from asyncrl_runtime.adapters.ray.sessions import processes_of, sessions_folder


def run(job, folder, *more):
    command = [sys.executable, "-m", "asyncrl_runtime", "run", job, "--output", folder, "--quiet", *more]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=200, check=False)


def test_a_run_on_ray_and_transfer_queue_is_saved_and_goes_on_with_another_number_of_ranks(tmp_path):
    job = small_job(
        tmp_path,
        dataPlane={"backend": "simple", "numStorageUnits": 1},
        training={"backend": "torch", "gpusPerHost": 0, "hosts": 2},
    )
    before = set(processes_of(sessions_folder()))
    first = run(job, tmp_path / "run")
    assert first.returncode == 0, first.stderr
    assert summary(tmp_path / "run")["steps"] == 3
    assert {row["train/num_ranks"] for row in rows(tmp_path / "run" / "metrics.jsonl")} == {2}
    assert set(processes_of(sessions_folder())) <= before

    more = run(
        job, tmp_path / "run", "--set", "spec.algorithm.grpo.maxNumSteps=5", "--set", "spec.training.hosts=1"
    )
    assert more.returncode == 0, more.stderr
    told = summary(tmp_path / "run")
    assert (told["status"], told["steps"]) == ("complete", 5)
    assert balanced(told["prompts"])
    (resumed,) = [e for e in rows(tmp_path / "run" / "events.jsonl") if e["kind"] == "resumed"]
    assert (resumed["step"], resumed["restored_groups"] > 0) == (3, True)
    trained = [e["groups"] for e in rows(tmp_path / "run" / "events.jsonl") if e["kind"] == "step_trained"]
    groups = [group for step in trained for group in step]
    assert len(groups) == len(set(groups)) == 20
    assert set(processes_of(sessions_folder())) <= before


def test_weights_travel_through_files_of_the_checkpoint_folder_and_none_stays(tmp_path):
    job = small_job(
        tmp_path,
        dataPlane={"backend": "simple", "numStorageUnits": 1},
        asyncRL={"refit": {"transport": "Files"}},
    )
    done = run(job, tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert summary(tmp_path / "run")["steps"] == 3
    assert list((tmp_path / "run" / "checkpoints" / "refit").iterdir()) == []
