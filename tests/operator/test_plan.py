"""What the operator decides, row by row."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.operator_world import SPEC, World

from asyncrl_operator.core.conditions import TYPES
from asyncrl_operator.core.facts import Claim, Exit, RayCluster


def test_a_new_job_is_written_down_before_anything_of_it_exists():
    world = World()
    world.once()
    assert world.status.attempt.number == 1
    assert world.status.phase == "Provisioning"
    assert not world.clusters
    assert [c.type for c in world.status.conditions] == list(TYPES)

    world.settle()
    assert list(world.clusters) == ["digits-a1"]
    assert world.children == {
        ("Secret", "digits-a1"),
        ("Service", "digits-controller"),
        ("NetworkPolicy", "digits"),
        ("PodDisruptionBudget", "digits-a1"),
    }
    assert world.claim.name == "digits-checkpoints"


def test_a_job_runs_to_its_end_and_its_pods_go():
    world = World().running()
    assert (world.status.phase, world.status.generation.serving) == ("Running", 2)
    assert world.condition("Progressing") == ("True", "Stepping")
    assert world.status.sampler.name == "in_order"
    world.ends("complete")
    world.settle()
    world.collect()
    world.settle()

    assert world.status.phase == "Succeeded"
    assert world.condition("Complete") == ("True", "Completed")
    assert world.condition("Failed") == ("False", "Completed")
    assert not world.clusters
    assert world.claim is not None
    assert [reason for reason, *_ in world.events] == [
        "Accepted",
        "RayClusterCreated",
        "TrainingStarted",
        "Completed",
    ]
    assert not world.once()


def test_p2_a_pass_over_a_quiet_job_writes_nothing():
    world = World().running()
    assert not world.once()
    world.passes(1)
    assert not world.once()


def test_p3_reports_of_progress_alone_are_written_as_often_as_asked():
    world = World().running()
    writes = world.writes
    for step in range(2, 32):
        world.passes(2)
        world.reports(step=step)
        world.once()
    assert world.writes - writes == 2
    assert world.again.total_seconds() <= 30


def test_an_invalid_job_names_everything_that_is_wrong_and_starts_nothing():
    world = World(spec=SPEC | {"asyncRL": {"sampler": {"name": "windowed", "maxLookaheadVersions": 3}}})
    world.settle()
    assert world.condition("Accepted") == ("False", "Invalid")
    assert "maxLookaheadVersions" in world.message("Accepted")
    assert (world.status.phase, world.clusters) == ("Pending", {})


def test_fm_1_a_controller_that_exits_is_left_to_the_kubelet_until_the_third_time():
    world = World().running()
    for restarts in (1, 2):
        world.passes(10)
        world.controller(restarts=restarts, last_exit=Exit(code=1, at=world.now))
        world.settle()
        assert world.status.attempt.number == 1
        world.passes(3)
        world.reports()
        world.settle()
        assert world.status.phase == "Running"
    world.passes(10)
    world.controller(restarts=3, last_exit=Exit(code=137, reason="OOMKilled", at=world.now))
    world.settle()

    assert (world.status.phase, world.status.reason) == ("Restarting", "OOMKilled")
    assert world.status.failure.exit_code == 137
    assert world.status.failure.node == "node-1"


def test_fm_1_a_failed_run_ends_the_attempt_and_the_next_one_begins_after_the_backoff():
    world = World().running()
    world.reports(checkpoint_step=7)
    world.settle()
    world.ends("failed", code=70, message="the trainer failed in finish: out of memory")
    world.settle()
    assert world.status.phase == "Restarting"
    assert "out of memory" in world.status.message
    world.collect()
    world.settle()
    assert not world.clusters
    world.passes(9)
    world.settle()
    assert not world.clusters
    world.passes(1)
    world.settle()

    assert list(world.clusters) == ["digits-a2"]
    assert (world.status.attempt.number, world.status.attempt.resumed_from_step) == (2, 7)
    assert (world.status.restarts.counted, world.status.restarts.total) == (1, 1)
    assert world.status.history[0].reason == "ControllerFailed"
    assert world.most_clusters == 1


def test_a_manifest_that_the_controller_refuses_fails_at_once():
    world = World().running()
    world.ends("invalid", code=64, message="spec.model.name /models/x lacks config.json")
    world.settle()
    assert (world.status.phase, world.status.reason) == ("Failed", "Invalid")
    assert world.condition("Failed") == ("True", "Invalid")


def test_fm_2_a_deleted_head_pod_ends_the_attempt_at_once():
    world = World().running()
    world.pods[world.head.name] = replace(world.head, deleted=True)
    world.settle()
    assert (world.status.phase, world.status.reason) == ("Restarting", "ControllerPodLost")
    assert world.clusters["digits-a1"].deleted


def test_fm_2_a_head_that_was_made_again_is_not_taken_for_the_old_one():
    world = World().running()
    head = world.head
    world.pods["another"] = replace(head, name="another", uid="uid-another")
    world.settle()
    assert world.status.reason == "ControllerPodLost"
    assert "another" in world.status.message


def test_fm_3_a_silent_controller_is_not_ready_and_later_ends_the_attempt():
    world = World().running()
    world.passes(31)
    world.settle()
    assert world.condition("ControllerReady") == ("False", "NoReport")
    assert world.status.attempt.number == 1
    world.passes(90)
    world.settle()
    assert world.status.reason == "ControllerNotResponding"


def test_fm_5_a_dead_shard_degrades_the_job_and_touches_no_pod():
    world = World().running()
    pods = dict(world.pods)
    world.reports(states=["HEALTHY", "DEAD"])
    world.settle()
    assert (world.status.phase, world.status.generation.serving) == ("Degraded", 1)
    assert "shard 1 DEAD" in world.message("Degraded")
    assert world.status.shards[0].index == 1
    assert world.pods == pods
    world.passes(5)
    world.reports()
    world.settle()
    assert world.status.phase == "Running"


def test_fm_6_a_fleet_below_its_minimum_is_waited_for_and_then_ends_the_attempt():
    world = World().running()
    for _ in range(31):
        world.reports(states=["DEAD", "DEAD"])
        world.settle()
        assert world.status.attempt.number == 1
        if world.status.phase == "Restarting":
            break
        world.passes(10)
    assert world.status.reason == "GenerationDegraded"


def test_fm_8_a_training_pod_that_stays_away_ends_the_attempt():
    world = World().running()
    del world.pods["digits-a1-training-0"]
    world.settle()
    assert world.condition("TrainingHealthy") == ("False", "TrainerFailed")
    for _ in range(6):
        world.passes(10)
        world.reports()
        world.settle()
    assert world.status.reason == "TrainerFailed"


def test_fm_9_a_job_without_progress_is_ended_whatever_it_says():
    world = World().running()
    world.reports(idle_seconds=1801.0)
    world.settle()
    assert world.status.reason == "StepStalled"
    other = World().running()
    other.reports(idle_seconds=1801.0, phase="Checkpointing")
    other.settle()
    assert other.status.reason == "CheckpointStuck"


@pytest.mark.parametrize(
    ("waiting", "reason"),
    [("ImagePullBackOff", "ImagePullFailed"), ("CreateContainerConfigError", "ConfigReferenceMissing")],
)
def test_fm_13_14_a_container_that_cannot_start_is_named(waiting, reason):
    world = World().settle()
    world.start_pods()
    world.controller(waiting=waiting, waiting_message="no such thing: example.test/x", ready=False)
    world.settle()
    assert world.condition("ControllerReady") == ("False", reason)
    assert "example.test/x" in world.message("ControllerReady")


def test_fm_15_an_unschedulable_pod_is_named_for_its_role():
    world = World().settle()
    world.start_pods()
    name = "digits-a1-training-0"
    text = "0/2 nodes are available: insufficient nvidia.com/gpu"
    world.pods[name] = replace(world.pods[name], phase="Pending", ready=False, unschedulable=text)
    world.settle()
    assert world.condition("TrainingHealthy") == ("False", "Unschedulable")
    assert text in world.message("TrainingHealthy")


def test_fm_16_quota_is_named_and_kuberay_is_woken_once_a_minute():
    world = World().settle()
    refusal = "failed to create head pod: pods is forbidden: exceeded quota: team"
    world.clusters["digits-a1"] = replace(world.cluster, refusal=refusal, has_status=True)
    world.settle()
    assert world.condition("ClusterCreated") == ("False", "QuotaExceeded")
    writes = world.writes
    world.passes(61)
    world.once()
    assert world.writes == writes + 1


def test_fm_18_a_refusal_by_pod_security_has_a_hint():
    world = World().settle()
    refusal = "pods is forbidden: violates PodSecurity restricted"
    world.clusters["digits-a1"] = replace(world.cluster, refusal=refusal, has_status=True)
    world.settle()
    assert world.condition("ClusterCreated") == ("False", "ChildRejected")
    assert "label the namespace" in world.message("ClusterCreated")


def test_fm_19_a_claim_that_waits_for_its_first_pod_holds_nothing_up():
    world = World().settle()
    assert world.condition("StorageReady") == ("False", "ClaimPending")
    assert world.clusters


def test_fm_19_a_claim_that_is_not_there_is_waited_for():
    world = World(spec=SPEC | {"checkpointing": {"volume": {"claimName": "mine"}}})
    world.settle()
    assert (world.status.phase, world.status.reason) == ("Pending", "ClaimPending")
    assert not world.clusters
    world.claim = Claim(name="mine", phase="Bound", access_modes=("ReadWriteMany",))
    world.settle()
    assert list(world.clusters) == ["digits-a1"]


def test_fm_20_a_claim_without_the_access_that_is_needed_starts_nothing():
    spec = SPEC | {
        "checkpointing": {"volume": {"claimName": "mine"}},
        "training": {"backend": "torch", "gpusPerHost": 0, "hosts": 2},
    }
    world = World(spec=spec, claim=Claim(name="mine", phase="Bound", access_modes=("ReadWriteOnce",)))
    world.settle()
    assert world.condition("StorageReady") == ("False", "ClaimMismatch")
    assert not world.clusters


def test_fm_24_without_kuberay_the_job_waits_and_looks_again():
    world = World(kuberay=False).settle()
    assert world.condition("Accepted") == ("False", "KubeRayNotInstalled")
    assert world.again.total_seconds() == 60
    world.kuberay = True
    world.settle()
    assert world.clusters


def test_fm_25_26_a_kuberay_that_is_silent_or_refuses_is_named():
    world = World().settle()
    world.passes(61)
    world.settle()
    assert world.condition("ClusterCreated") == ("False", "KubeRayNotResponding")
    world.clusters["digits-a1"] = replace(world.cluster, rejection="name is too long")
    world.settle()
    assert world.condition("ClusterCreated") == ("False", "RayClusterRejected")


def test_fm_35_hot_settings_are_pushed_once_and_acknowledged():
    world = World().running()
    world.spec = SPEC | {"faultPolicy": {"maxRestarts": 3}}
    world.generation = 2
    world.reports(applied_generation=1)
    world.settle()
    assert "config-2" in world.told
    assert world.condition("UpdatePending") == ("True", "UpdatePending")
    world.passes(1)
    world.reports(applied_generation=2)
    world.settle()
    assert world.condition("UpdatePending") == ("False", "UpToDate")
    assert world.status.config.applied_generation == 2


def test_fm_36_warm_changes_wait_for_the_next_attempt():
    world = World().running()
    world.spec = SPEC | {"image": "example.test/other:2"}
    world.generation = 2
    world.reports()
    world.settle()
    assert world.condition("UpdatePending") == ("True", "UpdatePending")
    assert world.status.attempt.number == 1
    world.pods[world.head.name] = replace(world.head, deleted=True)
    world.settle()
    world.collect()
    world.passes(10)
    world.settle()
    world.start_pods()
    world.settle()
    world.reports()
    world.settle()
    assert world.condition("UpdatePending") == ("False", "UpToDate")


def test_fm_40_a_deleted_job_saves_and_goes():
    world = World().running()
    world.deleted = world.now
    world.settle()
    assert "quiesce" in world.told
    assert not world.clusters["digits-a1"].deleted
    world.ends("stopped")
    world.settle()
    assert world.clusters["digits-a1"].deleted
    world.collect()
    world.settle()
    assert not world.exists


def test_api_25_a_deletion_is_bounded():
    world = World().running()
    world.deleted = world.now
    world.settle()
    world.passes(120)
    world.settle()
    assert world.clusters["digits-a1"].deleted
    world.passes(60)
    world.settle()
    assert not world.exists
    assert "CleanupForced" in [reason for reason, *_ in world.events]


def test_fm_42_a_cluster_that_a_user_deletes_is_counted_and_made_anew():
    world = World().running()
    world.clusters.clear()
    world.pods.clear()
    world.settle()
    assert world.status.reason == "ClusterDeleted"
    world.passes(10)
    world.settle()
    assert list(world.clusters) == ["digits-a2"]
    assert world.status.restarts.counted == 1


def test_fm_42_nothing_is_made_again_for_a_job_that_has_ended():
    world = World().running()
    world.ends("complete")
    world.settle()
    world.clusters.clear()
    world.pods.clear()
    world.passes(10_000)
    world.settle()
    assert not world.clusters


def test_fm_44_a_foreign_cluster_is_left_alone():
    world = World()
    world.clusters["digits-a1"] = RayCluster(
        name="digits-a1", uid="uid-foreign", job_uid="", attempt=1, created=world.now
    )
    world.settle()
    assert world.condition("ClusterCreated") == ("False", "ForeignRayCluster")
    assert not world.clusters["digits-a1"].deleted


def test_suspend_saves_frees_everything_and_goes_on_uncounted():
    world = World().running()
    world.spec = SPEC | {"suspend": True}
    world.settle()
    assert world.status.phase == "Checkpointing"
    world.ends("stopped")
    world.settle()
    assert world.status.phase == "Suspending"
    world.collect()
    world.settle()
    assert (world.status.phase, world.clusters) == ("Suspended", {})
    assert world.condition("Suspended") == ("True", "Suspended")

    world.spec = SPEC
    world.settle()
    assert list(world.clusters) == ["digits-a2"]
    assert world.status.restarts.counted == 0
    assert world.status.attempt.reason == "Resumed"


def test_a_suspension_does_not_wait_for_ever_for_a_save():
    world = World().running()
    world.spec = SPEC | {"suspend": True}
    world.settle()
    for _ in range(60):
        world.passes(10)
        world.reports()
        world.settle()
    assert world.clusters["digits-a1"].deleted


def test_the_restart_limit_fails_the_job_and_names_itself():
    world = World(spec=SPEC | {"faultPolicy": {"maxRestarts": 1, "resetAfterSeconds": 0}}).running()
    for _ in range(2):
        world.ends("failed", code=70, message="no luck")
        world.settle()
        world.collect()
        world.passes(400)
        world.settle()
        if world.cluster:
            world.start_pods()
            world.settle()
            world.reports()
            world.settle()
    assert world.status.phase == "Failed"
    assert "maxRestarts 1" in world.status.message
    assert world.status.restarts.counted == 1


def test_a_rule_decides_before_the_defaults():
    rules = [{"name": "no-oom", "reasons": ["OOMKilled"], "action": "FailJob"}]
    world = World(spec=SPEC | {"faultPolicy": {"rules": rules}}).running()
    world.controller(restarts=3, last_exit=Exit(code=137, reason="OOMKilled", at=world.now))
    world.settle()
    assert (world.status.phase, world.status.reason) == ("Failed", "OOMKilled")


def test_startup_has_a_deadline_that_says_what_it_waited_for():
    world = World().settle()
    world.start_pods()
    world.controller(waiting="ErrImagePull", waiting_message="not found", ready=False)
    world.settle()
    world.passes(1801)
    world.settle()
    assert (world.status.phase, world.status.reason) == ("Failed", "StartupDeadlineExceeded")
    assert "ImagePullFailed" in world.status.message


def test_a_finished_job_deletes_itself_when_its_time_is_over():
    world = World(spec=SPEC | {"lifecycle": {"ttlSecondsAfterFinished": 60}}).running()
    world.ends("complete")
    world.settle()
    world.collect()
    world.passes(59)
    world.settle()
    assert world.deleted is None
    world.passes(1)
    world.once()
    assert world.deleted is not None


def test_shards_are_taken_out_and_released_by_annotation():
    world = World(annotations={"asyncrl.io/quarantine-shards": "1"}).running()
    assert "quarantine-1" in world.told
    world.reports(states=["HEALTHY", "RETIRED"])
    world.settle()
    assert world.condition("ShardsQuarantined") == ("True", "OutOfService")
    world.annotations = {}
    world.reports(states=["HEALTHY", "RETIRED"])
    world.settle()
    assert "quarantine-1" not in world.told


def test_a_paused_job_is_left_as_it_is():
    world = World().running()
    world.annotations = {"asyncrl.io/paused": "true"}
    world.pods.clear()
    world.settle()
    assert world.condition("ReconcilePaused") == ("True", "Paused")
    assert world.status.attempt.number == 1
    assert not world.clusters["digits-a1"].deleted


FAULTS = (
    "pods",
    "report",
    "dead",
    "crash",
    "failed",
    "head",
    "cluster",
    "silence",
    "collect",
    "suspend",
    "go on",
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(FAULTS), st.integers(0, 400)), max_size=25))
def test_no_order_of_events_makes_two_attempts_or_too_many_restarts_and_each_comes_to_rest(events):
    world = World(spec=SPEC | {"faultPolicy": {"maxRestarts": 2, "resetAfterSeconds": 0}})
    for kind, seconds in events:
        happen(world, kind)
        world.settle()
        assert not world.once()
        world.passes(seconds)
        world.settle()
        assert len([c for c in world.clusters.values() if not c.deleted]) <= 1
        assert world.most_clusters <= 1
        assert (world.status.restarts.counted or 0) <= 2 if world.status.restarts else True
    for _ in range(12):
        world.collect()
        world.passes(400)
        world.settle()
        if world.cluster and world.head is None:
            world.start_pods()
        elif world.head is not None and world.status.phase not in ("Succeeded", "Failed"):
            world.controller(exit=None, last_exit=None, restarts=0)
            world.ends("complete")
        world.spec = world.spec | {"suspend": False}
        world.settle()
    assert world.status.phase in ("Succeeded", "Failed")


def happen(world, kind):
    if kind == "pods" and world.cluster:
        world.start_pods()
    elif kind == "collect":
        world.collect()
    elif kind == "suspend" and world.status.phase not in ("Succeeded", "Failed"):
        world.spec = world.spec | {"suspend": True}
    elif kind == "go on" and world.status.phase not in ("Succeeded", "Failed"):
        world.spec = world.spec | {"suspend": False}
    elif kind == "cluster":
        for cluster in list(world.clusters.values()):
            world.clusters[cluster.name] = replace(cluster, deleted=True)
    elif world.head is None:
        return
    elif kind == "report":
        world.reports()
    elif kind == "dead":
        world.reports(states=["DEAD", "DEAD"])
    elif kind == "crash":
        world.controller(restarts=3, last_exit=Exit(code=1, at=world.now))
    elif kind == "failed":
        world.ends("failed", code=70, message="no luck")
    elif kind == "head":
        world.pods[world.head.name] = replace(world.head, deleted=True)
