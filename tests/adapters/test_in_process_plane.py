"""Rows in memory."""

import json
import random

import numpy as np
import pytest
from ports.data_plane_contract import DataPlaneContract, read, rows_of, saved, tear

from asyncrl_runtime.adapters.in_process_plane import InProcessPlane, PlaneFull
from asyncrl_runtime.adapters.plane_snapshot import INDEX, SnapshotDamaged, tensors_of
from asyncrl_runtime.core.errors import RunError


@pytest.fixture
def plane():
    return InProcessPlane(1000)


@pytest.fixture
def fresh():
    return lambda: InProcessPlane(1000)


class TestContract(DataPlaneContract):
    pass


async def test_sc_14_184_more_rows_than_the_plane_may_hold_are_refused_whole():
    plane = InProcessPlane(3)
    await plane.put(["a", "b"], {"x": rows_of([1, 1])})
    with pytest.raises(
        PlaneFull, match=r"would hold 4 rows, above spec\.dataPlane\.storageCapacity 3: raise it"
    ):
        await plane.put(["b", "c", "d"], {"x": rows_of([1, 1, 1])})
    assert await plane.keys() == {"a", "b"}
    usage = plane.usage()
    assert (usage.keys_outstanding, usage.bytes_outstanding) == (2, 16)
    assert (usage.operations, usage.keys, usage.max_bytes_per_key) == ({"put": 1}, {"put": 2}, 8)
    await plane.put(["b", "c"], {"x": rows_of([1, 1])})
    assert await plane.keys() == {"a", "b", "c"}


async def test_a_column_of_one_put_is_handed_out_without_a_copy(plane):
    column = rows_of([2, 3])
    await plane.put(["a", "b"], {"x": column})
    got = await plane.get(["a", "b"], ["x"])
    assert got["x"].values is column.values
    part = await plane.get(["b"], ["x"])
    assert np.shares_memory(part["x"].values, column.values)


async def test_writing_the_same_rows_again_does_not_grow(plane):
    samples = [f"s{i}" for i in range(8)]
    await plane.put(samples, {"x": rows_of([4] * 8)})
    for n in range(50):
        await plane.put(samples, {"late": rows_of([4] * 8, start=n)})
    usage = plane.usage()
    assert usage.bytes_outstanding == usage.peak_bytes_outstanding == 2 * 8 * 4 * 8
    assert await read(plane, ["s0"], "late") == [[49, 50, 51, 52]]


async def test_no_rows_are_no_work(plane):
    await plane.put([], {"x": rows_of([])})
    assert (await plane.get([], ["x"]))["x"].lengths.tolist() == []
    await plane.clear([])
    assert plane.usage().keys_outstanding == 0


async def test_a_restored_plane_gives_memory_back_bit_by_bit(plane, fresh, tmp_path):
    samples = [f"s{i}" for i in range(640)]
    await plane.put(samples, {"x": rows_of([10] * 640)})
    await saved(plane, tmp_path)
    other = fresh()
    await other.restore(tmp_path)
    full = other.usage().bytes_outstanding
    await other.clear(samples[:320])
    assert other.usage().bytes_outstanding == full / 2
    assert await read(other, samples[639:], "x") == [list(range(6390, 6400))]


async def save_two(plane, directory):
    await plane.put(["a", "b"], {"x": rows_of([1, 2]), "y": rows_of([3, 1])}, [{"n": 1}, {}])
    await saved(plane, directory)


@pytest.mark.parametrize("name", [INDEX, tensors_of(0)])
async def test_a_torn_snapshot_is_refused_and_nothing_changes(plane, fresh, tmp_path, name):
    await save_two(plane, tmp_path)
    data, rng = (tmp_path / name).read_bytes(), random.Random(1)
    other = fresh()
    await other.put(["old"], {"x": rows_of([1])})
    for _ in range(30):
        tear(tmp_path / name, rng)
        with pytest.raises(SnapshotDamaged, match="cannot be used"):
            await other.restore(tmp_path)
        (tmp_path / name).write_bytes(data)
    (tmp_path / name).unlink()
    with pytest.raises(SnapshotDamaged, match=name):
        await other.restore(tmp_path)
    assert await read(other, ["old"], "x") == [[0]]
    assert issubclass(SnapshotDamaged, RunError)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("columns", {"x": 0}, "different columns"),
        ("lengths", [[1, 3], [3, 1]], "column x has 3 values for 4 announced"),
        ("lengths", [[3], [3, 1]], "column x has a layout of 1 rows for 2"),
        ("samples", None, "cannot be used"),
    ],
)
async def test_files_that_contradict_each_other_are_refused(plane, fresh, tmp_path, key, value, problem):
    await save_two(plane, tmp_path)
    (index,) = json.loads((tmp_path / INDEX).read_text())
    (tmp_path / INDEX).write_text(json.dumps([index | {key: value}]))
    with pytest.raises(SnapshotDamaged, match=problem):
        await fresh().restore(tmp_path)


async def test_many_rows_are_written_in_pieces(fresh, tmp_path):
    plane = InProcessPlane(10_000)
    for n in range(300):
        await plane.put([f"{n}_{i}" for i in range(8)], {"x": rows_of([1, 0, 2, 3, 1, 0, 2, 3], start=n)})
    facts = await saved(plane, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [tensors_of(n) for n in range(3)] + [INDEX]
    assert set(facts["sha256"]) == {path.name for path in tmp_path.iterdir()}
    assert facts["bytes"] == sum(path.stat().st_size for path in tmp_path.iterdir())
    other = InProcessPlane(10_000)
    await other.restore(tmp_path)
    assert await other.keys() == await plane.keys()
    everyone = sorted(await plane.keys())
    assert await read(other, everyone, "x") == await read(plane, everyone, "x")
    assert other.usage().bytes_outstanding == plane.usage().bytes_outstanding == facts["live_bytes"]
