import pytest
from ports.prompt_source_contract import PromptSourceContract

from asyncrl_runtime.adapters.sources.generated import GeneratedPrompts
from asyncrl_runtime.adapters.tokenizers.character import DIGIT_SYMBOLS, CharacterTokenizer
from asyncrl_runtime.core.records import PromptRef


class TestGeneratedPrompts(PromptSourceContract):
    def make_source(self):
        return GeneratedPrompts("reverse", 4, 16, seed=3)

    def make_other(self):
        return GeneratedPrompts("reverse", 4, 16, seed=4)


async def all_of(source):
    return await source.fetch([PromptRef(0, k) for k in range(len(source))])


@pytest.mark.parametrize(
    ("task", "mark", "solve"),
    [
        ("copy", "", lambda s: s),
        ("reverse", "r", lambda s: s[::-1]),
        ("sort", "s", lambda s: "".join(sorted(s))),
    ],
)
async def test_digit_tasks_ask_for_what_they_answer(task, mark, solve):
    prompts = await all_of(GeneratedPrompts(task, 5, 200, seed=0))

    for prompt in prompts:
        assert prompt.text.startswith(mark)
        assert prompt.text.endswith("=")
        digits = prompt.text.removeprefix(mark).removesuffix("=")
        assert digits.isdigit()
        assert len(digits) == 5
        assert prompt.answer == solve(digits)
        assert prompt.task == task
    assert len({p.text for p in prompts}) > 190


@pytest.mark.parametrize(("num_digits", "low", "high"), [(1, 0, 9), (2, 10, 99), (18, 10**17, 10**18 - 1)])
async def test_addition_has_operands_of_that_many_digits(num_digits, low, high):
    prompts = await all_of(GeneratedPrompts("add", num_digits, 300, seed=0))

    for prompt in prompts:
        left, right = map(int, prompt.text.removesuffix("=").split("+"))
        assert low <= left <= high
        assert low <= right <= high
        assert prompt.answer == str(left + right)
    if num_digits == 1:
        assert {p.text[0] for p in prompts} == set("0123456789")


@pytest.mark.parametrize("task", ["add", "copy", "reverse", "sort"])
async def test_sixteen_tokens_cover_every_prompt_and_answer(task):
    tokenizer = CharacterTokenizer(DIGIT_SYMBOLS)
    assert tokenizer.vocab_size == 16

    for prompt in await all_of(GeneratedPrompts(task, 3, 50, seed=1)):
        assert tokenizer.decode(tokenizer.render(prompt.messages)) == prompt.text
        assert tokenizer.decode(tokenizer.encode(prompt.answer)) == prompt.answer


async def test_the_prompts_of_a_seed_never_change():
    """A changed text would break the resume of runs that began before the change."""
    prompts = await GeneratedPrompts("reverse", 4, 4096, seed=42).fetch([PromptRef(0, 0), PromptRef(0, 4095)])

    assert [p.text for p in prompts] == ["r6896=", "r0006="]
