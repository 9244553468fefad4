import json
import subprocess
import sys

import pytest

from asyncrl_api.spec.data import DataSpec
from asyncrl_api.spec.model import ModelSpec
from asyncrl_runtime.adapters.tokenizers.build import load_tokenizer
from asyncrl_runtime.adapters.tokenizers.character import (
    DIGIT_SYMBOLS,
    TEXT_SYMBOLS,
    CharacterTokenizer,
    UnknownCharacter,
)
from asyncrl_runtime.adapters.tokenizers.huggingface import (
    HuggingFaceTokenizer,
    TokenizerFailure,
    UnrenderablePrompt,
)

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "3+4?"}]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}\n"
    "{% if m['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "<{{ m['role'] }}>{{ m['content'] | trim }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% generation %}{% endgeneration %}{% endif %}"
)


@pytest.fixture
def folder(tmp_path):
    """A trained byte-level BPE with begin and end tokens, and no pad token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    core.train_from_iterator(["hello world, 3+4 makes 7"] * 20, trainer)
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    core.save(str(tmp_path / "tokenizer.json"))
    write_config(tmp_path, bos_token="<s>", eos_token={"content": "</s>"})
    return tmp_path


def write_config(folder, **config):
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("symbols", [DIGIT_SYMBOLS, TEXT_SYMBOLS])
def test_characters_round_trip_through_the_tokenizer(symbols):
    tokenizer = CharacterTokenizer(symbols)
    ids = tokenizer.encode(symbols)

    assert sorted(ids) == list(range(2, tokenizer.vocab_size))
    assert tokenizer.decode([*ids, tokenizer.eos_token_id]) == symbols
    assert tokenizer.decode([tokenizer.vocab_size, tokenizer.pad_token_id]) == "\ufffd\ufffd"


def test_an_unknown_character_is_named_with_its_place():
    with pytest.raises(UnknownCharacter, match=r"character 'é' at position 3 .*spec.model.tokenizer"):
        CharacterTokenizer().encode("café")
    with pytest.raises(UnknownCharacter, match="all prompts are generated"):
        CharacterTokenizer(DIGIT_SYMBOLS).encode("1-2")


@pytest.mark.parametrize("symbols", [DIGIT_SYMBOLS, TEXT_SYMBOLS])
def test_a_saved_character_tokenizer_is_the_same_for_the_hubs_loader(tmp_path, symbols):
    ours = CharacterTokenizer(symbols)
    ours.save(str(tmp_path / "t"))
    loaded = HuggingFaceTokenizer(str(tmp_path / "t"))
    chat = [{"role": "user", "content": "12"}, {"role": "user", "content": "3="}]

    assert loaded.encode(symbols) == ours.encode(symbols)
    assert loaded.decode(ours.encode(symbols)) == symbols
    assert loaded.render(chat) == ours.render(chat)
    assert (loaded.vocab_size, loaded.eos_token_id, loaded.pad_token_id) == (ours.vocab_size, 1, 0)


@pytest.mark.parametrize(
    ("source", "validation", "size"),
    [
        ("generated", None, 16),
        ("generated", "generated", 16),
        ("generated", "jsonl", 98),
        ("jsonl", None, 98),
    ],
)
def test_sixteen_tokens_exactly_when_every_prompt_is_generated(source, validation, size):
    kinds = {"generated": {}, "jsonl": {"path": "x"}}
    data = {"source": {source: kinds[source]}}
    if validation:
        data["validation"] = {validation: kinds[validation]}
    model = ModelSpec.model_validate({"init": {}})

    assert load_tokenizer(model, DataSpec.model_validate(data)).vocab_size == size


def test_a_folder_gives_text_tokens_and_back(folder):
    tokenizer = HuggingFaceTokenizer(str(folder))

    assert tokenizer.encode("hello world")[0] != 0
    assert tokenizer.decode([0, *tokenizer.encode("hello wörld"), 1]) == "hello wörld"
    assert tokenizer.eos_token_id == 1


def test_without_a_pad_token_the_end_token_pads_and_the_log_says_so(folder, caplog):
    assert HuggingFaceTokenizer(str(folder)).pad_token_id == 1
    assert "no pad token" in caplog.text


def test_a_pad_token_of_its_own_is_kept(folder):
    write_config(folder, eos_token="</s>", pad_token="<s>")
    assert HuggingFaceTokenizer(str(folder)).pad_token_id == 0


@pytest.mark.parametrize(
    ("config", "problem"),
    [({}, "names no end token"), ({"eos_token": "<end>"}, "'<end>' that it does not hold")],
)
def test_without_an_end_token_it_is_refused(folder, config, problem):
    write_config(folder, **config)
    with pytest.raises(TokenizerFailure, match=rf"{problem}; set eos_token"):
        HuggingFaceTokenizer(str(folder))


def test_without_a_template_contents_are_lines_with_the_begin_token(folder):
    tokenizer = HuggingFaceTokenizer(str(folder))
    assert tokenizer.render(CHAT) == [0, *tokenizer.encode("Be brief.\n3+4?")]


@pytest.mark.parametrize("place", ["config", "list", "file"])
def test_a_chat_template_renders_up_to_the_policys_turn(folder, place):
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    if place == "file":
        (folder / "chat_template.jinja").write_text(TEMPLATE)
    else:
        named = [{"name": "rag", "template": "x"}, {"name": "default", "template": TEMPLATE}]
        config["chat_template"] = TEMPLATE if place == "config" else named
    write_config(folder, **config)
    tokenizer = HuggingFaceTokenizer(str(folder))

    assert tokenizer.render(CHAT) == tokenizer.encode("<s><system>Be brief.<user>3+4?<assistant>")
    with pytest.raises(UnrenderablePrompt, match="no tools"):
        tokenizer.render([{"role": "tool", "content": "x"}])


def test_the_template_renders_what_transformers_renders(folder):
    write_config(
        folder,
        bos_token="<s>",
        eos_token="</s>",
        chat_template=TEMPLATE,
        tokenizer_class="PreTrainedTokenizerFast",
    )
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

    theirs = TokenizersBackend.from_pretrained(str(folder))
    wanted = theirs.apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False)
    assert (
        HuggingFaceTokenizer(str(folder)).render(CHAT)
        == theirs(wanted, add_special_tokens=False)["input_ids"]
    )


def test_a_broken_template_is_refused_when_loading(folder):
    write_config(folder, eos_token="</s>", chat_template="{% for %}")
    with pytest.raises(TokenizerFailure, match="chat template is broken"):
        HuggingFaceTokenizer(str(folder))


def test_what_is_saved_loads_again(folder, tmp_path):
    write_config(folder, bos_token="<s>", eos_token="</s>", chat_template=TEMPLATE)
    first = HuggingFaceTokenizer(str(folder))
    first.save(str(tmp_path / "saved"))
    again = HuggingFaceTokenizer(str(tmp_path / "saved"))

    assert again.render(CHAT) == first.render(CHAT)


def test_missing_files_say_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(TokenizerFailure, match=r"no tokenizer.json .*save_pretrained"):
        HuggingFaceTokenizer(str(tmp_path))
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(TokenizerFailure, match="neither as a folder nor on the hub"):
        HuggingFaceTokenizer("no/such-model")


def test_loading_a_tokenizer_imports_no_torch(folder):
    code = (
        "import sys; from asyncrl_runtime.adapters.tokenizers.huggingface import HuggingFaceTokenizer as T;"
        f"T({str(folder)!r}).encode('x'); sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
