"""The command that runs a kernel in every order, with local variables zeroed and for races, and says what it found."""

import re

import pytest
import torch

from touchstone.backends import emulator
from touchstone.backends.emulator import command

if emulator.why_not():
    pytest.skip(str(emulator.why_not()), allow_module_level=True)

KERNEL = """
__global__ void k(float* y, const float* x, int mode, const int* none) {
  const int i = threadIdx.x + blockDim.x * blockIdx.x;
  if (mode == 0) y[i] = FACTOR * x[i] + (none == nullptr);
  if (mode == 1) { float sum; for (int j = 0; j < 8; ++j) sum += x[j]; y[i] = sum; }
  if (mode == 2) y[0] = i;
  if (mode == 3) atomicAdd(y, x[i] * 1.1f);
  if (mode == 4) { if (threadIdx.x > 3) return; __syncthreads(); }
  if (mode == 5) y[i + 1] = 1;
}
"""


DYNAMIC = """
__global__ void k(float* y) {
  extern __shared__ float all[];
  all[threadIdx.x] = threadIdx.x;
  __syncthreads();
  y[threadIdx.x] = all[7 - threadIdx.x];
}
"""


def test_dynamic_shared_memory_is_given_in_bytes(tmp_path, capsys):
    (tmp_path / "k.cu").write_text(DYNAMIC)
    given = [str(tmp_path / "k.cu"), "--block", "8", "--arg", "float[8]=0"]
    assert command.main([*given, "--shared", "32"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "argument 1 after k: 7, 6, 5, 4, 3, 2, 1, 0"
    assert command.main([*given, "--shared", "28"]) == 1
    with pytest.raises(SystemExit):
        command.main([*given, "--shared", "much"])


@pytest.fixture
def call(tmp_path, capsys):
    (tmp_path / "k.cu").write_text(KERNEL)

    def run(mode, *more, block=8, factor=2, x="float[8]=3"):
        given = ["--arg", "float[8]=0", "--arg", x, "--arg", str(mode), "--arg", "null"]
        options = [str(tmp_path / "k.cu"), "--block", str(block), *given, "-D", f"FACTOR={factor}", *more]
        status = command.main(options)
        out, err = capsys.readouterr()
        return status, out.splitlines(), err

    return run


def test_a_clean_kernel_is_run_in_every_way_and_what_it_wrote_is_shown(call):
    status, out, err = call(0)
    assert (status, err) == (0, "")
    assert [line.split()[:2] for line in out[:-1]] == [
        [name, "clean,"] for name in ("forward", "reverse", "shuffled", "locals", "races")
    ]
    assert all(re.fullmatch(r"\w+ +clean, \d+\.\d ms", line) for line in out[:-1])
    assert out[-1] == "argument 1 after k: 7, 7, 7, 7, 7, 7, 7, 7"
    _, out, _ = call(0, "--no-races", "--strict", "--grid", "2", block=4)
    assert [line.split()[0] for line in out[:-1]] == ["forward", "reverse", "shuffled", "locals", "strict"]
    assert out[-1] == "argument 1 after k: 7, 7, 7, 7, 7, 7, 7, 7"
    _, one, _ = call(0, x="float[8]")
    _, same, _ = call(0, x="float[8]")
    _, other, _ = call(0, "--seed", "1", x="float[8]")
    assert one[-1] == same[-1] != other[-1]


def test_a_local_variable_without_a_value(call):
    status, out, _ = call(1)
    assert status == 1
    first = "argument 1 differs from that of forward, first at element 0"
    assert f"locals    {first}: the answer depends on a local variable that was given no value" in out


def test_a_race_and_what_another_order_gives(call):
    status, out, _ = call(2)
    assert status == 1
    first = "argument 1 differs from that of forward, first at element 0"
    assert f"reverse   {first}: the answer depends on the order" in out
    (race,) = (line for line in out if line.startswith("races"))
    assert race.startswith("races     RaceCondition: k (k.cu:") and out[-1].startswith("argument 1 after k: 7, 0, 0")


def test_atomics_in_another_order_are_no_finding(call):
    status, out, _ = call(3, block=64, x="float[64]")
    assert status == 0
    (line,) = (line for line in out if line.startswith("reverse   order-dependent"))
    assert re.search(r"argument 1 differs from that of forward, first at element 0, by up to \d+(\.\d+)? ulp$", line)


def test_what_later_gpus_allow_is_a_note(call):
    status, out, _ = call(4, "--strict")
    assert status == 0
    assert re.fullmatch(r"strict    note: DivergentBarrier: k .*; sm_70 and later allow it", out[-1])


def test_a_finding_ends_with_1_and_a_bad_call_with_2(call):
    status, out, _ = call(5)
    assert status == 1 and len(out) == 5
    assert all(re.match(r"\w+ +OutOfBounds: k \(k.cu:\d+\): .*past the end of y", line) for line in out)
    status, out, err = call(0, "--cluster", "2")
    assert (status, out) == (2, []) and err


FILES = {
    "two.cu": "__global__ void one(int* x) {} __global__ void two(int* x) {}",
    "template.cu": "template <int N> __global__ void of(int* x) { x[0] = N; }\nvoid run(int* x) {"
    " of<5><<<1, 1>>>(x); of<1><<<1, 1>>>(x); of<3><<<1, 1>>>(x); of<2><<<1, 1>>>(x); of<4><<<1, 1>>>(x); }",
    "none.cu": "int main() { return 0; }",
}


def test_which_kernel_is_meant(tmp_path, capsys):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    for name, said in (("two.cu", "one, two"), ("template.cu", "of"), ("none.cu", "none: the file has no kernel")):
        assert command.main([str(tmp_path / name), "--block", "1"]) == 2
        assert capsys.readouterr().err == f"--kernel: expected one of {said}\n"
    given = ["--block", "1", "--arg", "int[1]=0", "--kernel", "of<9>", "--no-races"]
    assert command.main([str(tmp_path / "template.cu"), *given]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "argument 1 after of<9>: 9"
    assert command.main([str(tmp_path / "template.cu"), "--block", "1", "--arg", "null", "--kernel", "of"]) == 2
    instances = "of<1> or of<2> or of<3> or of<4>"
    assert capsys.readouterr().err == f"template.cu: of is a template: name an instance, as {instances}\n"
    assert command.main([str(tmp_path / "two.cu"), "--block", "1", "--arg", "null", "--kernel", "gone"]) == 2
    assert "gone" in capsys.readouterr().err
    assert command.main([str(tmp_path / "two.cu"), "--list"]) == 0
    assert capsys.readouterr().out == "one(int * x)  two.cu:1\ntwo(int * x)  two.cu:1\n"


@pytest.mark.parametrize(("name", "dtype"), [
    ("float", torch.float32), ("float32", torch.float32), ("half", torch.float16), ("float16", torch.float16),
    ("bfloat16", torch.bfloat16), ("double", torch.float64), ("float64", torch.float64), ("int", torch.int32),
    ("int32", torch.int32), ("int64", torch.int64), ("uint8", torch.uint8), ("int8", torch.int8),
    ("int16", torch.int16),
])  # fmt: skip
def test_arrays_of_every_type(name, dtype):
    for text in (f"{name}[2, 3]", f"{name}[2x3]=1", f" {name}[2,3]=arange "):
        made = command.argument(text, torch.Generator().manual_seed(0))
        assert (made.dtype, made.shape) == (dtype, (2, 3))
