"""Candidates as they are read: what is one, what is a mistake and where it stands."""

import pytest

from tests.batch.lines import RIGHT, WRONG, line, listing
from touchstone.conformance.batch.candidates import Settings, each_once, read
from touchstone.conformance.discovery.selection import UsageError

OWN_OP = '''"""Twice x."""

from touchstone import Contract, Operand, Output, simple
from touchstone.conformance.spec import values


def expect(inputs, params, *, dtype, compute=None):
    return {"y": simple(2 * inputs["x"], terms=1)}


contract = Contract(
    operands={"x": Operand("rows cols")},
    outputs={"y": Output("rows cols")},
    sizes=[{"rows": 3, "cols": 33}, {"rows": 1, "cols": 1}],
    values=values.COMMON,
    expect=expect,
)
'''


def told(tmp_path, *lines) -> str:
    """What is said of these lines."""
    path = listing(tmp_path, list(lines))
    with pytest.raises(UsageError) as error:
        read([str(path)], "quick")
    return str(error.value).replace(str(tmp_path), "")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("{", "/candidates.jsonl:2: expected one JSON object: "),
        ("[]", "/candidates.jsonl:2: expected one JSON object, got list"),
        ({"source": RIGHT}, ":2: field 'op': is missing; expected the name of an op or the path of an op's file"),
        (line(RIGHT, op="sofmax"), ":2: field 'op': 'sofmax' is not one of "),
        (line(RIGHT, op="there_is_none.py"), ":2: field 'op': there_is_none.py: No such file or directory"),
        ({"op": "softmax"}, ":2: field 'file': give either 'file' or 'source'"),
        (line(RIGHT, file="a.py"), ":2: field 'file': give either 'file' or 'source'"),
        ({"op": "softmax", "file": "a.py"}, ":2: field 'file': a.py: No such file or directory"),
        (line(RIGHT, functoin="f"), ":2: field 'functoin' is not one of id, op, file, source, function, "),
        (line(RIGHT, id=3), ":2: field 'id': expected a text that is not empty, got 3"),
        (line(RIGHT, id="first"), ":2: field 'id': 'first' is that of /candidates.jsonl:1 too"),
        (line(""), ":2: field 'source': expected a text that is not empty, got ''"),
        (line(RIGHT, dtypes=["float31"]), ":2: field 'dtypes': 'float31' is not one of float32, "),
        (line(RIGHT, dtypes="float32"), ":2: field 'dtypes': expected a list of names out of float32, "),
        (line(RIGHT, sizes={"colls": 33}), ":2: field 'sizes': "),
        (line(RIGHT, sizes={"cols": 34567}), ":2: field 'sizes': "),
        (line(RIGHT, outputs=["z"]), ":2: field 'outputs': 'z' is not one of y"),
        (line(RIGHT, require=["speed"]), ":2: field 'require': 'speed' is not one of values, "),
        (
            line(RIGHT, compute="tf33"),
            ":2: field 'compute': expected one of tf32, tf32x3, bf16, half_sum, fp22, fp22_promoted, approximate",
        ),
        (line(RIGHT, coverage=2), ":2: field 'coverage': expected a share from 0 to 1, got 2"),
        (line(RIGHT, strict="yes"), ":2: field 'strict': expected true or false, got 'yes'"),
        (
            line("def a(x):\n    pass\n\n\ndef b(x):\n    pass\n"),
            ":2: field 'function': is missing, and a, b fit all; name one, or call it softmax",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_mistake_is_told_with_its_line_and_field(tmp_path, bad, said):
    assert said in told(tmp_path, line(RIGHT, id="first"), bad)


def test_all_mistakes_are_told_at_once(tmp_path):
    text = told(tmp_path, "{", line(RIGHT), *["[]"] * 30)
    assert text.splitlines()[1].startswith("/candidates.jsonl:1: ")
    assert text.splitlines()[-1] == "... and 11 more"


def test_no_place_and_no_candidate_are_mistakes(tmp_path):
    for place, said in ((tmp_path / "none", "there is no such file or folder"), (tmp_path, "there is no candidate")):
        with pytest.raises(UsageError, match=said):
            read([str(place)], "quick")


def test_a_folder_holds_a_folder_for_each_op(tmp_path):
    for name, text in {
        "softmax/first.py": RIGHT,
        "softmax/second.py": RIGHT.replace("def softmax", "def mine"),
        "softmax/_helper.py": "",
        "twice_in_a_folder/only.py": "def twice_in_a_folder(x):\n    return x + x\n",
        "twice_in_a_folder.py": OWN_OP,
        "notes.txt": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = {each.id: each for each in read([str(tmp_path)], "quick")}
    assert {name: (each.op, each.function) for name, each in found.items()} == {
        "softmax/first": ("softmax", "softmax"),
        "softmax/second": ("softmax", "mine"),
        "twice_in_a_folder/only": ("twice_in_a_folder", "twice_in_a_folder"),
    }
    assert found["twice_in_a_folder/only"].op_file.text == OWN_OP
    (tmp_path / "sofmax").mkdir()
    (tmp_path / "sofmax" / "third.py").write_text(RIGHT)
    with pytest.raises(UsageError, match=r"sofmax/third\.py: field 'op': 'sofmax' is not one of .*mean 'softmax'"):
        read([str(tmp_path)], "quick")


@pytest.mark.parametrize(
    ("source", "function"),
    [
        ("def a(x):\n    pass\n\n\ndef softmax(q, r):\n    pass\n", "softmax"),
        ("def _a(x):\n    pass\n\n\ndef b(x, y):\n    pass\n\n\ndef c(x, *, n=3):\n    pass\n", "c"),
        ("import triton\n\n\n@triton.jit\ndef kernel(x):\n    pass\n\n\ndef launch(x):\n    pass\n", "launch"),
        ("def b(x, y):\n    pass\n", "softmax"),  # none fits: judging says so
        ("def b(x:\n", "softmax"),
        ("softmax = print\n\n\ndef b(x):\n    pass\n", "softmax"),
    ],
)
def test_the_function_is_the_one_that_is_meant(tmp_path, source, function):
    (found,) = read([str(listing(tmp_path, [line(source)]))], "quick")
    assert (found.id, found.function) == ("candidates:1", function)


def test_identical_candidates_have_one_key(tmp_path):
    same = [line(RIGHT, id="a"), line(RIGHT, id="b", language="torch"), line(RIGHT, id="c", function="softmax")]
    others = [line(WRONG, id="d"), line(RIGHT, id="e", dtypes=["float16"]), line(RIGHT, id="f", function="other")]
    found = read([str(listing(tmp_path, same + others))], "quick")
    assert [[each.id for each in alike] for _, alike in each_once(found, Settings())] == [
        ["a", "b", "c"],
        ["d"],
        ["e"],
        ["f"],
    ]
    assert found[0].key(Settings()) != found[0].key(Settings(seed=1))


def test_what_a_file_imports_from_its_folder_belongs_to_its_key(tmp_path):
    (tmp_path / "kernel.py").write_text("from helper import softmax\n")
    (tmp_path / "helper.py").write_text(RIGHT)
    path = str(listing(tmp_path, [{"op": "softmax", "file": "kernel.py"}]))
    before, again = (read([path], "quick")[0].key(Settings()) for _ in range(2))
    (tmp_path / "helper.py").write_text(WRONG)
    assert before == again != read([path], "quick")[0].key(Settings())


def test_a_text_is_placed_where_its_file_is_not(tmp_path):
    (tmp_path / "kernel.py").write_text(RIGHT)
    (found,) = read([str(listing(tmp_path, [{"op": "softmax", "file": "kernel.py"}]))], "quick")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert found.source.placed(elsewhere) == (tmp_path / "kernel.py").resolve()
    (tmp_path / "kernel.py").write_text(WRONG)
    assert found.source.placed(elsewhere) == elsewhere / "kernel.py"
    assert (elsewhere / "kernel.py").read_text() == RIGHT
