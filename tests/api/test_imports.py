import subprocess
import sys

import pytest

HEAVY = {"torch", "transformers", "ray", "numpy", "yaml", "typer", "rich"}
ON_DEMAND = {"asyncrl_api.docs", "asyncrl_api.problems", "asyncrl_api.schema", "asyncrl_api.paths"}


def modules_after(code):
    script = f"{code}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_package_itself_imports_nothing():
    assert not {name for name in modules_after("import asyncrl_api") if "pydantic" in name}


@pytest.mark.parametrize(
    "module", ["job", "parse", "resolve", "derived", "crd", "explain", "warnings", "status", "rules"]
)
def test_no_module_imports_anything_heavy(module):
    assert not HEAVY & modules_after(f"import asyncrl_api.{module}")


def test_a_valid_manifest_is_parsed_without_reading_docs(manifest):
    """CLI-24: what only a wrong manifest or `explain` needs is imported then."""
    imports = "from asyncrl_api.parse import parse\nfrom asyncrl_api.resolve import resolve"
    code = f"{imports}\nresolve(parse({manifest()!r}))"
    assert not ON_DEMAND & modules_after(code)
