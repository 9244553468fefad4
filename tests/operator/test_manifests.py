"""What the operator renders, as data."""

from pathlib import Path

import pytest
import yaml
from support.operator_world import SPEC, job_of

from asyncrl_api.resolve import resolve
from asyncrl_operator.manifests import beside
from asyncrl_operator.manifests.names import HASH_ANNOTATION, Identity, Settings
from asyncrl_operator.manifests.overlay import merged
from asyncrl_operator.manifests.quantities import number, whole
from asyncrl_operator.manifests.ray_cluster import ray_cluster, template_hash

GOLDEN = Path(__file__).parent / "golden" / "ray-cluster-cpu.yaml"
IDENTITY = Identity("digits", "default", "6f0c9a1e-3b52-4a58-9d0e-2f6f2b1c7a10", 1)
SETTINGS = Settings(image="example.test/asyncrl/runtime:0.1.0")


def spec_of(**blocks):
    return resolve(job_of(SPEC | blocks), cluster=True).spec


def rendered(attempt=1, **blocks):
    return ray_cluster(IDENTITY, spec_of(**blocks), attempt, SETTINGS)


def container(pod, name):
    return next(c for c in pod["spec"]["containers"] if c["name"] == name)


def test_the_cluster_of_a_small_cpu_job_is_the_one_of_the_golden_file():
    expected = yaml.safe_load(GOLDEN.read_text())
    found = rendered()
    expected["metadata"]["annotations"][HASH_ANNOTATION] = found["metadata"]["annotations"][HASH_ANNOTATION]
    assert found["metadata"] == expected["metadata"]
    assert found["spec"]["headGroupSpec"] == expected["spec"]["headGroupSpec"]
    assert found == expected


def test_a_job_in_one_process_has_a_head_alone():
    found = rendered(dataPlane={"backend": "inProcess"})
    assert found["spec"]["workerGroupSpecs"] == []


def test_gpus_are_asked_for_and_shared_memory_is_mounted_for_trainers():
    found = rendered(
        generation={"backend": "vllm", "shards": 8, "gpusPerShard": 2, "tensorParallel": 2},
        training={"backend": "torch", "hosts": 2, "gpusPerHost": 8},
    )
    generation, training = found["spec"]["workerGroupSpecs"]
    assert (generation["replicas"], training["replicas"]) == (8, 2)
    assert generation["rayStartParams"]["num-gpus"] == "2"
    worker = container(training["template"], "ray-worker")
    assert worker["resources"]["limits"] == {"memory": "256Gi", "nvidia.com/gpu": "8"}
    assert worker["resources"]["requests"]["nvidia.com/gpu"] == "8"
    assert {"name": "shm", "mountPath": "/dev/shm"} in worker["volumeMounts"]
    volumes = training["template"]["spec"]["volumes"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}} in volumes
    assert "NVIDIA_VISIBLE_DEVICES" not in [variable["name"] for variable in worker["env"]]


def test_no_object_has_a_label_of_ray():
    """KubeRay finds its pods by labels, not by owner."""
    text = str(rendered()["spec"]["headGroupSpec"]["template"]["metadata"])
    assert "ray.io/" not in text


def test_the_hash_is_that_of_the_pods_and_not_of_their_number_or_attempt():
    plain = template_hash(IDENTITY, spec_of(), SETTINGS)
    more = {"backend": "torch", "shards": 5, "gpusPerShard": 0}
    assert template_hash(IDENTITY, spec_of(generation=more), SETTINGS) == plain
    assert rendered(attempt=7)["metadata"]["annotations"][HASH_ANNOTATION] == plain
    assert template_hash(IDENTITY, spec_of(image="example.test/other:1"), SETTINGS) != plain
    assert template_hash(IDENTITY, spec_of(), Settings(image="example.test/other:1")) != plain


def test_a_users_pod_template_is_merged_last_containers_by_name():
    overlay = {
        "metadata": {"labels": {"team": "rl"}},
        "spec": {"hostNetwork": True, "containers": [{"name": "controller", "tty": True}, {"name": "side"}]},
    }
    found = rendered(controller={"podTemplate": overlay})["spec"]["headGroupSpec"]["template"]
    assert found["metadata"]["labels"]["team"] == "rl"
    assert found["spec"]["hostNetwork"] is True
    assert [c["name"] for c in found["spec"]["containers"]] == ["ray-head", "controller", "side"]
    assert container(found, "controller")["command"] == ["asyncrl", "controller"]
    assert container(found, "controller")["tty"] is True


def test_queue_labels_are_on_the_cluster_alone():
    found = rendered(scheduling={"provider": "Kueue", "queueName": "research"})
    assert found["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert "kueue" not in str(found["spec"])


def test_a_claim_that_is_kept_has_no_owner():
    kept = beside.claim(IDENTITY, spec_of())
    volume = {"template": {"storage": "1Gi"}, "retention": "Delete"}
    gone = beside.claim(IDENTITY, spec_of(checkpointing={"volume": volume}))
    assert "ownerReferences" not in kept["metadata"]
    assert gone["metadata"]["ownerReferences"][0]["uid"] == IDENTITY.uid
    assert beside.claim(IDENTITY, spec_of(checkpointing={"volume": {"claimName": "mine"}})) is None


def test_the_budget_counts_controller_and_trainers():
    assert beside.disruption_budget(IDENTITY, spec_of(), 1)["spec"]["minAvailable"] == 2
    alone = spec_of(dataPlane={"backend": "inProcess"})
    assert beside.disruption_budget(IDENTITY, alone, 1)["spec"]["minAvailable"] == 1
    assert beside.disruption_budget(IDENTITY, spec_of(scheduling={"disruption": "Allow"}), 1) is None


def test_the_secret_holds_the_job_as_written_and_cannot_be_changed():
    found = beside.secret(IDENTITY, SPEC, 3, auth_token="a" * 64, control_token="b" * 64)
    assert found["immutable"] is True
    assert found["metadata"]["name"] == "digits-a3"
    assert '"generation": 1' in found["stringData"]["job.json"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("500m", 1), ("4Gi", 4 << 30), ("2k", 2000), ("1.5Gi", 3 << 29), ("1e3", 1000)],
)
def test_quantities_are_read_as_kubernetes_reads_them(text, value):
    assert whole(text) == value


def test_quantities_keep_their_fractions():
    assert str(number("250m")) == "0.250"


def test_merging_changes_neither_side():
    base, over = (
        {"a": {"b": 1}, "list": [{"name": "x", "v": 1}]},
        {"a": {"c": 2}, "list": [{"name": "x", "v": 2}]},
    )
    assert merged(base, over) == {"a": {"b": 1, "c": 2}, "list": [{"name": "x", "v": 2}]}
    assert base == {"a": {"b": 1}, "list": [{"name": "x", "v": 1}]}
