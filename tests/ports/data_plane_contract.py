"""What every data plane keeps; a test module subclasses it, with fixtures `plane` and `fresh`.

`plane` is empty and holds at least 1,000 rows; `fresh()` gives another empty one of the same kind.
"""

import asyncio
import random

import numpy as np
import pytest

from asyncrl_runtime.core.errors import RowsMissing
from asyncrl_runtime.ports.columns import Jagged

NAMES = ("tokens", "reward", "late")


def rows_of(lengths, *, start=0, dtype=np.int64):
    """Rows of consecutive numbers."""
    values = np.arange(start, start + sum(lengths), dtype=dtype)
    return Jagged(values, np.array(lengths, np.int64))


def listed(column):
    return [row.tolist() for row in column.rows()]


async def saved(plane, directory):
    """Write a snapshot to its end."""
    finish = await plane.snapshot(directory)
    return await finish()


async def read(plane, samples, name):
    return listed((await plane.get(samples, [name]))[name])


class DataPlaneContract:
    async def test_rows_come_back_in_the_order_asked_for(self, plane):
        await plane.put(["a", "b", "c"], {"tokens": rows_of([2, 0, 3])})
        assert await read(plane, ["a", "b", "c"], "tokens") == [[0, 1], [], [2, 3, 4]]
        assert await read(plane, ["c", "a"], "tokens") == [[2, 3, 4], [0, 1]]
        assert await read(plane, ["b"], "tokens") == [[]]
        assert await read(plane, ["a", "a"], "tokens") == [[0, 1], [0, 1]]
        assert await plane.keys() == {"a", "b", "c"}

    @pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int8, np.float32, np.float64])
    async def test_values_keep_their_type(self, plane, dtype):
        await plane.put(["a", "b"], {"x": rows_of([1, 2], dtype=dtype)})
        column = (await plane.get(["a", "b"], ["x"]))["x"]
        assert column.values.dtype == dtype
        assert listed(column) == [[0], [1, 2]]

    async def test_rows_of_several_puts_are_joined(self, plane):
        await plane.put(["a", "b"], {"tokens": rows_of([1, 2])})
        await plane.put(["c", "d"], {"tokens": rows_of([3, 1], start=10)})
        assert await read(plane, ["b", "c", "d", "a"], "tokens") == [[1, 2], [10, 11, 12], [13], [0]]

    async def test_columns_can_be_added_and_replaced(self, plane):
        await plane.put(["a", "b"], {"tokens": rows_of([1, 2])})
        await plane.put(["b", "a"], {"late": rows_of([2, 1], start=5)})
        await plane.put(["a"], {"tokens": rows_of([3], start=20)})
        got = await plane.get(["a", "b"], ["tokens", "late"])
        assert listed(got["tokens"]) == [[20, 21, 22], [1, 2]]
        assert listed(got["late"]) == [[7], [5, 6]]

    async def test_what_is_missing_is_named(self, plane):
        await plane.put(["a"], {"tokens": rows_of([1])})
        with pytest.raises(RowsMissing, match="x"):
            await plane.get(["a", "x"], ["tokens"])
        with pytest.raises(RowsMissing, match=r"a\.late"):
            await plane.get(["a"], ["tokens", "late"])

    async def test_sc_14_184_a_put_that_does_not_fit_its_rows_writes_nothing(self, plane):
        before = plane.usage()
        with pytest.raises(ValueError, match="tokens has 2 rows for 1"):
            await plane.put(["a"], {"reward": rows_of([1]), "tokens": rows_of([1, 1])})
        with pytest.raises(ValueError, match="2 sets of tags"):
            await plane.put(["a"], {"reward": rows_of([1])}, [{}, {}])
        assert await plane.keys() == frozenset()
        assert plane.usage().bytes_outstanding == before.bytes_outstanding

    async def test_cleared_rows_are_gone_and_clearing_them_again_is_nothing(self, plane):
        await plane.put(["a", "b"], {"tokens": rows_of([1, 2])})
        await plane.clear(["a", "x"])
        await plane.clear(["a"])
        assert await plane.keys() == {"b"}
        with pytest.raises(RowsMissing):
            await plane.get(["a"], ["tokens"])
        assert await read(plane, ["b"], "tokens") == [[1, 2]]

    async def test_a_row_that_was_cleared_starts_anew(self, plane):
        await plane.put(["a"], {"tokens": rows_of([1]), "late": rows_of([1])})
        await plane.clear(["a"])
        await plane.put(["a"], {"tokens": rows_of([2], start=7)})
        assert await read(plane, ["a"], "tokens") == [[7, 8]]
        with pytest.raises(RowsMissing):
            await plane.get(["a"], ["late"])

    async def test_sc_14_184_bytes_and_keys_outstanding_return_to_zero(self, plane):
        for n in range(3):
            await plane.put([f"{n}a", f"{n}b"], {"tokens": rows_of([10, 20])})
        await plane.put(["0a", "0b", "1a", "1b"], {"late": rows_of([1, 1, 1, 1])})
        full = plane.usage()
        assert full.keys_outstanding == 6
        assert full.bytes_outstanding >= 3 * 30 * 8 + 4 * 8
        await plane.clear(["0a", "0b", "1a", "1b", "2a", "2b", "x"])
        empty = plane.usage()
        assert (empty.keys_outstanding, empty.bytes_outstanding) == (0, 0)
        assert empty.peak_bytes_outstanding == full.bytes_outstanding
        assert (empty.operations["put"], empty.operations["clear"]) == (4, 1)
        assert empty.bytes["put"] == 3 * 30 * 8 + 4 * 8

    async def test_concurrent_puts_and_clears_keep_rows_apart(self, plane):
        async def group(n):
            samples = [f"{n}_{i}" for i in range(4)]
            await plane.put(samples, {"tokens": rows_of([n % 5 + 1] * 4, start=n)})
            assert await read(plane, samples[:1], "tokens") == [list(range(n, n + n % 5 + 1))]
            await plane.clear(samples[1:])

        await asyncio.gather(*(group(n) for n in range(50)))
        assert await plane.keys() == {f"{n}_0" for n in range(50)}

    # ── snapshots ───────────────────────────────────────────────────────────────────────────────────

    async def test_a_snapshot_holds_every_row_whatever_it_has(self, plane, fresh, tmp_path):
        await plane.put(
            ["a", "b"], {"tokens": rows_of([1, 2]), "reward": rows_of([1, 1])}, [{"n": 1}, {"n": 2}]
        )
        await plane.put(["c"], {"tokens": rows_of([0])})
        await plane.put(["b", "c"], {"late": rows_of([2, 1], dtype=np.float32)})
        facts = await saved(plane, tmp_path / "data_plane")
        assert facts["rows"] == 3
        other = fresh()
        await other.put(["old"], {"tokens": rows_of([1])})
        await other.restore(tmp_path / "data_plane")
        assert await other.keys() == {"a", "b", "c"}
        assert await read(other, ["c", "b", "a"], "tokens") == [[], [1, 2], [0]]
        assert await read(other, ["c", "b"], "late") == [[2], [0, 1]]
        with pytest.raises(RowsMissing, match=r"a\.late"):
            await other.get(["a"], ["late"])
        await other.clear(["a", "b", "c"])
        assert other.usage().bytes_outstanding == 0

    async def test_rows_may_change_while_a_snapshot_is_written(self, plane, fresh, tmp_path):
        await plane.put(["a", "b"], {"tokens": rows_of([1, 2])})
        finish = await plane.snapshot(tmp_path)
        await plane.put(["a", "b"], {"tokens": rows_of([2, 2], start=50)})
        await plane.put(["a", "b", "c"], {"late": rows_of([1, 1, 1])})
        await plane.clear(["b"])
        await finish()
        other = fresh()
        await other.restore(tmp_path)
        assert await other.keys() == {"a", "b"}
        assert await read(other, ["a", "b"], "tokens") == [[0], [1, 2]]

    async def test_an_empty_snapshot_restores_to_nothing(self, plane, fresh, tmp_path):
        assert (await saved(plane, tmp_path))["rows"] == 0
        other = fresh()
        await other.put(["old"], {"tokens": rows_of([1])})
        await other.restore(tmp_path)
        assert await other.keys() == frozenset()

    async def test_random_histories_survive_a_snapshot(self, plane, fresh, tmp_path):
        rng, model = random.Random(3), {}
        for turn in range(200):
            if model and rng.random() < 0.3:
                doomed = rng.sample(sorted(model), min(len(model), rng.randint(1, 5)))
                await plane.clear(doomed)
                for sample in doomed:
                    del model[sample]
                continue
            samples = rng.sample([f"s{i}" for i in range(150)], rng.randint(1, 12))
            for name in rng.sample(NAMES, rng.randint(1, 3)):
                column = rows_of([rng.randint(0, 6) for _ in samples], start=1000 * turn)
                await plane.put(samples, {name: column})
                for sample, row in zip(samples, listed(column), strict=True):
                    model.setdefault(sample, {})[name] = row
        await saved(plane, tmp_path)
        other = fresh()
        await other.restore(tmp_path)
        for held in (plane, other):
            assert await held.keys() == set(model)
            for name in NAMES:
                owners = [sample for sample in model if name in model[sample]]
                assert await read(held, owners, name) == [model[sample][name] for sample in owners]

    async def test_what_is_written_is_little_more_than_what_is_held(self, plane, tmp_path):
        rng = random.Random(1)
        for n in range(100):
            lengths = [rng.randint(200, 1200) for _ in range(8)]
            await plane.put(
                [f"e0p{n}_a0_g{i}" for i in range(8)],
                {
                    "tokens": rows_of(lengths),
                    "mask": rows_of(lengths, dtype=np.int8),
                    "logprobs": rows_of(lengths, dtype=np.float32),
                    "reward": rows_of([1] * 8, dtype=np.float64),
                },
            )
        await saved(plane, tmp_path)
        written = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
        assert written <= 1.05 * plane.usage().bytes_outstanding

    async def test_close_is_idempotent(self, plane):
        await plane.put(["a"], {"tokens": rows_of([1])})
        await plane.close()
        await plane.close()


def tear(path, rng):
    """Cut a file short, or change its JSON."""
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))])
