"""The chain of `defaults`, and `${…}`."""

import pytest

from asyncrl_runtime.app.nemo.chain import ReferenceInvalid, read_reference


def written(folder, **files):
    """Files by their names without ending; gives the path of the first."""
    paths = [folder / f"{name}.yaml" for name in files]
    for path, text in zip(paths, files.values(), strict=True):
        path.write_text(text)
    return paths[0]


def read(path, **environment):
    return read_reference(path, environment).value


def problems(path, **environment):
    with pytest.raises(ReferenceInvalid) as caught:
        read_reference(path, environment)
    return [line.replace(f"{path.parent}/", "") for line in caught.value.lines]


def test_blocks_of_a_chain_are_merged_and_later_files_win(tmp_path):
    path = written(
        tmp_path,
        job="defaults: [one.yaml, two.yaml]\na: {x: 3}\n",
        one="defaults: zero.yaml\na: {x: 1, y: 1, z: 1}\nlist: [1, 2]\n",
        two="a: {y: 2}\nlist: [3]\n",
        zero="a: {w: 0, x: 0}\n",
    )

    assert read(path) == {"a": {"w": 0, "x": 3, "y": 2, "z": 1}, "list": [3]}


def test_files_of_a_chain_are_found_beside_the_file_that_names_them(tmp_path):
    (tmp_path / "inner").mkdir()
    path = written(tmp_path, job="defaults: inner/one.yaml\n")
    written(tmp_path / "inner", one="defaults: two.yaml\n", two="a: 1\n")

    assert read(path) == {"a": 1}


def test_a_file_may_be_reached_on_two_ways(tmp_path):
    path = written(
        tmp_path,
        job="defaults: [one.yaml, two.yaml]\n",
        one="defaults: zero.yaml\n",
        two="defaults: zero.yaml\n",
        zero="a: 1\n",
    )

    assert read(path) == {"a": 1}


def test_a_place_is_that_of_the_file_that_set_it_last(tmp_path):
    path = written(tmp_path, job="defaults: one.yaml\na:\n  x: 2\n", one="a: {x: 1, y: 1}\n")

    reference = read_reference(path, {})

    assert reference.where("a.x") == f"{path}:3:3"
    assert reference.where("a.y") == f"{tmp_path / 'one.yaml'}:1:11"
    assert reference.where("a.y.deeper") == f"{tmp_path / 'one.yaml'}:1:11"
    assert reference.where("b") == str(path)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"job": "defaults: one.yaml\n", "one": "defaults: job.yaml\n"},
            "job.yaml: its defaults lead back to itself (job.yaml → one.yaml → job.yaml): remove one of them",
        ),
        (
            {"job": "defaults: gone.yaml\n"},
            "gone.yaml: cannot be read (named by the defaults of job.yaml): No such file or directory",
        ),
        (
            {"job": "a: 1\ndefaults: {x: 1}\n"},
            "job.yaml:2:1: defaults is neither a file nor a list of files: name files, relative to this one",
        ),
        ({"job": "- a\n"}, "job.yaml: holds no block of keys: is it a file of the reference?"),
        ({"job": "a: 1\n---\nb: 1\n"}, "job.yaml: holds 2 documents: give each a file of its own"),
        ({"job": "a: 1\na: 2\n"}, "job.yaml:2:1: a is set twice, first in line 1: keep one"),
    ],
)
def test_a_chain_that_cannot_be_read(tmp_path, files, expected):
    assert problems(written(tmp_path, **files)) == [expected]


def test_a_file_that_is_not_text(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_bytes(b"a: \xff\n")

    assert problems(path) == ["job.yaml: is not UTF-8 text: invalid start byte at byte 3"]


def test_references_give_the_thing_itself_or_its_text(tmp_path):
    path = written(
        tmp_path,
        job=(
            "a: {n: 3, on: true, none: null, list: [5, 6], block: {x: '${a.n}'}}\n"
            "number: ${a.n}\nswitch: ${a.on}\nnothing: ${a.none}\nblock: ${a.block}\n"
            "entry: ${a.list[1]}\nsame: ${a.list.0}\ntext: n=${a.n}, on=${a.on}\n"
            "inner: {x: 1, beside: '${.x}', above: '${..number}', listed: ['${a.n}']}\n"
            "key: n\nnested: ${a.${key}}\n"
        ),
    )

    value = read(path)

    assert value["number"] == 3
    assert value["switch"] is True
    assert value["nothing"] is None
    assert value["block"] == {"x": 3}
    assert (value["entry"], value["same"]) == (6, 5)
    assert value["text"] == "n=3, on=true"
    assert value["inner"] == {"x": 1, "beside": 1, "above": 3, "listed": [3]}
    assert value["nested"] == 3


def test_references_are_resolved_after_the_files_are_merged(tmp_path):
    path = written(tmp_path, job="defaults: one.yaml\na: 2\n", one="a: 1\nb: ${a}\n")

    assert read(path) == {"a": 2, "b": 2}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${oc.env:SET}", "x"),
        ("${oc.env:SET,y}", "x"),
        ("${oc.env:UNSET,y}", "y"),
        ("${oc.env:UNSET, 'y'}", "y"),
        ("${oc.env:UNSET,}", ""),
        ("${oc.env:UNSET,null}", None),
        ("${oc.env:UNSET,4}", 4),
        ("${oc.env:NUMBER}", 8),
        ("${oc.env:ZEROS}", "007"),
        ("${oc.env:UNSET,${oc.env:SET}}", "x"),
        ("/${oc.env:SET}/${oc.env:NUMBER}", "/x/8"),
    ],
)
def test_variables_of_the_environment(tmp_path, text, value):
    path = written(tmp_path, job=f'a: "{text}"\n')

    assert read(path, SET="x", NUMBER="8", ZEROS="007") == {"a": value}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("${mul:2,${b}}", "${mul:2,3} is a resolver that is not carried out here: write the value"),
        ("${oc.decode:x}", "${oc.decode:x} is a resolver that is not carried out here: write the value"),
        ("${gone.x}", "${gone.x} refers to gone.x, which is not set: set it"),
        ("${b.x}", "${b.x} refers to b.x, which is not set: set it"),
        ("${list[9]}", "${list[9]} refers to list[9], which is not set: set it"),
        ("${a}", "${a} leads back to itself (a): write one of them out"),
        ("${c}", "${a} leads back to itself (a → c → a): write one of them out"),
        ("${b + 1}", "${b + 1} is no reference to a setting: write the value"),
        ("${}", "${} is no reference to a setting: write the value"),
        ("x${list}", "${list} is a block in the middle of a text: refer to a single value"),
        ("${b", "${b holds a ${ that is not closed, or an expression that is not read here"),
        ("${oc.env:UNSET}", "the environment variable UNSET is not set: set it, or give a default"),
        ("???", "is ???, which is to be given: write the value"),
    ],
)
def test_what_cannot_be_resolved_is_named_with_its_place(tmp_path, text, problem):
    path = written(tmp_path, job=f'a: "{text}"\nb: 3\nc: ${{a}}\nlist: [1]\n')

    assert problems(path)[0] == f"job.yaml:1:1: a: {problem}"


def test_all_that_cannot_be_resolved_is_named_at_once(tmp_path):
    path = written(tmp_path, job="a: {x: '${mul:1}'}\nb: ['${nowhere}']\n")

    assert [line.split(": ")[:2] for line in problems(path)] == [
        ["job.yaml:1:5", "a.x"],
        ["job.yaml:2:5", "b[0]"],
    ]


@pytest.mark.parametrize("each", ["['${b%d}', '${b%d}']", "'${b%d}${b%d}'"])
def test_references_that_multiply_are_refused(tmp_path, each):
    lines = [f"b{level}: {each % (level + 1, level + 1)}\n" for level in range(40)]
    path = written(tmp_path, job="".join([*lines, "b40: xxxxxxxx\n"]))

    assert " more than 100000 " in problems(path)[0]


def test_blocks_that_are_nested_very_deeply(tmp_path):
    path = written(tmp_path, job="{a: " * 900 + "1" + "}" * 900)

    assert "nested too deeply" in problems(path)[0]
