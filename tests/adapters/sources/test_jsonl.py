import json

import pytest
from ports.prompt_source_contract import PromptSourceContract

from asyncrl_runtime.adapters.sources.jsonl import JsonlPrompts
from asyncrl_runtime.adapters.sources.rows import RowFields
from asyncrl_runtime.core.errors import SourceFailure
from asyncrl_runtime.core.records import PromptRef


def write(path, *rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


class TestJsonlPrompts(PromptSourceContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.one = write(tmp_path / "one.jsonl", *({"prompt": f"p{k}", "answer": k} for k in range(4)))
        self.two = write(tmp_path / "two.jsonl", *({"prompt": f"p{k}", "answer": 0} for k in range(4)))

    def make_source(self):
        return JsonlPrompts(self.one)

    def make_other(self):
        return JsonlPrompts(self.two)


async def test_a_row_becomes_a_prompt_with_its_other_keys_as_extra(tmp_path):
    row = {"q": "3+4?", "a": 7, "kind": "sum", "loss_multiplier": 0.5, "difficulty": "easy", "é": "ü"}
    path = write(tmp_path / "d.jsonl", "", {"q": "first"}, "   ", json.dumps(row, ensure_ascii=False))
    source = JsonlPrompts(path, RowFields("q", "a", "kind"))
    first, second = await source.fetch([PromptRef(0, 0), PromptRef(0, 1)])

    assert len(source) == 2
    assert (first.text, first.answer, first.task, first.loss_multiplier) == ("first", None, None, 1.0)
    assert second.messages == ({"role": "user", "content": "3+4?"},)
    assert (second.answer, second.task, second.loss_multiplier) == ("7", "sum", 0.5)
    assert second.extra == {"difficulty": "easy", "é": "ü"}


async def test_a_list_of_messages_is_kept(tmp_path):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    (prompt,) = await JsonlPrompts(write(tmp_path / "d.jsonl", {"prompt": chat})).fetch([PromptRef(0, 0)])

    assert list(prompt.messages) == chat


def test_every_broken_line_is_named_at_once(tmp_path):
    path = write(
        tmp_path / "d.jsonl",
        {"prompt": "fine"},
        '{"prompt": "x"',
        {"question": "x"},
        "[1]",
        {"prompt": 3},
        {"prompt": ""},
        {"prompt": [{"role": "user"}]},
        {"prompt": "x", "task": 5},
        {"prompt": "x", "loss_multiplier": -1},
    )
    with pytest.raises(SourceFailure) as failure:
        JsonlPrompts(path)

    text = str(failure.value)
    assert str(path) in text
    for part in [
        "line 2 is not JSON",
        "line 3 lacks the key 'prompt' (it has: question)",
        "line 4 is a list",
        "line 5 holds a number under 'prompt'",
        "line 6 holds an empty string",
        "line 7 holds a message 1",
        "line 8 holds a number under 'task'",
        "line 9 holds -1 under 'loss_multiplier'",
    ]:
        assert part in text
    assert "line 1 " not in text


def test_only_ten_broken_lines_are_shown_and_the_rest_counted(tmp_path):
    with pytest.raises(SourceFailure) as failure:
        JsonlPrompts(write(tmp_path / "d.jsonl", *["{"] * 13))

    assert str(failure.value).count("is not JSON") == 10
    assert str(failure.value).endswith("; and 3 more")


def test_text_that_is_not_utf8_is_named(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_bytes(b'{"prompt": "ok"}\n{"prompt": "\xff"}\n')
    with pytest.raises(SourceFailure, match="line 2 is not UTF-8"):
        JsonlPrompts(path)


def test_missing_and_empty_files_are_named(tmp_path):
    with pytest.raises(SourceFailure, match=r"absent.jsonl: cannot be read: No such file"):
        JsonlPrompts(tmp_path / "absent.jsonl")
    with pytest.raises(SourceFailure, match="holds no prompts"):
        JsonlPrompts(write(tmp_path / "empty.jsonl", ""))


async def test_a_file_that_shrinks_under_the_run_is_an_error_and_not_a_wrong_prompt(tmp_path):
    path = write(tmp_path / "d.jsonl", {"prompt": "a"}, {"prompt": "b"})
    source = JsonlPrompts(path)
    write(path, {"prompt": "a"})
    with pytest.raises(SourceFailure, match=r"line 2 .*changed while the run is using it"):
        await source.fetch([PromptRef(0, 1)])
