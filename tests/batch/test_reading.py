"""Candidates as they are read: what is one, what is a mistake and where it stands."""

import json
import os

import pytest

from tests.batch.lines import RIGHT, WRONG, line, listing
from touchstone.conformance.batch.candidates import Settings, each_once, read
from touchstone.conformance.discovery import importing
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
        ({"op": "softmax", "file": "\x1b[2J\na.py"}, ":2: field 'file': \\x1b[2J\\na.py: No such"),
        ({"op": "softmax", "file": "a.py"}, ":2: field 'file': a.py: No such file or directory"),
        (line(RIGHT, functoin="f"), ":2: field 'functoin' is not one of id, op, file, source, function, "),
        (line(RIGHT, id=3), ":2: field 'id': expected a text that is not empty, got 3"),
        (line(RIGHT, id="first"), ":2: field 'id': 'first' is that of /candidates.jsonl:1 too"),
        (line(""), ":2: field 'source': expected a text that is not empty, got ''"),
        (line(RIGHT, dtypes=["float31"]), ":2: field 'dtypes': 'float31' is not one of float32, "),
        (line(RIGHT, dtypes="float32"), ":2: field 'dtypes': expected a list of names out of float32, "),
        (line(RIGHT, sizes={"colls": 33}), ":2: field 'sizes': "),
        (line(RIGHT, sizes={"cols": 34567}), ":2: field 'sizes': "),
        (line(RIGHT, sizes={"cols": []}), ":2: field 'sizes': cols: expected one size or more, got []"),
        (line(RIGHT, outputs=["z"]), ":2: field 'outputs': 'z' is not one of y"),
        (line(RIGHT, require=["speed"]), ":2: field 'require': 'speed' is not one of values, "),
        (
            line(RIGHT, compute="tf33"),
            ":2: field 'compute': expected one of tf32, tf32x3, bf16, half_sum, fp22, fp22_promoted, approximate",
        ),
        (line(RIGHT, id="a\nPASSED"), ":2: field 'id': expected printable characters, got 'a\\nPASSED'"),
        (line(RIGHT, id="\x1b[2K"), ":2: field 'id': expected printable characters, got '\\x1b[2K'"),
        (line("x = '\ud800'"), ":2: field 'source': expected Unicode, got half of a surrogate pair"),
        ('{"op": "softmax", "op": "matmul"}', ":2: expected one JSON object: field 'op' is there more than once"),
        ('{"op": "softmax", "coverage": NaN}', ":2: expected one JSON object: NaN is no number of JSON"),
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
        ("async def softmax(x):\n    pass\n\n\ndef b(x):\n    pass\n", "softmax"),
        ("try:\n    def softmax(x):\n        pass\nfinally:\n    pass\n\n\ndef b(x):\n    pass\n", "softmax"),
        ("with open(__file__) as softmax:\n    pass\n\n\ndef b(x):\n    pass\n", "softmax"),
        ("def b(x):\n    softmax = print\n    return softmax\n", "b"),
    ],
)
def test_the_function_is_the_one_that_is_meant(tmp_path, source, function):
    (found,) = read([str(listing(tmp_path, [line(source)]))], "quick")
    assert (found.id, found.function) == ("candidates:1", function)


@pytest.mark.parametrize("late", ["globals()['softmax'] = mine\n", "def __getattr__(name):\n    return mine\n", ""])
def test_a_file_that_has_the_ops_name_by_no_statement_does_not_say_which_function_is_meant(tmp_path, late):
    source = RIGHT.replace("def softmax", "def mine") + late
    unnamed, named = read([str(listing(tmp_path, [line(source), line(source, function="mine")]))], "quick")
    assert (unnamed.function, unnamed.instead, named.instead) == ("mine", "softmax", None)
    assert unnamed.key(Settings()) != named.key(Settings())
    file = tmp_path / "mine.py"
    file.write_text(source)
    assert importing.load(file, "mine", named.instead).__name__ == "mine"
    if not late:
        assert importing.load(file, "mine", unnamed.instead).__name__ == "mine"
        return
    with pytest.raises(ValueError, match="has 'softmax' once it is imported, which no statement of it defines"):
        importing.load(file, "mine", unnamed.instead)


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
    (tmp_path / "kernel.py").write_text(IN_ITS_PLACE)
    (found,) = read([str(listing(tmp_path, [{"op": "softmax", "file": "kernel.py"}]))], "quick")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert found.source.placed(elsewhere) == (tmp_path / "kernel.py").resolve()
    (tmp_path / "kernel.py").write_text(WRONG)
    assert found.source.placed(elsewhere) == elsewhere / "kernel.py"
    assert (elsewhere / "kernel.py").read_text() == IN_ITS_PLACE


IN_ITS_PLACE = f"from pathlib import Path\n{RIGHT}\n\nTEXT = Path(__file__).with_suffix('.cu').read_text()\n"


def keys(folder) -> dict[str, str]:
    return {each.id: each.key(Settings()) for each in read([str(folder)], "quick")}


def test_a_file_that_needs_no_other_is_judged_by_its_text(tmp_path):
    """Whatever lies beside it, and however it looks for that: it is not there."""
    for name in ("a", "b", "c"):
        (tmp_path / "softmax" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "softmax" / f"{name}.py").write_text(RIGHT)
        (tmp_path / "softmax" / f"{name}.cu").write_text(name)
    before = keys(tmp_path)
    assert len(set(before.values())) == 1
    (found, *_) = read([str(tmp_path)], "quick")
    made = tmp_path / "made"
    made.mkdir()
    assert found.source.placed(made) == made / "a.py"


def test_files_that_look_for_others_are_not_identical(tmp_path):
    """Of one text, they may find different ones: by their own name, by a name in the text, or by a module's."""
    for name, text in {
        "softmax/a.py": IN_ITS_PLACE,
        "softmax/b.py": IN_ITS_PLACE,
        "softmax/a.cu": "one",
        "softmax/b.cu": "another",
        "rms_norm/c.py": IN_ITS_PLACE.replace("softmax", "rms_norm"),
        "rms_norm/d.py": "from _deeper import rms_norm\n",
        "rms_norm/_deeper.py": "from _deepest import rms_norm\n",
        "rms_norm/_deepest.py": RIGHT,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    before = keys(tmp_path)
    assert len(set(before.values())) == len(before) == 4
    (tmp_path / "softmax" / "a.cu").write_text("changed")
    (tmp_path / "softmax" / "notes.txt").write_text("of no candidate")
    (tmp_path / "rms_norm" / "_deepest.py").write_text(WRONG)
    after = keys(tmp_path)
    assert {name for name in before if before[name] != after[name]} == {"softmax/a", "rms_norm/d"}


def test_lines_end_where_json_lines_end(tmp_path):
    """Not at other characters that end a line of text, which a source may hold."""
    source = f"{RIGHT}\n# one\u2028two\x85three\n"
    path = tmp_path / "candidates.jsonl"
    path.write_text(json.dumps(line(source), ensure_ascii=False) + "\r\n", newline="")
    (found,) = read([str(path)], "quick")
    assert found.source.text == source


@pytest.mark.parametrize(("depth", "function"), [(100, "fn"), (2000, "softmax"), (100_000, "softmax")])
def test_a_source_that_is_nested_too_deeply_to_be_read_is_a_candidate(tmp_path, depth, function):
    source = f"@{'-' * depth}1\ndef fn(x):\n    return x\n"
    (found,) = read([str(listing(tmp_path, [line(source)]))], "quick")
    assert found.function == function


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    assert ":1: field 'file': pipe.py: it is no plain file" in told(tmp_path, {"op": "softmax", "file": "pipe.py"})


def test_a_link_to_itself_is_no_file(tmp_path):
    (tmp_path / "loop.py").symlink_to("loop.py")
    asked = {"file": {"op": "softmax", "file": "loop.py"}, "op": {"op": "loop.py", "source": RIGHT}}
    for field, given in asked.items():
        assert f":1: field '{field}': loop.py: " in told(tmp_path, given)
