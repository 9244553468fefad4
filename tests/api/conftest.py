import copy
import json
from pathlib import Path

import pytest
import yaml

DATA = Path(__file__).parent / "data"
SAMPLES = Path(__file__).parents[2] / "crds" / "samples"
CASES = json.loads((DATA / "cases.json").read_text())


def pytest_generate_tests(metafunc):
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES, ids=[case["name"] for case in CASES])


@pytest.fixture(scope="session")
def cases():
    return CASES


@pytest.fixture(scope="session")
def accepted():
    """Objects that break no rule."""
    return [case["object"] for case in CASES if case["accepted"]]


@pytest.fixture
def manifest():
    """Build the minimal manifest with settings of `spec` changed: `manifest(asyncRL__diagnostics=True)`."""
    base = yaml.safe_load((SAMPLES / "minimal.yaml").read_text())

    def build(**settings):
        raw = copy.deepcopy(base)
        for path, value in settings.items():
            steps = path.split("__")
            node = raw["spec"]
            for step in steps[:-1]:
                node = node.setdefault(step, {})
            if value is DELETED:
                del node[steps[-1]]
            else:
                node[steps[-1]] = value
        return raw

    build.deleted = DELETED
    return build


DELETED = object()


@pytest.fixture(scope="session")
def reference_crd():
    return json.loads((DATA / "schema.json").read_text())


@pytest.fixture(params=["minimal.yaml", "full.yaml"])
def example(request):
    return yaml.safe_load((SAMPLES / request.param).read_text())
