"""The data cursor: epochs, order, position."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl_runtime.core.dataloader import DataCursor, DatasetTooSmall
from asyncrl_runtime.core.records import PromptRef


def drain(cursor, batches=1000):
    taken = []
    while len(taken) < batches and (batch := cursor.take()):
        taken.append(batch)
    return taken


def positions(batches):
    return [ref.position for batch in batches for ref in batch]


def test_batches_come_in_order_and_a_trailing_part_is_dropped():
    cursor = DataCursor(7, 3, False, 0, 2)
    assert [[(r.epoch, r.position) for r in batch] for batch in drain(cursor)] == [
        [(0, 0), (0, 1), (0, 2)],
        [(0, 3), (0, 4), (0, 5)],
        [(1, 0), (1, 1), (1, 2)],
        [(1, 3), (1, 4), (1, 5)],
    ]
    assert cursor.take() == []
    assert cursor.epoch == 2
    assert (cursor.batches_per_epoch, cursor.max_batches) == (2, 4)


def test_each_epoch_is_a_shuffle_of_its_own():
    cursor = DataCursor(12, 4, True, 3, 3)
    taken = drain(cursor)
    epochs = [positions(taken[i : i + 3]) for i in range(0, 9, 3)]
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert positions(drain(DataCursor(12, 4, True, 3, 3))) == positions(taken)
    assert positions(drain(DataCursor(12, 4, True, 4, 3))) != positions(taken)


def test_unbounded_epochs_never_end():
    cursor = DataCursor(2, 2, False, 0, None)
    assert len(drain(cursor, 50)) == 50
    assert cursor.max_batches is None
    assert cursor.epoch == 49


def test_sc_2_269_sc_14_142_a_dataset_below_one_batch_is_refused():
    with pytest.raises(DatasetTooSmall, match="holds 3 prompts and a step takes 4"):
        DataCursor(3, 4, False, 0, 1)


def test_a_finished_cursor_goes_on_with_the_next_epoch_when_more_are_allowed():
    finished = DataCursor(4, 2, True, 0, 1)
    drain(finished)
    longer = DataCursor(4, 2, True, 0, 3)
    longer.restore(finished.state())
    rest = drain(longer)
    assert [batch[0].epoch for batch in rest] == [1, 1, 2, 2]
    again = DataCursor(4, 2, True, 0, 1)
    again.restore(finished.state())
    assert again.take() == []


@given(
    size=st.integers(1, 20),
    batch=st.integers(1, 6),
    shuffle=st.booleans(),
    epochs=st.integers(1, 4),
    stop=st.integers(0, 40),
)
def test_a_restored_cursor_goes_on_exactly_where_it_was(size, batch, shuffle, epochs, stop):
    batch = min(batch, size)
    whole = drain(DataCursor(size, batch, shuffle, 5, epochs))
    assert len(whole) == epochs * (size // batch)
    first = DataCursor(size, batch, shuffle, 5, epochs)
    taken = drain(first, stop)
    second = DataCursor(size, batch, shuffle, 5, epochs)
    second.restore(json.loads(json.dumps(first.state())))
    assert taken + drain(second) == whole
    assert len({(ref.epoch, ref.position) for b in whole for ref in b}) == len(whole) * batch


def test_a_reference_says_epoch_and_position():
    assert DataCursor(1, 1, False, 0, 1).take() == [PromptRef(0, 0)]
