import pytest

from asyncrl_api.base import DefaultsTo, quantity_bytes, quantity_value
from asyncrl_api.derived import Derived
from asyncrl_api.job import AsyncRLJob
from asyncrl_api.parse import parse
from asyncrl_api.paths import all_places
from asyncrl_api.resolve import resolve
from asyncrl_api.rules import violations
from asyncrl_api.schema import unwrap

RESOLVED_LATER = {
    "spec.model.tokenizer",  # stays unset with init: the built-in tokenizer
    "spec.model.init.vocabSize",
    "spec.algorithm.grpo.advEstimator.rewardWeights",
    "spec.value.name",  # stays unset with model.init: the same shape
    "spec.value.revision",
    "spec.value.scheduler.decaySteps",
    "spec.value.maxGradNorm",  # null of the policy is the critic's too
    "spec.validation.sampling.topK",
    "spec.checkpointing.volume",
    "spec.logging.logDir",
    "spec.image",
    "spec.controller.image",
    "spec.generation.image",
    "spec.training.image",
    "spec.generation.maxShards",
    "spec.training.scheduler.decaySteps",
}


def resolved(raw):
    return resolve(parse(raw)).spec


def test_resolving_twice_changes_nothing(accepted):
    for raw in accepted:
        once = resolve(AsyncRLJob.model_validate(raw))
        assert resolve(once) == once


def test_a_resolved_job_breaks_no_rule(accepted):
    for raw in accepted:
        job = resolve(AsyncRLJob.model_validate(raw), cluster=True)
        assert list(violations(job, cluster=True)) == []


def test_what_is_set_stays(accepted):
    for raw in accepted:
        job = AsyncRLJob.model_validate(raw)
        assert_kept(job.model_dump(mode="json"), resolve(job).model_dump(mode="json"), "")


def assert_kept(before, after, path):
    if isinstance(before, dict):
        for key, value in before.items():
            assert_kept(value, after[key], f"{path}.{key}")
    elif before is not None and not isinstance(before, list):
        assert after == before, path


def test_sc_14_146_a_key_has_one_default():
    for path, place in all_places().items():
        derived = [mark for mark in unwrap(place.hint)[1] if isinstance(mark, DefaultsTo)]
        assert len(derived) <= 1, path
        assert not derived or place.field.default is None, path


def test_every_derived_default_is_filled_somewhere(accepted, manifest):
    marked = {
        path
        for path, place in all_places().items()
        if any(isinstance(mark, DefaultsTo) for mark in unwrap(place.hint)[1])
    }
    gym = {"reasoningGym": {"dataset": "chain_sum"}}
    more = [
        manifest(data={"source": gym, "validation": gym}, environment={"reasoningGym": {}}),
        manifest(algorithm={"grpo": {"advEstimator": {"name": "reinforce_plus_plus"}}}),
        manifest(asyncRL={"sampler": {"name": "windowed"}}),
        manifest(dataPlane={"backend": "mooncake_cpu"}),
    ]
    filled = set()
    for raw in [*accepted, *more]:
        dumped = resolve(AsyncRLJob.model_validate(raw), cluster=True).model_dump(mode="json")
        filled |= set_paths(dumped["spec"], "spec")
    assert marked - filled - RESOLVED_LATER == set()


def set_paths(node, path):
    found = {path}
    if isinstance(node, dict):
        for key, value in node.items():
            if value is not None:
                found |= set_paths(value, f"{path}.{key}") | set_paths(value, f"{path}[*]")
    if isinstance(node, list):
        for value in node:
            found |= set_paths(value, f"{path}[]")
    return found


@pytest.mark.parametrize(
    ("sampler", "n", "capacity", "buffer"),
    [
        ({"maxLookaheadVersions": 0}, 4, 4, 64),
        ({"maxLookaheadVersions": 1}, 4, 8, 64),
        ({"name": "weight_fifo", "maxStalenessVersions": 2}, 4, 12, 64),
        ({"name": "ready_first", "maxStalenessVersions": 2}, 4, 12, 64),
        ({"name": "windowed", "maxStalenessVersions": 2}, 4, 0, 64),
        ({"name": "windowed", "maxStalenessVersions": 2}, 32, 0, 128),
        ({"name": "custom", "target": "a.b:C"}, 64, 0, 128),
        ({"maxLookaheadVersions": 3}, 32, 128, 128),
    ],
)
def test_required_capacity_and_buffer(manifest, sampler, n, capacity, buffer):
    """EX-2.1 and SC-2.320…322."""
    job = parse(manifest(asyncRL={"sampler": sampler}, algorithm={"grpo": {"numPromptsPerStep": n}}))
    facts = Derived(job.spec)
    assert facts.required_capacity == capacity
    assert resolve(job).spec.async_rl.max_buffered_rollouts == buffer
    assert (str(capacity) in facts.capacity_formula) == (capacity > 0)


def ppo(manifest, **settings):
    return manifest(
        algorithm={"ppo": {"numPromptsPerStep": 8, "policyTrainingStartStep": 10}},
        value={"optimizer": {"lr": 0.5}},
        valueLoss={},
        **settings,
    )


def test_the_warmup_lookahead_widens_the_required_capacity(manifest):
    """EX-2.1 f."""
    sampler = {"maxLookaheadVersions": 1, "warmupLookaheadVersions": 4}
    facts = Derived(parse(ppo(manifest, asyncRL={"sampler": sampler})).spec)
    assert facts.required_capacity == 40


def test_the_critic_follows_the_policy(manifest):
    training = manifest()["spec"]["training"] | {"microBatchSize": 3, "parallelism": {"expert": 2}}
    spec = resolved(ppo(manifest, training=training))
    assert spec.value.micro_batch_size == 3
    assert spec.value.parallelism.expert == 2
    assert spec.value.optimizer.lr == 0.5
    assert spec.value.optimizer.beta2 == spec.training.optimizer.beta2
    assert spec.value.sequence_packing.enabled is False
    assert spec.value.dynamic_batching.micro_batch_tokens == 3 * 32
    assert spec.value.precision == "float32"


def test_ppo_has_its_own_defaults(manifest):
    spec = resolved(ppo(manifest))
    assert spec.algorithm.ppo.critic_ppo_epochs == spec.algorithm.ppo.ppo_epochs == 4
    assert spec.loss.reference_policy_kl_penalty == 0
    assert spec.training.offload_optimizer_for_logprob is True
    assert spec.async_rl.min_groups_for_streaming_train == 8
    assert spec.algorithm.ppo.adv_estimator.gae_lambda == 0.95


@pytest.mark.parametrize(
    ("sampler", "corrects"),
    [
        ({"maxLookaheadVersions": 0}, False),
        ({"maxLookaheadVersions": 1}, True),
        ({"name": "ready_first", "maxStalenessVersions": 0}, True),
        ({"name": "weight_fifo", "maxStalenessVersions": 0}, False),
        ({"name": "custom", "target": "a:B"}, True),
    ],
)
def test_the_correction_is_on_where_data_may_be_stale(manifest, sampler, corrects):
    spec = resolved(manifest(asyncRL={"sampler": sampler}))
    assert spec.loss.use_importance_sampling_correction is corrects


def test_an_opt_out_of_the_correction_stays(manifest):
    spec = resolved(manifest(loss={"useImportanceSamplingCorrection": False}))
    assert spec.loss.use_importance_sampling_correction is False


@pytest.mark.parametrize(
    ("loss", "n", "smallest"), [({}, 16, 16), ({}, 64, 32), ({"positiveExampleNllWeight": 1}, 64, 64)]
)
def test_the_smallest_chunk(manifest, loss, n, smallest):
    spec = resolved(manifest(loss=loss, algorithm={"grpo": {"numPromptsPerStep": n}}))
    assert spec.async_rl.min_groups_for_streaming_train == smallest


def test_validation_follows_the_prompts_and_the_training_sampling(manifest):
    assert resolved(manifest()).validation.period_steps == 0
    data = {"source": {"generated": {}}, "validation": {"generated": {}}, "seed": 7}
    generation = manifest()["spec"]["generation"] | {"sampling": {"temperature": 0.5, "topK": 3}}
    spec = resolved(manifest(data=data, generation=generation))
    assert (spec.validation.period_steps, spec.validation.at_start) == (10, False)
    assert (spec.validation.sampling.temperature, spec.validation.sampling.top_k) == (0.5, 3)
    assert (spec.data.source.generated.seed, spec.data.validation.generated.seed) == (7, 8)


def test_pods_ask_for_cores_and_memory_by_their_gpus(manifest):
    spec = resolved(
        manifest(
            generation={"gpusPerShard": 4, "hostsPerShard": 2},
            training={"gpusPerHost": 0, "backend": "torch"},
            dataPlane={},
        )
    )
    assert spec.generation.resources.requests == {"cpu": "8", "memory": "64Gi"}
    assert spec.generation.resources.limits == {"memory": "64Gi"}
    assert spec.training.resources.requests == {"cpu": "1", "memory": "4Gi"}
    assert spec.generation.tensor_parallel == 4


def test_a_condition_signal_counts_as_bad_when_true(manifest):
    signals = [{"kind": "Condition", "key": "GpuBad"}, {"kind": "Taint", "key": "bad"}]
    spec = resolved(manifest(nodeQuarantine={"nodeSignals": signals}))
    assert [signal.value for signal in spec.node_quarantine.node_signals] == ["True", None]


@pytest.mark.parametrize(
    ("transport", "settings"),
    [
        ("SharedMemory", {}),
        ("Gloo", {"dataPlane": {}}),
        ("NCCL", {"dataPlane": {}, "generation": {}, "training": {}}),
        ("Files", {"dataPlane": {}, "generation": {}, "training": {"backend": "torch", "gpusPerHost": 0}}),
        ("Megatron", {"dataPlane": {}, "generation": {"backend": "megatron"}, "training": {}}),
    ],
)
def test_the_automatic_transport(manifest, transport, settings):
    assert Derived(parse(manifest(**settings)).spec).refit_transport == transport


@pytest.mark.parametrize(
    ("quantity", "value"),
    [
        ("500m", 0.5),
        ("4", 4),
        ("1.5Gi", 1.5 * 2**30),
        ("2e3", 2000),
        ("1E3", 1000),
        ("3k", 3000),
        (".5", 0.5),
    ],
)
def test_quantities(quantity, value):
    assert quantity_value(quantity) == pytest.approx(value)


def test_bytes_of_a_quantity():
    assert quantity_bytes("64Mi") == 64 * 2**20


@pytest.mark.parametrize("quantity", ["", "x", "1.5.2", "-1", "5 Gi", "1KiB"])
def test_what_is_no_quantity(quantity):
    with pytest.raises(ValueError, match="not a quantity"):
        quantity_value(quantity)
