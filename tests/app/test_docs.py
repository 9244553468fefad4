"""The code of the documentation runs, and its links lead somewhere."""

import re
from pathlib import Path

import pytest
from support.cli import asyncrl, shared_torch_server, small_job, summary

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
