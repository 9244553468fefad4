import pytest

from asyncrl_api.job import AsyncRLJob
from asyncrl_api.parse import parse
from asyncrl_api.paths import find
from asyncrl_api.resolve import resolve
from asyncrl_runtime.app.manifest import ManifestError
from asyncrl_runtime.app.support import UNBUILT, refuse_unbuilt, unbuilt_settings

SPEC = {
    "model": {"init": {}},
    "data": {"source": {"generated": {}}},
    "environment": {"arithmetic": {}},
    "algorithm": {"grpo": {}},
    "generation": {"backend": "torch", "gpusPerShard": 0},
    "training": {"backend": "torch", "gpusPerHost": 0},
    "dataPlane": {"backend": "inProcess"},
}
ASKING = {
    "checkpointing.saveConsolidated": {"checkpointing": {"saveConsolidated": True}},
    "training.offloadOptimizerForLogprob": {
        "training": {"backend": "torch", "gpusPerHost": 0, "offloadOptimizerForLogprob": True}
    },
    "model.isVlm": {"model": {"init": {}, "isVlm": True}},
    "environment.nemoGym": {"environment": {"nemoGym": {}}},
    "algorithm.ppo": {"algorithm": {"ppo": {}}, "value": {}, "valueLoss": {}},
    "algorithm.grpo.advEstimator.name": {"algorithm": {"grpo": {"advEstimator": {"name": "opd"}}}},
    "onPolicyDistillation": {"onPolicyDistillation": {"teacherModelByAgentName": {}}},
    "asyncRL.generationRouter.enabled": {"asyncRL": {"generationRouter": {"enabled": True}}},
    "dataPlane.backend": {"dataPlane": {"backend": "mooncake_cpu"}},
    "checkpointing.pretrainedCheckpoint.format": {
        "checkpointing": {"pretrainedCheckpoint": {"path": "/x", "format": "megatron"}}
    },
    "checkpointing.modelSaveFormat": {"checkpointing": {"modelSaveFormat": "megatron"}},
    "checkpointing.isAsync": {"checkpointing": {"isAsync": True}},
    "logging.swanlab.enabled": {"logging": {"swanlab": {"enabled": True}}},
    "generation.backend": {"generation": {"backend": "vllm", "gpusPerShard": 1}},
    "generation.colocated": {"generation": {"backend": "torch", "gpusPerShard": 0, "colocated": True}},
    "generation.gpusPerShard": {"generation": {"backend": "torch", "gpusPerShard": 2}},
    "generation.hostsPerShard": {"generation": {"backend": "torch", "gpusPerShard": 0, "hostsPerShard": 2}},
    "generation.kvCacheDtype": {"generation": {"backend": "torch", "gpusPerShard": 0, "kvCacheDtype": "fp8"}},
    "training.backend": {"training": {}},
    "training.parallelism": {
        "training": {"backend": "torch", "gpusPerHost": 0, "parallelism": {"expert": 2}}
    },
    "training.routerReplay": {"training": {"backend": "torch", "gpusPerHost": 0, "routerReplay": True}},
}


def job(**blocks):
    raw = {
        "apiVersion": "asyncrl.io/v1alpha1",
        "kind": "AsyncRLJob",
        "metadata": {"name": "digits"},
        "spec": {**SPEC, **blocks},
    }
    return resolve(AsyncRLJob.model_validate(raw, by_alias=True, by_name=False))


def test_each_setting_of_the_table_is_refused_when_asked_for():
    assert ASKING.keys() == {entry.path for entry in UNBUILT}


@pytest.mark.parametrize(("path", "blocks"), ASKING.items())
def test_a_setting_that_is_not_built(path, blocks):
    found = {problem.path: str(problem) for problem in unbuilt_settings(job(**blocks))}
    assert f"spec.{path}" in found
    assert "is not carried out by this version of the runtime: " in found[f"spec.{path}"]


@pytest.mark.parametrize("entry", UNBUILT, ids=[entry.path for entry in UNBUILT])
def test_the_table_names_fields(entry):
    assert find(entry.path) is not None


@pytest.mark.parametrize(
    "blocks",
    [
        {},
        {"asyncRL": {"inFlightWeightUpdates": False, "drainTimeoutSeconds": 5.0}},
        {"asyncRL": {"refit": {"transport": "SharedMemory"}}},
        {"algorithm": {"grpo": {"useDynamicSampling": True}}},
        {"dataPlane": {"backend": "simple"}},
        {"asyncRL": {"rolloutFailure": {"onDroppedPrompt": "replace", "maxSkippedPrompts": 1}}},
        {
            "tokenCapture": {"enabled": True},
            "rolloutCheckpointing": {"snapshotAttemptIntervalSeconds": 60.0},
            "asyncRL": {"maxInflightGenerations": 4, "rolloutFailure": {"minValidRowFraction": 0.5}},
        },
        {"image": "x", "faultPolicy": {"maxRestarts": 1}, "scheduling": {"priorityClassName": "p"}},
    ],
)
def test_what_is_built_or_is_only_for_a_cluster_is_not_refused(blocks):
    assert unbuilt_settings(job(**blocks)) == []


def test_refusing_names_the_place_in_the_file_and_every_setting(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("spec:\n  logging: {swanlab: {enabled: true}}\n  training:\n    routerReplay: true\n")
    asking = job(**ASKING["logging.swanlab.enabled"], **ASKING["training.routerReplay"])
    with pytest.raises(ManifestError) as refused:
        refuse_unbuilt(asking, path)
    assert list(refused.value.lines) == [
        f"{path}:2:23: spec.logging.swanlab.enabled true is not carried out by this version of the runtime: "
        "use another logger",
        f"{path}:4:5: spec.training.routerReplay true is not carried out by this version of the runtime: "
        "set it to false",
    ]


def test_a_job_that_asks_for_nothing_unbuilt_comes_back_resolved(tmp_path):
    spec = refuse_unbuilt(job(), tmp_path / "not-read.yaml").spec
    assert spec.async_rl.max_buffered_rollouts == 64


def test_the_minimal_job_is_supported():
    raw = {"apiVersion": "asyncrl.io/v1alpha1", "kind": "AsyncRLJob", "metadata": {"name": "digits"}}
    assert unbuilt_settings(resolve(parse({**raw, "spec": SPEC}))) == []
