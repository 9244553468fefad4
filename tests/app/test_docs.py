"""The code of the documentation runs, and its links lead somewhere."""

import re
from pathlib import Path

import pytest
from support.cli import asyncrl, shared_torch_server, small_job, summary

from asyncrl_api.paths import find

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "operator" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
FUNCTION = {"function": {"target": "pairs:score", "arguments": {"bonus": 0.25}}}
TURNS = {"function": {"target": "guess:HigherOrLower"}}
SAMPLER = {"name": "custom", "target": "freshest:Freshest", "arguments": {"window": 2}}


@pytest.fixture(scope="module", autouse=True)
def torch_process():
    with shared_torch_server() as server:
        yield server


@pytest.mark.parametrize(
    "changes",
    [
        {"environment": {"arithmetic": None, **FUNCTION}},
        {
            "environment": {"arithmetic": None, **TURNS},
            "algorithm": {"grpo": {"maxRolloutTurns": 3}},
        },
        {"asyncRL": {"sampler": SAMPLER}},
    ],
    ids=["function", "turns", "sampler"],
)
def test_the_examples_of_extending_run(changes, tmp_path):
    page = (ROOT / "docs" / "extending.md").read_text()
    for name, code in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL):
        (tmp_path / name).write_text(code)
    result = asyncrl("run", small_job(tmp_path, **changes), "--output", tmp_path / "run", "--quiet")

    assert result.exit_code == 0, result.stderr
    assert summary(tmp_path / "run")["steps"] == 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", [ROOT / "README.md"], ids=["README"])
def test_commands_of_the_readme_exist(page):
    commands = set(re.findall(r"(?:^|`)asyncrl (\w+)", page.read_text(), re.MULTILINE))

    assert commands >= {"run", "status", "report", "validate", "init"}
    for command in commands:
        assert asyncrl(command, "--help").exit_code == 0


FAILURES = (ROOT / "docs" / "failures.md").read_text()
BELOW_ASYNC_RL = ("rolloutFailure", "generationFleetHealth", "refit", "stallWatchdog")


def test_the_settings_of_the_page_on_failures_exist_with_the_defaults_that_it_names():
    named = re.findall(r"`([a-z]\w*(?:\.\w+)+)`(?: \(([^):;]+)[):;])?", FAILURES)
    fields = {(path, default) for path, default in named if not path.endswith((".jsonl", ".json", ".log"))}

    assert len(fields) > 30
    for path, default in fields:
        full = f"asyncRL.{path}" if path.split(".")[0] in BELOW_ASYNC_RL else path
        found = find(full)
        assert found is not None, path
        if default:
            value = found.field.default
            assert default == ("unset" if value is None else f"{value}".removesuffix(".0")), path


def test_the_events_of_the_page_on_failures_are_told():
    source = "".join(path.read_text() for path in (ROOT / "runtime" / "src").rglob("*.py"))
    seen = " ".join(line.split("|")[4] for line in FAILURES.splitlines() if line.count("|") == 5)
    kinds = set(re.findall(r"`([a-z]+_[a-z_]+|stalled|resumed|refit)`", seen))

    assert len(kinds) > 10
    for kind in kinds - {"left_over"}:
        assert re.search(rf"""(event|_tell)\(\s*"{kind}\"""", source), kind
