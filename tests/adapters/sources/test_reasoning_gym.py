import pytest
from ports.prompt_source_contract import PromptSourceContract

from asyncrl_runtime.adapters.sources.reasoning_gym import ENTRY, ReasoningGymPrompts
from asyncrl_runtime.core.errors import SourceFailure
from asyncrl_runtime.core.records import PromptRef


class TestReasoningGymPrompts(PromptSourceContract):
    def make_source(self):
        return ReasoningGymPrompts("chain_sum", size=5, seed=1, config={"min_terms": 2, "max_terms": 2})

    def make_other(self):
        return ReasoningGymPrompts("chain_sum", size=5, seed=2, config={"min_terms": 2, "max_terms": 2})


async def test_the_generators_row_travels_with_the_prompt():
    source = ReasoningGymPrompts("letter_counting", size=3, seed=1)
    (prompt,) = await source.fetch([PromptRef(0, 1)])

    assert prompt.task == "letter_counting"
    assert prompt.extra[ENTRY]["question"] == prompt.text
    assert prompt.extra[ENTRY]["metadata"]["source_dataset"] == "letter_counting"


def test_an_unknown_generator_names_the_nearest():
    with pytest.raises(SourceFailure, match="did you mean chain_sum"):
        ReasoningGymPrompts("chain_sums", size=3, seed=1)


@pytest.mark.parametrize("config", [{"no_such_key": 1}, {"min_terms": -3}])
def test_a_config_that_the_generator_refuses_is_named(config):
    with pytest.raises(SourceFailure, match=r"chain_sum: refuses its config: .*reasoningGym.config"):
        ReasoningGymPrompts("chain_sum", size=3, seed=1, config=config)
