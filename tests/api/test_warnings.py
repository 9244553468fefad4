import pytest

from asyncrl_api.job import AsyncRLJob
from asyncrl_api.parse import parse
from asyncrl_api.paths import find
from asyncrl_api.warnings import warnings_for

VALIDATED = {"data__validation": {"generated": {}}}
GYM = {
    "environment": {"nemoGym": {}},
    "generation": {"backend": "vllm", "gpusPerShard": 1},
    "dataPlane": {},
}
CASES = [
    (
        "W-1",
        {"asyncRL": {"rolloutFailure": {"maxSkippedPrompts": 1, "minStepBatchFraction": 1.0}}},
    ),
    (
        "W-2",
        {"asyncRL": {"sampler": {"name": "windowed"}, "rolloutFailure": {"onDroppedPrompt": "replace"}}},
    ),
    ("W-3", {"asyncRL": {"rolloutFailure": {"replacementReservePrompts": 17}}}),
    ("W-4", {"checkpointing": {"saveDataPlane": False}, "dataPlane": {"backend": "mooncake_cpu"}}),
    ("W-5", {**GYM, "asyncRL": {"generationRouter": {"enabled": True}}}),
    (
        "W-6",
        {"algorithm__grpo": {"rewardShaping": {"stopProperlyPenaltyCoef": 0.5, "maxResponseLength": 3}}},
    ),
    ("W-7", {"validation": {"atEnd": True}}),
    (
        "W-8",
        {
            **GYM,
            "algorithm__grpo": {"advEstimator": {"name": "opd"}},
            "onPolicyDistillation": {
                "teacherModelByAgentName": {"a": "b"},
                "strictAgentNameMatch": True,
            },
        },
    ),
    ("W-9", {"loss": {"forceOnPolicyRatio": True}}),
    ("W-10", {"asyncRL": {"generationFleetHealth": {"unhealthyThreshold": 7}}}),
    ("W-10", {"asyncRL": {"drainTimeoutSeconds": 7.0}}),
    (
        "W-10",
        {"model": {"name": "m"}, "checkpointing__pretrainedCheckpoint": {"path": "/x"}},
    ),
    ("W-11", {"asyncRL": {"generationFleetHealth": {"enabled": True}}}),
    ("W-12", {}),
    (
        "W-13",
        {
            "dataPlane": {},
            "checkpointing": {"volume": {"template": {"storage": "1Gi", "accessModes": ["ReadWriteOnce"]}}},
        },
    ),
    ("W-14", {**VALIDATED, "checkpointing": {"metricName": "val:accuracy", "savePeriod": 5}}),
    (
        "W-15",
        {
            "checkpointing": {},
            "tokenCapture": {"enabled": True},
            "rolloutCheckpointing": {"snapshotAttemptIntervalSeconds": 60.0},
        },
    ),
    (
        "W-16",
        {"asyncRL": {"sampler": {"name": "windowed"}, "maxBufferedRollouts": 32}},
    ),
]


def ids_of(raw, *, cluster=True):
    return {warning.id for warning in warnings_for(parse(raw), cluster=cluster)}


@pytest.mark.parametrize(("warning_id", "settings"), CASES)
def test_a_warning_and_its_absence(manifest, warning_id, settings):
    quiet = {"faultPolicy": {"maxRestarts": 0}}
    assert warning_id in ids_of(manifest(**settings))
    assert warning_id not in ids_of(manifest(**quiet))


def test_each_warning_has_a_case():
    assert {warning_id for warning_id, _ in CASES} == {f"W-{number}" for number in range(1, 17)}


@pytest.mark.parametrize(("_", "settings"), CASES)
def test_a_warning_names_a_field(manifest, _, settings):
    for warning in warnings_for(parse(manifest(**settings)), cluster=True):
        assert find(warning.path) is not None
        assert str(warning).startswith(f"{warning.path}: ")


def test_what_concerns_pods_is_not_told_on_one_machine(manifest):
    assert ids_of(manifest(), cluster=False) == set()


@pytest.mark.parametrize(
    ("period", "start_at", "save", "at_start", "told"),
    [
        (5, -1, 10, False, False),
        (10, -1, 10, False, False),
        (10, 25, 20, False, True),
        (10, -1, 5, True, False),
    ],
)
def test_the_first_validation_and_the_first_save(manifest, period, start_at, save, at_start, told):
    raw = manifest(
        **VALIDATED,
        validation={"periodSteps": period, "startAt": start_at, "atStart": at_start},
        checkpointing={"metricName": "val:accuracy", "savePeriod": save},
    )
    assert ("W-14" in ids_of(raw)) is told


def test_valid_examples_give_few_warnings(example):
    assert ids_of(example) <= {"W-12"}


def test_warnings_work_on_every_accepted_case(accepted):
    for raw in accepted:
        for warning in warnings_for(AsyncRLJob.model_validate(raw), cluster=True):
            assert find(warning.path) is not None
