"""Files of the reference, made of the least that can be imported and what a test is about."""

from asyncrl_runtime.app.nemo.chain import Reference, merged
from asyncrl_runtime.app.nemo.walk import carry_over

LEAST = {
    "cluster": {"num_nodes": 1, "gpus_per_node": 8},
    "env": {"math": {}},
    "policy": {
        "model_name": "example-org/base",
        "megatron_cfg": {"enabled": True},
        "generation": {"colocated": {"resources": {"num_nodes": 1, "gpus_per_node": 4}}},
    },
}
CRITIC = {"value": {}, "value_loss_fn": {}}


def tree(settings):
    """Nested blocks of a value by dotpath."""
    found = {}
    for path, value in settings.items():
        node = found
        *blocks, key = path.split(".")
        for step in blocks:
            node = node.setdefault(step, {})
        node[key] = value
    return found


def reference(settings, algorithm="grpo"):
    """What a file says that holds the least, an algorithm, and these settings by dotpath."""
    blocks = {algorithm: {}, **(CRITIC if algorithm == "ppo" else {})}
    return merged(merged(LEAST, blocks), tree(settings))


def carried(settings, algorithm="grpo"):
    """The import of such a file."""
    return carry_over(Reference("job.yaml", reference(settings, algorithm)))


def told(remarks):
    """Remarks as lines."""
    return [f"{remark.path}: {remark.text}" for remark in remarks]
