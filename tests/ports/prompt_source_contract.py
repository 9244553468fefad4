"""What every prompt source keeps; a test module subclasses it and gives `make_source`."""

import pytest

from asyncrl_runtime.core.errors import SourceFailure
from asyncrl_runtime.core.records import PromptRef
from asyncrl_runtime.ports.prompts import PromptSource


class PromptSourceContract:
    """`make_source()` opens a source of at least 3 prompts; `make_other()` one with other content."""

    def make_source(self) -> PromptSource:
        raise NotImplementedError

    def make_other(self) -> PromptSource:
        raise NotImplementedError

    async def test_a_position_always_gives_the_same_prompt(self):
        source = self.make_source()
        first = await source.fetch([PromptRef(0, 2), PromptRef(0, 0)])
        again = await source.fetch([PromptRef(1, 0), PromptRef(1, 2)])

        assert [p.ref for p in first] == [PromptRef(0, 2), PromptRef(0, 0)]
        assert [p.messages for p in first] == [p.messages for p in reversed(again)]
        assert [p.answer for p in first] == [p.answer for p in reversed(again)]

    async def test_opening_it_twice_gives_the_same_fingerprint_and_prompts(self):
        one, two = self.make_source(), self.make_source()
        refs = [PromptRef(0, k) for k in range(3)]

        assert one.fingerprint == two.fingerprint
        assert await one.fetch(refs) == await two.fetch(refs)

    def test_other_content_has_another_fingerprint(self):
        assert self.make_source().fingerprint != self.make_other().fingerprint

    async def test_messages_hold_roles_and_text(self):
        (prompt,) = await self.make_source().fetch([PromptRef(0, 0)])

        assert prompt.messages
        assert all(m["role"] and isinstance(m["content"], str) for m in prompt.messages)
        assert prompt.text == prompt.messages[-1]["content"]

    @pytest.mark.parametrize("beyond", [0, 7])
    async def test_a_position_beyond_the_end_is_named(self, beyond):
        source = self.make_source()
        with pytest.raises(SourceFailure, match=f"no position {len(source) + beyond}"):
            await source.fetch([PromptRef(0, len(source) + beyond)])

    async def test_a_negative_position_is_refused(self):
        with pytest.raises(SourceFailure, match="no position -1"):
            await self.make_source().fetch([PromptRef(0, -1)])
