"""Metadata of groups, as tests of the core need it."""

from asyncrl_runtime.core.records import GroupMeta, PromptRef, sample_id


def group(name, *, weight=0, target=None, attempt=0, place=0, generations=1, end_weight=None, tokens=2):
    """A committed group whose rows have three tokens."""
    return GroupMeta(
        group_id=name,
        attempt=attempt,
        prompt=PromptRef(0, place),
        sample_ids=tuple(sample_id(name, attempt, i) for i in range(generations)),
        lengths=(3,) * generations,
        weight_versions=(weight,) * generations,
        generated_tokens=tokens * generations,
        start_weight=weight,
        end_weight=weight if end_weight is None else end_weight,
        straddled=False,
        target_step=target,
    )


def put_slot(buffer, name, *, weight=0, target=None, ready=True, attempt=0):
    """Launch a group, reserve its slot, and commit it if it is ready."""
    meta = group(name, weight=weight, target=target, attempt=attempt)
    buffer.launch(name)
    buffer.reserve(name, meta.prompt, start_weight=weight, target_step=target, attempt=attempt)
    if ready:
        buffer.commit(meta)
    return meta
