import datasets
import pytest
from ports.prompt_source_contract import PromptSourceContract

from asyncrl_runtime.adapters.sources.hub import HubPrompts
from asyncrl_runtime.core.errors import SourceFailure
from asyncrl_runtime.core.records import PromptRef


@pytest.fixture(autouse=True)
def _offline(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def save(folder, answer):
    rows = {"prompt": [f"p{k}" for k in range(4)], "answer": [answer] * 4, "level": list(range(4))}
    datasets.DatasetDict({"train": datasets.Dataset.from_dict(rows)}).save_to_disk(folder)
    return str(folder)


class TestHubPrompts(PromptSourceContract):
    @pytest.fixture(autouse=True)
    def _folders(self, tmp_path):
        self.one, self.two = save(tmp_path / "one", "x"), save(tmp_path / "two", "y")

    def make_source(self):
        return HubPrompts(self.one, split="train")

    def make_other(self):
        return HubPrompts(self.two, split="train")


async def test_columns_beside_the_named_ones_are_extra(tmp_path):
    source = HubPrompts(save(tmp_path / "d", "x"), split="train")
    (prompt,) = await source.fetch([PromptRef(0, 3)])

    assert (prompt.text, prompt.answer, prompt.extra) == ("p3", "x", {"level": 3})


async def test_a_folder_of_json_lines_is_read_like_a_data_set(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "train.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    source = HubPrompts(str(tmp_path / "d"), split="train")

    assert [p.text for p in await source.fetch([PromptRef(0, 1), PromptRef(0, 0)])] == ["b", "a"]


def test_an_absent_split_names_those_there_are(tmp_path):
    with pytest.raises(SourceFailure, match="holds train; set split"):
        HubPrompts(save(tmp_path / "d", "x"), split="test")


def test_a_missing_column_names_those_there_are(tmp_path):
    from asyncrl_runtime.adapters.sources.rows import RowFields

    with pytest.raises(SourceFailure, match=r"lacks the column 'problem' \(it has: prompt, answer, level\)"):
        HubPrompts(save(tmp_path / "d", "x"), split="train", fields=RowFields(prompt="problem"))


def test_an_unknown_name_says_what_to_do(tmp_path):
    with pytest.raises(SourceFailure, match=r"no/such-thing-here, split train: cannot be loaded: .*folder"):
        HubPrompts("no/such-thing-here", split="train")
