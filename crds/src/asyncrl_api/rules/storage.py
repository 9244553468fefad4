"""Rules about data plane, checkpoints and recovery: V-64 to V-80."""

import re
from typing import Any

from asyncrl_api.derived import Derived
from asyncrl_api.job import JobSpec
from asyncrl_api.rules.table import Rule


def _is_one_process(s: JobSpec, _: Derived) -> bool:
    backends = (s.generation.backend, s.training.backend)
    sizes = (s.training.hosts, s.generation.hosts_per_shard)
    gpus = (s.generation.gpus_per_shard, s.training.gpus_per_host)
    alone = backends == ("torch", "torch") and sizes == (1, 1) and gpus == (0, 0)
    return s.data_plane.backend != "inProcess" or alone


def _mooncake_sizes_with_mooncake(s: JobSpec, _: Derived) -> bool:
    sizes = (s.data_plane.global_segment_size, s.data_plane.local_buffer_size)
    return s.data_plane.backend == "mooncake_cpu" or sizes == (None, None)


def _granularity_can_be_had(s: JobSpec, _: Derived) -> bool:
    recovery = s.rollout_recovery
    overrides = (recovery.task_source_granularity_overrides, recovery.agent_granularity_overrides)
    asked = {recovery.default_granularity}.union(*((each or {}).values() for each in overrides))
    return s.token_capture.enabled or asked == {"sibling"}


def _validation_gives_the_metric(s: JobSpec, _: Derived) -> bool:
    if not (s.checkpointing.metric_name or "").startswith("val:"):
        return True
    return s.data.validation is not None and s.validation.period_steps != 0


def _all_hosts_can_write(s: JobSpec, _: Derived) -> bool:
    volume = s.checkpointing.volume
    if s.training.hosts <= 1 or volume is None or volume.template is None:
        return True
    return "ReadWriteMany" in volume.template.access_modes


def _snapshots_need(key: str, cel: str, field: str, fault: str) -> dict[str, Any]:
    return {
        "field": field,
        "cel": f"!SNAPS || {cel}",
        "message": f"rolloutCheckpointing.snapshotAttemptIntervalSeconds is set, but {fault}: {key}, "
        "or remove the interval",
    }


STORAGE_RULES = (
    Rule(
        id="V-64",
        statement="`inProcess` is one process.",
        field=".dataPlane.backend",
        cel="self.dataPlane.backend != 'inProcess' || (self.generation.backend == 'torch'"
        " && self.training.backend == 'torch' && self.training.hosts == 1"
        " && self.generation.hostsPerShard == 1 && self.generation.gpusPerShard == 0"
        " && self.training.gpusPerHost == 0)",
        holds=_is_one_process,
        message="dataPlane.backend inProcess runs everything in one process without GPUs: set both backends "
        "to torch, training.hosts to 1, gpusPerShard and gpusPerHost to 0, or use simple",
    ),
    Rule(
        id="V-65",
        statement="Mooncake sizes only with Mooncake.",
        field=".dataPlane.backend",
        cel="self.dataPlane.backend == 'mooncake_cpu'"
        " || !(has(self.dataPlane.globalSegmentSize) || has(self.dataPlane.localBufferSize))",
        holds=_mooncake_sizes_with_mooncake,
        message="globalSegmentSize and localBufferSize are read by mooncake_cpu only, and backend is "
        "{self.dataPlane.backend}: remove them",
    ),
    Rule(
        id="V-66",
        statement="The data plane holds the buffer and one step.",
        field=".dataPlane.storageCapacity",
        cel="self.dataPlane.storageCapacity >= (BUF + N) * G",
        holds=lambda s, d: s.data_plane.storage_capacity >= d.required_storage_rows,
        message="dataPlane.storageCapacity {self.dataPlane.storageCapacity} holds fewer rows than the buffer "
        "and the step being trained need, {rows}: raise it or lower asyncRL.maxBufferedRollouts",
        values={"rows": ("(BUF + N) * G", lambda s, d: d.required_storage_rows)},
    ),
    Rule(
        id="V-67",
        statement="Finished rollouts are saved wherever they can be.",
        field=".checkpointing.saveDataPlane",
        cel="!SAVING || self.checkpointing.saveDataPlane || MODE == 'custom'"
        " || self.dataPlane.backend == 'mooncake_cpu'",
        holds=lambda s, d: (
            not d.saves
            or s.checkpointing.save_data_plane
            or d.sampler == "custom"
            or s.data_plane.backend == "mooncake_cpu"
        ),
        message="checkpointing.saveDataPlane is false, and finished rollouts of sampler {MODE} would not "
        "survive a restart: set it to true",
    ),
    Rule(
        id="V-68",
        statement="Mooncake's rows cannot be saved.",
        field=".checkpointing.saveDataPlane",
        cel="!SAVING || !self.checkpointing.saveDataPlane || self.dataPlane.backend != 'mooncake_cpu'",
        holds=lambda s, d: (
            not (d.saves and s.checkpointing.save_data_plane) or s.data_plane.backend != "mooncake_cpu"
        ),
        message="checkpointing.saveDataPlane needs a data plane that can be saved, and dataPlane.backend "
        "mooncake_cpu cannot: use simple, or set saveDataPlane to false and let unfinished prompts be "
        "generated again",
    ),
    Rule(
        id="V-69",
        statement="Snapshots need checkpoints.",
        holds=lambda s, d: not d.takes_snapshots or d.saves,
        **_snapshots_need("turn it on", "SAVING", ".checkpointing.enabled", "checkpointing.enabled is false"),
    ),
    Rule(
        id="V-70",
        statement="Snapshots need saved rollouts.",
        holds=lambda s, d: not d.takes_snapshots or s.checkpointing.save_data_plane,
        **_snapshots_need(
            "turn it on",
            "self.checkpointing.saveDataPlane",
            ".checkpointing.saveDataPlane",
            "checkpointing.saveDataPlane is false",
        ),
    ),
    Rule(
        id="V-71",
        statement="Snapshots need a data plane that can be saved.",
        holds=lambda s, d: not d.takes_snapshots or s.data_plane.backend != "mooncake_cpu",
        **_snapshots_need(
            "use simple",
            "self.dataPlane.backend != 'mooncake_cpu'",
            ".dataPlane.backend",
            "the rows of dataPlane.backend mooncake_cpu cannot be saved",
        ),
    ),
    Rule(
        id="V-72",
        statement="Snapshots need token capture.",
        holds=lambda s, d: not d.takes_snapshots or s.token_capture.enabled,
        **_snapshots_need(
            "turn it on",
            "self.tokenCapture.enabled",
            ".tokenCapture.enabled",
            "tokenCapture.enabled is false",
        ),
    ),
    Rule(
        id="V-73",
        statement="A granularity other than the default needs token capture.",
        field=".rolloutRecovery",
        cel="self.tokenCapture.enabled || (self.rolloutRecovery.defaultGranularity == 'sibling'"
        " && (!has(self.rolloutRecovery.taskSourceGranularityOverrides)"
        " || self.rolloutRecovery.taskSourceGranularityOverrides.all(k,"
        " self.rolloutRecovery.taskSourceGranularityOverrides[k] == 'sibling'))"
        " && (!has(self.rolloutRecovery.agentGranularityOverrides)"
        " || self.rolloutRecovery.agentGranularityOverrides.all(k,"
        " self.rolloutRecovery.agentGranularityOverrides[k] == 'sibling')))",
        holds=_granularity_can_be_had,
        message="rolloutRecovery asks for a granularity of its own, which needs the tokens of single "
        "completions: set tokenCapture.enabled, or remove it",
    ),
    Rule(
        id="V-74",
        statement="`metricName` begins with `train:` or `val:`.",
        field=".checkpointing.metricName",
        cel="!has(self.checkpointing.metricName)"
        " || self.checkpointing.metricName.matches('^(train|val):.+$')",
        holds=lambda s, _: (
            s.checkpointing.metric_name is None
            or re.search(r"^(train|val):.+$", s.checkpointing.metric_name) is not None
        ),
        message="metricName {self.checkpointing.metricName} must say where the metric comes from: write "
        "train:{self.checkpointing.metricName} or val:{self.checkpointing.metricName}, "
        "for example val:accuracy",
    ),
    Rule(
        id="V-75",
        statement="A `val:` metric needs periodic validation.",
        field=".checkpointing.metricName",
        cel="!self.checkpointing.?metricName.orValue('').startsWith('val:')"
        " || (has(self.data.validation) && self.validation.?periodSteps.orValue(1) > 0)",
        holds=_validation_gives_the_metric,
        message="checkpointing.metricName {self.checkpointing.?metricName.orValue('')} needs validation: "
        "set data.validation and validation.periodSteps, or use a train: metric",
    ),
    Rule(
        id="V-76",
        statement="`ftSavePeriod` needs `ftKeepLatestK`.",
        field=".checkpointing.ftKeepLatestK",
        cel="!has(self.checkpointing.ftSavePeriod) || has(self.checkpointing.ftKeepLatestK)",
        holds=lambda s, _: (
            s.checkpointing.ft_save_period is None or s.checkpointing.ft_keep_latest_k is not None
        ),
        message="ftSavePeriod {self.checkpointing.ftSavePeriod} would fill the volume: "
        "say with ftKeepLatestK how many to keep",
    ),
    Rule(
        id="V-77",
        statement="Exactly one of `claimName` and `template`.",
        where="checkpointing.volume",
        cel="has(self.claimName) != has(self.template)",
        holds=lambda x, _: (x.claim_name is None) != (x.template is None),
        message="volume must hold exactly one of claimName and template, and holds {held}: "
        "name an existing claim, or describe one to create",
        values={
            "held": (
                "has(self.claimName) ? 'both' : 'neither'",
                lambda x, _: "neither" if x.claim_name is None else "both",
            )
        },
    ),
    Rule(
        id="V-78",
        statement="Several training hosts need ReadWriteMany.",
        field=".checkpointing.volume.template.accessModes",
        cel="self.training.hosts <= 1 || !has(self.checkpointing.volume)"
        " || !has(self.checkpointing.volume.template)"
        " || 'ReadWriteMany' in self.checkpointing.volume.template.accessModes",
        holds=_all_hosts_can_write,
        message="training.hosts is {self.training.hosts}, and all of them write checkpoints: "
        "add ReadWriteMany to checkpointing.volume.template.accessModes",
    ),
    Rule(
        id="V-79",
        statement="On a cluster, checkpoints need a volume.",
        field=".checkpointing.volume",
        cel="!SAVING || has(self.checkpointing.volume)",
        holds=lambda s, d: not d.saves or s.checkpointing.volume is not None,
        cluster=True,
        message="checkpointing is on and has no volume, so nothing would outlive a pod: "
        "set checkpointing.volume, or checkpointing.enabled to false",
    ),
    Rule(
        id="V-80",
        statement="Megatron's format needs the Megatron trainer.",
        field=".checkpointing.modelSaveFormat",
        cel="self.checkpointing.modelSaveFormat != 'megatron' || self.training.backend == 'megatron'",
        holds=lambda s, _: (
            s.checkpointing.model_save_format != "megatron" or s.training.backend == "megatron"
        ),
        message="checkpointing.modelSaveFormat megatron needs training.backend megatron: use safetensors",
    ),
)
