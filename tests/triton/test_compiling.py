"""Launches recorded on CPU tensors are what a GPU would be given, and the compiler's refusals come through."""

import importlib.util
import itertools
import json
import re

import pytest

from tests.processes import run_touchstone
from tests.programs import PROGRAMS

if not importlib.util.find_spec("triton"):
    pytest.skip("triton is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def result():
    done = run_touchstone([str(PROGRAMS / "recorded_kernels.py")])
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def programs(result):
    return result["programs"]


def test_nothing_runs_while_launches_are_recorded(result):
    assert result["written"] == 0.0


def test_recording_needs_a_process_that_compiles():
    code = "from touchstone.backends.triton.runtime import compiling\nwith compiling.recording(): pass"
    done = run_touchstone(["-c", code], environment={"TRITON_INTERPRET": "1"})
    assert "RuntimeError: this process interprets Triton kernels" in done.stderr


def test_a_launch_is_specialised_as_for_a_gpu(programs):
    assert [each["launch"] for each in programs["copy"]] == [
        "_copy_kernel(x_ptr: *fp32/16, y_ptr: *fp32/16, n: i32, scale: fp32, BLOCK=64)",
        "_copy_kernel(x_ptr: *fp32/16, y_ptr: *fp32/16, n: i32, scale: fp32, BLOCK=64)",
        "_copy_kernel(x_ptr: *fp32/16, y_ptr: *fp32, n: i32, scale: fp32, BLOCK=64)",
        "_copy_kernel(x_ptr: *fp32/16, y_ptr: *fp32/16, n: i32/16, scale: fp32, BLOCK=64)",
        "_copy_kernel(x_ptr: *fp32/16, y_ptr: *fp32/16, scale: fp32, n=1, BLOCK=64)",
        "_copy_kernel(x_ptr: *fp32/16, y_ptr: *fp32/16, n: i64/16, scale: fp32, BLOCK=64)",
        "_copy_kernel(x_ptr: *fp16/16, y_ptr: *fp16/16, n: i32, scale: fp32, BLOCK=64, num_warps=8)",
    ]


def test_launches_of_the_same_code_have_one_key_and_others_have_others(programs):
    keys = [each["key"] for each in programs["copy"]]
    assert keys[0] == keys[1]
    assert len(set(keys)) == len(keys) - 1


def test_launches_of_the_same_code_have_the_same_features_and_others_have_others(programs):
    for launches in programs.values():
        for one, other in itertools.combinations(launches, 2):
            assert (one["key"] == other["key"]) == (one["features"] == other["features"]), (one, other)


def test_the_types_of_tensors_are_what_launches_of_other_sizes_share(programs):
    assert [each["types"] for each in programs["copy"]] == [["*fp32"]] * 6 + [["*fp16"]]
    assert [each["types"] for each in programs["descriptor"]] == [["*fp32", "tensordesc<fp32"]]
    assert [each["types"] for each in programs["tupled"]][1:3] == [["('*fp32', 'constexpr')"], ["('*fp32', 'i32')"]]


def test_what_lies_in_a_tuple_is_named_by_its_place(programs):
    assert [each["launch"] for each in programs["tupled"]] == [
        "_tupled_kernel(pair: ('*fp32', 'constexpr')/16, n: i32, pair.1=1, BLOCK=64)",
        "_tupled_kernel(pair: ('*fp32', 'constexpr')/16, n: i32, pair.1=None, BLOCK=64)",
        "_tupled_kernel(pair: ('*fp32', 'i32')/16, n: i32, BLOCK=64)",
        "_tupled_kernel(pair: ('*fp32', 'i32')/16, n: i32, BLOCK=64)",
        "_tupled_kernel(pair: ('*fp32', 'i32')/16, n: i32, BLOCK=64)",
    ]


def test_the_interpreter_says_of_a_kernel_what_the_compiler_does(result):
    compiled, interpreted = ({name: said for name, said in each.items() if name not in ("shared", "hash")}
                             for each in result["metadata"])  # fmt: skip
    assert interpreted == compiled and len(compiled) >= 10


def test_what_a_kernel_does_not_specialise_on_makes_no_other_launch(programs):
    assert [each["launch"] for each in programs["sparing"]] == [
        "_sparing_kernel(x_ptr: *fp32, stride: i32, n: i32, BLOCK=64)",
        "_sparing_kernel(x_ptr: *fp32, stride: i32, n: i32, BLOCK=64)",
        "_sparing_kernel(x_ptr: *fp32, n: i32, stride=1, BLOCK=64)",
    ]


def test_none_is_a_constant(programs):
    assert [each["launch"] for each in programs["optional"]] == [
        "_optional_kernel(x_ptr: *fp32/16, bias_ptr=None)",
        "_optional_kernel(x_ptr: *fp32/16, bias_ptr: *fp32/16)",
    ]


def test_an_autotuned_kernel_is_recorded_with_every_configuration_that_pruning_leaves(programs):
    assert [each["launch"] for each in programs["tuned"]] == [
        "_tuned_kernel(x_ptr: *fp32/16, n: i32/16, BLOCK=64, EVEN=True)",
        "_tuned_kernel(x_ptr: *fp32/16, n: i32/16, BLOCK=128, EVEN=False, num_warps=8)",
    ]


def test_a_launch_has_the_configuration_pinned_for_the_architecture(programs):
    assert [each["launch"].partition("BLOCK=")[2] for each in programs["pinned"]] == ["32, num_warps=1)", "64)"]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", ["optional", "tuned", "descriptor"])
def test_machine_code_and_its_resources(programs, name, arch):
    for each in programs[name]:
        assert set(each["front end"]) == {"seconds"}  # and no machine code
        assert "error" not in each[arch]
        assert 1 < each[arch]["registers"] < 128
        assert each[arch]["spills"] == 0
        assert each[arch]["seconds"] > 0


def test_the_compiler_refuses_exp_of_float16(programs):
    float16, float32 = programs["exp"]
    for step in ("front end", "sm_80", "sm_90"):
        assert "Expected dtype ['fp32', 'fp64'] but got fp16" in float16[step]["error"]
        assert "tl.exp(x)" in float16[step]["error"]
        assert "error" not in float32[step]


def test_the_compiler_refuses_a_variable_that_changes_its_dtype_in_a_loop(programs):
    (carried,) = programs["carried"]
    assert (
        "Loop-carried variable total has initial type int32 but is re-assigned to fp32" in carried["front end"]["error"]
    )


def test_shared_memory_beyond_the_architectures_is_an_error(programs):
    (hoarding,) = programs["hoarding"]
    assert hoarding["sm_80"]["error"].endswith("bytes of shared memory; sm_80 has 166912")
    assert hoarding["sm_80"]["shared"] > 166912
    assert ("error" in hoarding["sm_90"]) == (hoarding["sm_90"]["shared"] > 232448)


def test_what_comes_after_the_front_end_refuses(result):
    later = result["later"]
    for arch, has, told in zip(("sm_80", "sm_90"), (166912, 232448), later["shared"], strict=True):
        said = re.match(rf"_hoarding_kernel\(.*BLOCK=128, .*\) for {arch}: needs (\d+) bytes of shared memory; ", told)
        assert int(said[1]) > has and told.endswith(f"; {arch} has {has}")
    assert later["right"] is None and later["front end"] is None
    assert re.match(r"_assembler_kernel\(.*\) for sm_90: Unknown modifier '\.such'$", later["assembler"])
    assert later["caught"] is None  # by a launcher that takes smaller tiles then
    assert re.match(r"(?s)PTXASError: .*'sm_3' is not defined", later["unknown"])  # which is not the kernel's fault


def test_of_each_kernel_that_is_not_tuned_the_launch_with_the_largest_tiles(result):
    assert result["later"]["heaviest"] == [
        "_copy_kernel(x_ptr: *fp32/16, y_ptr: *fp32/16, n: i32/16, scale: fp32, BLOCK=128)",
        "_exp_kernel(x_ptr: *fp32/16, y_ptr: *fp32/16, n: i32, BLOCK=64)",
    ]


def test_a_refusal_is_a_finding_that_names_variant_case_and_line(result):
    findings = result["checked"]["findings"]
    refused = [text for text in findings if "Expected dtype" in text]
    assert refused
    assert all(re.match(r"sm_[89]0: _exp_kernel\(x_ptr: \*", text) for text in refused)
    assert all("launched by whole in " in text and "part" not in text for text in refused)
    assert not any("fp32" in text.partition("\n")[0] for text in refused)


def test_a_variant_that_launches_nothing_in_a_dtype_is_a_finding(result):
    missing = [text for text in result["checked"]["findings"] if "launches nothing" in text]
    assert missing == [
        f"part launches nothing in {dtype}, in no case of level default" for dtype in ("bfloat16", "float16")
    ]


@pytest.mark.level("default")
def test_the_item_of_an_op_compiles_its_variants_and_shows_their_resources():
    options = ["--op=softmax", "--variant=onerow", "--level=quick", "--device=cpu", "-v", "-p", "no:cacheprovider"]
    command = ["-m", "pytest", "touchstone/conformance/suite/test_compile.py", *options]
    done = run_touchstone(command, environment={"TRITON_INTERPRET": "1"})
    assert done.returncode == 0, done.stdout[-3000:]
    assert "test_compile[softmax-triton-compiles] PASSED" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("softmax  triton")]
    assert [row[:5] for row in rows] == [
        ["softmax", "triton", "onerow", "_onerow_kernel", arch] for arch in ("sm_80", "sm_90")
    ]
    assert all(1 < int(row[7]) <= 255 for row in rows)


MESSAGES = """
import os
from touchstone.backends.triton.runtime import compiling

def held():
    return len(os.listdir("/proc/self/fd"))

before = held()
for _ in range(3):
    with compiling._standard_error() as printed:
        os.write(2, b"k.py:3: error: from C++, \\xff\\n")
        assert printed() == "k.py:3: error: from C++, \ufffd\\n"
    try:
        with compiling._standard_error():
            os.write(2, b"not to be seen")
            raise KeyError
    except KeyError:
        os.write(2, b"seen\\n")
assert held() == before
try:
    try:
        raise ValueError("the cause")
    except ValueError as cause:
        raise TypeError("at 3:5: the cause and more") from cause
except TypeError as error:
    said = "TypeError: at 3:5: the cause and more\\nk.py: error: one"
    assert compiling._message(error, "x\\nk.py: error: one\\n") == said
try:
    try:
        raise ValueError("another")
    except ValueError as cause:
        raise TypeError("") from cause
except TypeError as error:
    assert compiling._message(error, "k.py: error: one\\nk.py: error: one") == (
        "TypeError: \\nValueError: another\\nk.py: error: one"
    )
assert compiling.architectures() == ("sm_80", "sm_90") == compiling.architectures("sm_80")
assert compiling.architectures("sm_89") == ("sm_90",) == compiling.architectures("sm_90a")
assert compiling.architectures("sm_100") == ("sm_100",)
"""


def test_what_the_compiler_prints_and_raises_is_its_message():
    done = run_touchstone(["-c", MESSAGES])
    assert (done.returncode, done.stderr) == (0, "seen\n" * 3), done.stderr
