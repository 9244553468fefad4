"""Files of a run folder that somebody broke: one line, status 2, no traceback."""

import pytest
from support.cli import asyncrl

STATE = '"name": "x", "phase": "Running"'


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("state.json", "{", "it is not JSON"),
        ("state.json", "[]", "it holds list where an object belongs"),
        ("state.json", "{}", "it has no name"),
        ("state.json", "\\xff", "it is not JSON"),
        ("state.json", None, "Is a directory"),
        ("state.json", f'{{{STATE}, "step": "many"}}', "step is 'many' where a number belongs"),
        ("state.json", f'{{{STATE}, "shards": [3]}}', "no state of a run"),
        ("state.json", f'{{{STATE}, "prompts": [1]}}', "prompts is no object"),
        (
            "state.json",
            f'{{{STATE}, "prompts": {{"discarded_by_cause": 1}}}}',
            "discarded_by_cause is no object",
        ),
        ("summary.json", "x", "it is not JSON"),
        ("summary.json", '{"seconds": true}', "seconds is True where a number belongs"),
        ("summary.json", '{"prompts": {"admitted": "x"}}', "admitted is 'x' where a number belongs"),
        ("summary.json", None, "Is a directory"),
    ],
)
@pytest.mark.parametrize("command", ["status", "tail"])
def test_status_and_tail_name_a_broken_file(command, name, content, problem, tmp_path):
    if content is None:
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text(content)
    result = asyncrl(command, tmp_path)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {tmp_path / name} cannot be read: {problem}")
    assert result.stderr.endswith("; repair it or move it away\n")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("metrics.jsonl", '{"step": 1, "train/loss": 2}\n{bad\n', "a line is not JSON"),
        ("metrics.jsonl", "[1]\n", "a line holds no object"),
        ("events.jsonl", "nope\n", "a line is not JSON"),
        ("summary.json", "[]", "it holds list"),
        ("config.yaml", None, "[Errno 21] Is a directory"),
    ],
)
def test_a_report_names_a_broken_file(name, content, problem, tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "train/loss": 2}\n')
    if content is None:
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text(content)
    result = asyncrl("report", tmp_path)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {tmp_path / name} cannot be read: {problem}")


@pytest.mark.parametrize(
    "line", ['{"step": 1}', '{"step": 1, "time": 3, "train/loss": "x"}', '{"step": "1"}']
)
def test_a_report_needs_numbers(line, tmp_path):
    (tmp_path / "metrics.jsonl").write_text(line + "\n")
    result = asyncrl("report", tmp_path)

    assert result.exit_code == 2
    assert "holds no metrics.jsonl with a finished step" in result.stderr


@pytest.mark.parametrize("place", ["file/report.html", "file"])
def test_a_report_that_cannot_be_written_is_one_line(place, tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "train/loss": 2}\n')
    (tmp_path / "file").write_text("")
    result = asyncrl("report", tmp_path, "--output", tmp_path / place)

    assert result.exit_code == 2
    assert result.stderr == f"error: {tmp_path / 'file'} cannot be written: File exists; see --output\n"


def test_tail_names_a_broken_line_of_events(tmp_path):
    (tmp_path / "summary.json").write_text("{}")
    (tmp_path / "events.jsonl").write_text('{"time": 1, "kind": "refit"}\n{oops\n')
    result = asyncrl("tail", tmp_path)

    assert result.exit_code == 2
    assert f"{tmp_path / 'events.jsonl'} cannot be read: a line is not JSON" in result.stderr


def test_explain_without_a_field_shows_the_spec():
    assert asyncrl("explain").stdout == asyncrl("explain", "spec").stdout != ""
