import pytest

from asyncrl_runtime.app.yaml_document import DocumentError, Mark, read_documents, read_value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1.0e-6", 1e-6),
        ("2.", 2.0),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("1", 1),
        ("0", 0),
        ("-17", -17),
        ("1_000", 1000),
        ("0x1f", 31),
        ("0o17", 15),
        ("017", 15),
        ("089", 89.0),
        ("2026-01-02", "2026-01-02"),
        ("1:30", "1:30"),
        ("2.60.0", "2.60.0"),
        ("64Gi", "64Gi"),
        ("true", True),
        ("null", None),
        ("~", None),
        ("[1, a]", [1, "a"]),
        ("{a: {b: 2}}", {"a": {"b": 2}}),
        ("'1'", "1"),
        ("", None),
    ],
)
def test_values(text, value):
    assert read_value(text) == value
    assert type(read_value(text)) is type(value)


def test_every_dotpath_has_its_line_and_column():
    (document,) = read_documents("a:\n  b: 1\n  c:\n    - x: 2\n    - 3\nd: {e: 4}\n")
    assert document.value == {"a": {"b": 1, "c": [{"x": 2}, 3]}, "d": {"e": 4}}
    assert document.marks == {
        "": Mark(1, 1),
        "a": Mark(1, 1),
        "a.b": Mark(2, 3),
        "a.c": Mark(3, 3),
        "a.c[0]": Mark(4, 7),
        "a.c[0].x": Mark(4, 7),
        "a.c[1]": Mark(5, 7),
        "d": Mark(6, 1),
        "d.e": Mark(6, 5),
    }


def test_keys_are_text():
    assert read_value("{1: a, true: b}") == {"1": "a", "true": "b"}


def test_anchors_and_merge_keys():
    (document,) = read_documents("base: &b {x: 1, y: 2}\nuse: {<<: *b, y: 3}\nagain: *b\n")
    assert document.value["use"] == {"x": 1, "y": 3}
    assert document.value["again"] == {"x": 1, "y": 2}
    assert document.marks["again.x"] == Mark(1, 11)


def test_several_documents_and_empty_ones():
    assert [each.value for each in read_documents("---\na: 1\n---\n---\nb: 2\n")] == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize(
    ("text", "problem", "line"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "b.c is set twice, first in line 3: keep one", 4),
        ("a: [1\nb: 2\n", "not YAML: ", 2),
        ("a: &x\n  b: *x\n", "a.b refers to a block that holds it", 1),
        ("? [a]\n: 1\n", "a key must be text", 1),
        ("a: !!python/object:os.system x\n", "not YAML: could not determine a constructor", 1),
        ("a: *nothing\n", "not YAML: found undefined alias", 1),
        ("a:\n\t- 1\n", "not YAML: found character", 2),
        ("a: 1\nb: x\0y\n", "not YAML: character 0x00 is not allowed", 2),
        ("a: 1\nb: " + "9" * 5000 + "\n", "a number of 5000 digits is too long", 2),
        ("a: &a {x: 1}\nb: &b [" + "*a," * 500 + "]\nc: [" + "*b," * 500 + "]\n", "it holds more than", 1),
    ],
)
def test_what_is_no_document(text, problem, line):
    with pytest.raises(DocumentError) as refused:
        read_documents(text)
    assert str(refused.value).startswith(problem)
    assert refused.value.mark.line == line


def test_a_document_that_is_nested_without_end():
    with pytest.raises(DocumentError, match="nested too deeply"):
        read_documents("a: " + "[" * 3000 + "]" * 3000)
