import pytest

from asyncrl_api.docs import field_doc
from asyncrl_api.explain import UnknownField, explain
from asyncrl_api.paths import all_places, find
from asyncrl_api.spec.pods import ControllerSpec


def test_a_field():
    assert explain("spec.asyncRL.maxInflightPrompts").splitlines() == [
        "KIND:     AsyncRLJob",
        "VERSION:  asyncrl.io/v1alpha1",
        "",
        "FIELD: spec.asyncRL.maxInflightPrompts <integer>",
        "",
        "DESCRIPTION:",
        "    Groups generating at the same time. Without effect when `maxInflightGenerations` is set.",
        "    Default: 32",
        "    Bounds: at least 1, at most 65536",
        "    Changes: hot",
    ]


def test_a_block_lists_its_fields():
    text = explain("spec.asyncRL.sampler")
    assert "  name <in_order | weight_fifo | ready_first | windowed | custom>" in text
    assert "maxStalenessVersions <integer>" in text


def test_a_derived_default_is_told():
    assert "Default: 4 × hiddenSize (worked out when unset)" in explain("model.init.intermediateSize")


def test_a_null_that_is_a_value_is_told():
    assert "null is a value" in explain("spec.algorithm.grpo.maxNumEpochs")
    assert "null is a value" not in explain("spec.asyncRL.drainTimeoutSeconds")


def test_required_fields_are_marked():
    assert "source <Object> -required-" in explain("spec.data")
    assert "Required." in explain("spec.data.source")


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("spec.controller.env[0].name", "spec.controller.env[].name"),
        ("controller.env.name", "spec.controller.env[].name"),
        ("environment.byTask.add.arithmetic.reward", "spec.environment.byTask[*].arithmetic.reward"),
        ("environment.byTask.arithmetic", "spec.environment.byTask[*].arithmetic"),
        ("spec.environment.byTask", "spec.environment.byTask"),
        ("status.progress.step", "status.progress.step"),
        ("spec.model.init.hiddenSize.x", None),
        ("spec.environment.byTask.add.nothing", None),
    ],
)
def test_paths_are_found_as_users_write_them(path, found):
    place = find(path)
    assert (place and place.path) == found


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("spec.asyncRL.maxInflightPrompt", "spec.asyncRL.maxInflightPrompts"),
        ("training.optimiser.lr", "spec.training.optimizer.lr"),
        ("spec.modle", "spec.model"),
    ],
)
def test_an_unknown_path_names_the_nearest(path, nearest):
    with pytest.raises(UnknownField) as unknown:
        explain(path)
    assert unknown.value.nearest == nearest
    assert nearest in str(unknown.value)


def test_every_path_can_be_explained():
    for path in all_places():
        assert f"FIELD: {path} <" in explain(path)


def test_docstrings_are_inherited_and_their_absence_is_an_error():
    assert field_doc(ControllerSpec, "tolerations") == "Taints that the pod accepts."
    with pytest.raises(LookupError, match="no docstring"):
        field_doc(ControllerSpec, "nothing")
