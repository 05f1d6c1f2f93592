"""Files as people publish them: with host code, for an architecture, with headers that are not there, with inline
PTX."""

import re

import numpy as np
import pytest

from tests.programs import PROGRAMS
from touchstone.backends import emulator
from touchstone.backends.emulator import command, declarations, preprocess, ptx
from touchstone.conformance import cli

if emulator.why_not():
    pytest.skip(str(emulator.why_not()), allow_module_level=True)

FILE = PROGRAMS / "published_style.cu"
SOURCE = FILE.read_text()


def line(name):
    return 1 + next(n for n, text in enumerate(SOURCE.splitlines()) if f"LINE {name}" in text)


@pytest.fixture(scope="module")
def program():
    return emulator.compile(SOURCE, "published.cu")


def test_kernels_are_compiled_and_host_code_is_left_out(program):
    assert [(k.name, k.template, k.parameters) for k in program.kernels] == [
        ("inner::rows", False, ("x", "y", "shift")),
        ("scale", False, ("x", "by", "n")),
        ("fill", True, ("x", "value")),
        ("checked", False, ("x", "ticks")),
        ("unknown", False, ("x",)),
    ]
    assert {(la.name, la.arguments) for la in program.launches} == {
        ("scale", ""), ("fill", "float"), ("inner::rows", "")
    }  # fmt: skip
    x, y = np.arange(32, dtype=np.float32).reshape(8, 4), np.zeros(8, np.float32)
    program.launch("inner::rows", 1, 8, (x, y, {"low": 1, "high": 2}))
    assert (y == x.sum(1) + 6).all()
    program.launch("rows", 1, 8, (x, y, (0, 0.5)))
    assert (y == x.sum(1) + 3.5).all()
    program.launch("fill<float>", 1, 8, (y, 3.0))
    program.launch("scale", 1, 8, (y, 2.0, 7))
    assert y.tolist() == [6] * 7 + [3]


def test_asserts_clocks_and_printf(program, capfd):
    ticks = np.full(4, -1, np.int64)
    program.launch("checked", 1, 4, (np.arange(4, dtype=np.int32), ticks))
    assert (ticks > 0).all() and capfd.readouterr().out == "4 of threads\n"
    with pytest.raises(emulator.KernelError, match=rf"published.cu:{line('assert')}\): .*assertion failed: x\[thread"):
        program.launch("checked", 1, 4, (np.array([0, 1, -1, 2], np.int32), ticks))


def test_what_is_not_covered_is_named_with_its_line(program):
    with pytest.raises(emulator.KernelError, match=rf"published.cu:{line('ptx')}\): .*not covered.*PTX: tcgen05.fence"):
        program.launch("unknown", 1, 1, (np.zeros(1, np.float32),))
    with pytest.raises(emulator.CompileError, match=r"d.cu:2:\d+: error: '__vadd9'"):
        emulator.compile("\n__global__ void k(int* x) { x[0] = __vadd9(x[0]); }", "d.cu")
    with pytest.raises(emulator.CompileError, match="e.cu: a kernel uses .*host_only.*no device code"):
        emulator.compile("int host_only(int);\n__device__ int host_only(int);\n"
                         "__global__ void k(int* x) { x[0] = host_only(x[0]); }", "e.cu")  # fmt: skip
    with pytest.raises(emulator.CompileError, match=r"f.cu:2:2: error: #error no volta"):
        emulator.compile("#if __CUDA_ARCH__ >= 700\n#error no volta\n#endif\n", "f.cu")


OF_A_PROCESSOR = {  # what device code asks for, and what the error says of it
    "system": ('extern "C" __device__ int system(const char*);', 'system("true")'),
    "fopen": ("#include <stdio.h>", 'fopen("made", "w") != 0'),
    "dlsym": ('extern "C" __device__ void* dlsym(void*, const char*);', 'dlsym(0, "system") != 0'),
    "getpid": ('extern "C" int getpid();\n__device__ int ran = getpid();', "ran"),
    "environ": ('extern "C" char** environ;', "environ != 0"),
    "ts_writers_new": ('extern "C" __device__ void* ts_writers_new();', "ts_writers_new() != 0"),
    "constructor": ("__attribute__((constructor)) __device__ void ran() {}", "(ran(), 1)"),
    "section": ('__device__ __attribute__((__section__(".text#"))) const char code[] = {1};', "code[0]"),
    "no_sanitize": ('__device__ [[gnu::no_sanitize("thread")]] int unseen(int* x) { return x[99]; }', "unseen(x)"),
    "error": ('__device__ int renamed(const char*) __asm__("system");', 'renamed("true")'),
}


@pytest.mark.parametrize("name", OF_A_PROCESSOR)
def test_what_a_processor_has_and_no_gpu_is_no_device_code(name):
    head, work = OF_A_PROCESSOR[name]
    with pytest.raises(emulator.CompileError, match=rf"\b{name}\b"):
        emulator.compile(f"{head}\n__global__ void k(int* x) {{ x[0] = {work}; }}", "of_a_processor.cu")


def test_a_header_that_is_not_found_is_told_where_it_matters(tmp_path):
    text = '#include <stdio.h>\n#include "ours.h"\n__global__ void k(int* x) { x[0] = OURS; }'
    with pytest.raises(emulator.CompileError, match=r"^g.cu:2: ours.h is not found: -I FOLDER names where it is\n"):
        emulator.compile(text, "g.cu")
    (tmp_path / "kernels" / "deep").mkdir(parents=True)
    (tmp_path / "common").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "common" / "ours.h").write_text("#pragma once\n#define OURS 7\n")
    program = emulator.compile(text, "g.cu", include=[tmp_path / "kernels" / "deep"])
    assert program.nearby == (("ours.h", str(tmp_path / "common" / "ours.h")),)
    x = np.zeros(1, np.int32)
    program.launch("k", 1, 1, (x,))
    assert x[0] == 7
    rooted = emulator.compile(text.replace("ours.h", "common/ours.h"), "g.cu", include=[tmp_path / "kernels" / "deep"])
    assert rooted.nearby[0][1] == str(tmp_path / "common" / "ours.h")


def test_what_the_build_of_a_file_gives_is_told(tmp_path):
    text = '#ifdef OTHER\n#include "theirs.h"\n#endif\n__global__ void k(int* x) { x[0] = CHUNK_; }'
    with pytest.raises(emulator.CompileError, match=r"h.cu:4(.|\n)*-D CHUNK_=VALUE defines it") as raised:
        emulator.compile(text, "h.cu")
    assert "theirs.h" not in str(raised.value)
    emulator.compile(text, "h.cu", {"CHUNK_": 3})


def test_fields_with_values_of_their_own():
    text = "constexpr CUtensorMapDataType made = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;\nenum Kind { PLAIN, OTHER };\n"
    text += "struct Box { int n = 1, m = 2; bool on = false; Kind kind = OTHER; float w{3}; };\n"
    program = emulator.compile(
        f"{text}__global__ void k(Box b, float* y) {{ y[0] = b.n + b.m * b.w + b.on + b.kind + made; }}"
    )
    y = np.zeros(1, np.float32)
    program.launch("k", 1, 1, ({"n": 10, "m": 20, "on": True, "kind": 1, "w": 4}, y))
    assert y[0] == 101


def test_headers_are_looked_for_beside_a_file_only_where_it_says_so(tmp_path):
    """As by a compiler: in quotes beside the file that asks first, in angle brackets in the folders alone."""
    for folder in ("own", "own/deep", "given"):
        (tmp_path / folder).mkdir()
        for name in ("one.h", "two.h"):
            (tmp_path / folder / name).write_text(f"// {folder}\n")
    (tmp_path / "own" / "deep" / "first.h").write_text('#include "one.h"\n# include <two.h>\n#include "../two.h"\n')
    text = '#include "deep/first.h"\n#include <vector>\n/* #include "gone.h" */\n#include "one.h" // twice\n'
    found = preprocess.sources(text, str(tmp_path / "own" / "k.cu"), [tmp_path / "given"])
    assert [name.removeprefix(f"{tmp_path}/") for name, _ in found.files] == [
        "own/k.cu", "own/deep/first.h", "own/one.h", "own/deep/one.h", "given/two.h", "own/two.h",
    ]  # fmt: skip
    assert (found.kept, found.missing, found.nearby, found.empty) == (["vector"], [], [], {"vector"})
    assert dict(found.files)[str(tmp_path / "own" / "two.h")] == "// own\n"
    bare = preprocess.sources(
        '#include "one.h"\n#include <two.h>\n#include <nowhere/else>\n', "k.cu", [tmp_path / "own"]
    )
    assert [name for name, _ in bare.files[1:]] == [str(tmp_path / "own" / name) for name in ("one.h", "two.h")]
    gone = preprocess.sources('\n#include "gone.h"\n#include <gone/a.h>\n#include <gone>\n', "k.cu", [])
    assert gone.missing == [("gone.h", "k.cu", 2), ("gone/a.h", "k.cu", 3)]
    assert gone.kept == ["gone.h", "gone/a.h", "gone"] and gone.empty == set(gone.kept)


def test_a_header_may_have_bytes_that_are_no_text(tmp_path):
    (tmp_path / "one.h").write_bytes(b"// caf\xe9\nint one;\n")
    found = preprocess.sources('#include "one.h"\n', str(tmp_path / "k.cu"), [])
    assert found.files[1][1].endswith("\nint one;\n")


@pytest.mark.parametrize(("arch", "number", "suffix"), [("sm_90a", 900, "a"), ("80", 800, ""), (1200, 1200, "")])
def test_architectures(arch, number, suffix):
    assert preprocess.architecture(arch) == (number, suffix)
    defines = preprocess.defines(arch)
    assert f"#define __CUDA_ARCH__ {number}\n" in defines
    for name, value in ((f"__CUDA_ARCH_FEAT_SM{number // 10}_ALL", 1), ("__CUDA_ARCH_SPECIFIC__", number)):
        assert (f"#undef {name}\n#define {name} {value}\n" in defines) == (suffix == "a")


MACROS = {"errno": "ERANGE", "float": "FLT_MAX", "inttypes": "PRId64", "limits": "INT_MAX", "math": "M_PI",
          "stddef": "offsetof", "stdint": "UINT32_MAX", "stdlib": "RAND_MAX", "time": "CLOCKS_PER_SEC"}  # fmt: skip


@pytest.mark.parametrize("form", ["{}.h", "c{}"])
def test_macros_of_the_c_library_are_expanded(form):
    headers = "".join(f"#include <{form.format(name)}>\n" for name in MACROS)
    text = headers + "".join(f"int {name}_{macro} = {macro};\n" for name, macro in MACROS.items() if name != "stddef")
    text += "struct S { int a, b; };\nint at = offsetof(S, b);\n"
    found = preprocess.preprocess(text, "m.cu", {}, [], "sm_90")
    assert found.headers == found.missing == ()
    own = found.text[found.text.rindex("int errno_ERANGE") :]
    assert set(MACROS.values()) & set(re.findall(r"\w+", own)) == set()


@pytest.mark.parametrize(
    ("words", "asked", "headers"),
    [
        ("std", ["vector", "algorithm", "limits"], ["algorithm", "limits"]),
        ("vector", ["vector", "iostream"], ["vector"]),
        ("half", ["cuda_fp16.h"], ["cuda_fp16.h", "cuda_bf16.h"]),
        ("x", ["cuda_fp16.h"], ["cuda_fp16.h"]),
        ("at", ["torch/extension.h", "ATen/ATen.h"], ["cuda_fp16.h", "cuda_bf16.h", "touchstone_torch.h"]),
        ("x", ["torch/extension.h"], []),
        ("cub", ["cub/cub.cuh", "cuda_fp16.h"], ["cuda_fp16.h", "touchstone_cub.h"]),
        ("x", ["cub/cub.cuh"], []),
        ("cuda", ["cuda/mdspan", "cuda/std/array", "cuda/stream"], ["cuda/std/array"]),
        ("cuda mdspan", ["cuda/mdspan"], ["cuda/std/mdspan"]),
        ("x", ["cuda/std/array", "thrust/complex.h"], []),
        ("thrust", ["thrust/complex.h", "thrust/device_vector.h"], ["thrust/complex.h"]),
        ("x", ["curand_kernel.h", "cuda_runtime.h", "cuda_gl_interop.h", "cuda_vdpau_interop.h", "vector_types.h"],
         ["curand_kernel.h", "vector_types.h"]),
    ],
)  # fmt: skip
def test_headers_are_included_where_kernels_use_them(words, asked, headers):
    assert preprocess.headers_for(set(words.split()), asked) == headers


def test_headers_of_cufft_are_included_where_there_are_any(monkeypatch, tmp_path):
    """A kernel may use their types of complex numbers."""
    (tmp_path / "cufft.h").write_text("")
    monkeypatch.setattr(preprocess.compiler, "cuda_headers", lambda: tmp_path)
    assert preprocess.headers_for({"cufftComplex"}, ["cufft.h", "cufftw.h"]) == ["cufft.h"]


def test_no_branch_vanishes():
    text = (
        "__global__ void k(int* x) {\n#if __CUDA_ARCH__ >= 900\n  x[0] = 90;\n"
        "#elif __CUDA_ARCH__ >= 800\n  x[0] = 80;\n#endif\n}"
    )
    for arch, value in (("sm_90", 90), ("80", 80), (750, 0)):
        x = np.zeros(1, np.int32)
        emulator.compile(text, "arch.cu", arch=arch).launch("k", 1, 1, (x,))
        assert x[0] == value
    with pytest.raises(ValueError, match="arch: expected a compute capability"):
        emulator.compile(text, "arch.cu", arch="volta")


def cut(text):
    return declarations.Text(text)


def test_declarations_are_cut_at_their_ends():
    read = cut(
        "namespace a { namespace { template <int N = (1 > 0)> struct S { int x[N]; void f() {} }; } }\n"
        'extern "C" { __device__ int f(int x = sizeof(int[2])) { return x; } }\n'
        "__constant__ float table[] = {1, 2}, other; enum class E { A, B }; typedef float (*Fn)(int);\n"
        "P::P(int a) : x{a}, y(a) { go(); }\n"
        "template <> __global__ void k<3>(int (&x)[3]) { f(1); }"
    )
    assert [(set(d.names), d.kind, d.scopes) for d in read.declarations] == [
        ({"S"}, "type", ("a", "")),
        ({"f"}, "function", ()),
        ({"table", "other"}, "variable", ()),
        ({"E", "A", "B"}, "type", ()),
        ({"Fn"}, "type", ()),
        ({"P"}, "function", ()),
        ({"k"}, "function", ()),
    ]
    assert [set(d.names) for d in read.needed()] == [{"f"}, {"k"}]


def test_what_the_host_makes_instances_of_is_told():
    """Constants and types of the function around a launch are given by their values."""
    text = (
        "template <int M, int N, class T> __global__ void k(T* x) { x[0] = M * 100 + N; }\n"
        "void other() { const int M = 7; }\n"
        "template <int Head> void run(float* x) {\n  constexpr int M = 4, N{2};\n  const int K = M * 8;\n"
        "  using T = float;\n  if (K == 3) return;\n  k<K, N, T><<<1, 1>>>(x);\n  k<Head, 1, int><<<1, 1>>>(x);\n}\n"
    )
    program = emulator.compile(text, "instances.cu")
    assert [la.arguments for la in program.launches] == ["4 * 8, 2, float", "Head, 1, int"]
    with pytest.raises(KeyError, match="k is a template: name an instance, as k<4 . 8, 2, float> or k<Head, 1, int>"):
        program.launch("k", 1, 1, (np.zeros(1, np.float32),))
    x = np.zeros(1, np.float32)
    program.launch("k<4 * 8, 2, float>", 1, 1, (x,))
    assert x[0] == 3202


def test_texts_that_the_rewriting_must_not_change():
    """An anonymous union among the operands of `asm`; __noinline__, also where the C++ library says it."""
    text = (
        "#include <memory>\nstruct Kept { std::shared_ptr<int> p; };\n"
        "__device__ __noinline__ int half_of(float x) {\n  union { int word; float number; };\n  number = x;\n"
        '  union { int out; };\n  asm("shr.u32 %0, %1, 1;" : "=r"(out) : "r"(word));\n'
        "  return out + sizeof(Kept*) - 8;\n}\n"
        "__global__ void k(int* x) { x[0] = half_of(1.0f); x[1] = CLOCKS_PER_SEC; }"
    )
    x = np.zeros(2, np.int32)
    emulator.compile(text, "kept.cu").launch("k", 1, 1, (x,))
    assert x.tolist() == [0x3F800000 >> 1, 1000000]


def test_namespaces_members_without_body_and_the_runtime_in_device_code():
    text = (
        "template <class T> struct Has { template <class C> static char test(decltype(&C::x));\n"
        "  template <class C> static int test(...); void host(); enum { value = sizeof(test<T>(0)) }; };\n"
        "namespace outer { inline namespace v1 { template <int N> struct Plus { static constexpr int value = N; };\n"
        "__global__ void k(int* x) { x[0] += Plus<2>::value + outer::Plus<3>::value + Has<int>::value; } } }\n"
        "__global__ void parent(int* x) {\n  if (x[0] > 2)\n    cudaDeviceSynchronize();\n}"
    )
    program = emulator.compile(text, "namespaces.cu")
    x = np.array([2], np.int32)
    program.launch("parent", 1, 1, (x,))
    program.launch("outer::k", 1, 1, (x,))
    assert x[0] == 11
    with pytest.raises(
        emulator.KernelError, match=r"namespaces.cu:7\): .*not covered.*cudaDeviceSynchronize in device"
    ):
        program.launch("parent", 1, 1, (x,))


def test_variables_have_their_own_names_in_any_namespace():
    text = (
        "__device__ int plain = 1; namespace outer { __device__ int inner[2] = {2, 3};\n"
        "namespace { __constant__ float hidden = 4.5f; }\n"
        "__global__ void k(float* x) { x[0] = plain + inner[1] + hidden; inner[0] = 7; } }"
    )
    program, x = emulator.compile(text, "variables.cu"), np.zeros(1, np.float32)
    program.set("inner", np.array([5, 6], np.int32))
    program.launch("k", 1, 1, (x,))
    assert x[0] == 1 + 6 + 4.5 and program.get("inner", np.int32).tolist() == [7, 6]
    program.set("hidden", np.float32(0.5))
    program.launch("k", 1, 1, (x,))
    assert x[0] == 7.5 and program.get("plain", np.int32).tolist() == [1]
    with pytest.raises(KeyError, match="variables.cu has no variable 'outer'; it has hidden, inner, plain"):
        program.get("outer")
    with pytest.raises(ValueError, match="variables.cu: inner has 8 bytes, got 12"):
        program.set("inner", np.zeros(3, np.int32))


MODERN = """
#include <concepts>
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/sort.h>
template <typename T> concept Number = std::integral<T> || std::floating_point<T>;
template <Number T> __device__ T twice(T x) { return x * 2; }
__global__ void modern(int* x) {
  int some[4] = {3, 1, 2, 0};
  thrust::sort(thrust::seq, some, some + 4);
  x[0] = twice(x[0]);
  x[1] = some[1];
}
"""


@pytest.mark.level("default")
def test_concepts_and_thrust():
    """An algorithm of Thrust's has a temporary array of its own."""
    x = np.array([5, 0], np.int32)
    emulator.compile(MODERN, "modern.cu").launch("modern", 1, 1, (x,))
    assert x.tolist() == [10, 1]


def test_a_parameter_hides_a_shared_array_of_the_file():
    text = (
        "extern __shared__ float room[];\n__shared__ int count;\n"
        "__device__ float second(float* room, int n) { if (n > 1) { return room[1]; } return 0; }\n"
        "__device__ int next(int count) {\n  return count + 1;\n}\n"
        "__global__ void k(float* x) {\n  room[threadIdx.x] = threadIdx.x;\n  if (threadIdx.x == 0) count = 5;\n"
        "  __syncthreads();\n  x[threadIdx.x] = second(room + 1, count) + next(count * 2) + room[0];\n}"
    )
    x = np.zeros(8, np.float32)
    emulator.compile(text, "hidden.cu").launch("k", 1, 8, (x,), shared=32)
    assert (x == 2 + 11).all()


def test_a_number_for_a_texture_is_refused():
    program = emulator.compile("__global__ void k(cudaTextureObject_t t, float* y) { y[0] = tex1Dfetch<float>(t, 0); }")
    with pytest.raises(TypeError, match="k: t: expected a Texture, got int"):
        program.launch("k", 1, 1, (64, np.zeros(1, np.float32)))


PTX = [
    ("add.s32 %0, %1, %2;", "r", [("r", 5), ("r", -9)], -4),
    ("{.reg .u32 t; mul.lo.u32 t, %1, %2; xor.b32 %0, t, 0xff;}", "r", [("r", 3), ("r", 7)], 21 ^ 255),
    ("mad.lo.s32 %0, %1, %2, 4;", "r", [("r", -3), ("r", 7)], -17),
    ("mul.wide.u32 %0, %1, %2;", "l", [("r", 0xFFFFFFFF), ("r", 3)], 0xFFFFFFFF * 3),
    ("mul.hi.u32 %0, %1, %2;", "r", [("r", 0xFFFFFFFF), ("r", 3)], 2),
    ("lop3.b32 %0, %1, %2, %3, 0xEA;", "r", [("r", 12), ("r", 10), ("r", 1)], (12 & 10) | 1),
    ("prmt.b32 %0, %1, %2, 0x5410;", "r", [("r", 0x11112222), ("r", 0x33334444)], 0x44442222),
    ("bfe.u32 %0, %1, %2, %3;", "r", [("r", 0xABCD), ("r", 4), ("r", 8)], 0xBC),
    ("bfe.s32 %0, %1, %2, %3;", "r", [("r", 0xABCD), ("r", 4), ("r", 8)], 0xBC - 256),
    ("bfi.b32 %0, %1, %2, %3, %4;", "r", [("r", 0xF), ("r", 0x1000), ("r", 4), ("r", 4)], 0x10F0),
    ("bfind.u32 %0, %1;", "r", [("r", 0x8000)], 15),
    ("shf.l.wrap.b32 %0, %1, %2, %3;", "r", [("r", 0x80000000), ("r", 1), ("r", 1)], 3),
    ("{.reg .pred p; setp.lt.s32 p, %1, %2; selp.s32 %0, 1, 2, p;}", "r", [("r", -1), ("r", 0)], 1),
    ("{.reg .pred p; setp.lt.u32 p, %1, %2; @!p mov.u32 %0, 9;}", "+r", [("r", -1), ("r", 0)], 9),
    ("{.reg .b16 l, h; mov.b32 {l, h}, %1; mov.b32 %0, {h, l};}", "r", [("r", 0x12345678)], 0x56781234),
    ("cvt.rni.s32.f32 %0, %1;", "r", [("f", 2.5)], 2),
    ("cvt.rzi.s32.f32 %0, %1;", "r", [("f", -2.5)], -2),
    ("fma.rn.f32 %0, %1, %2, 0f3F800000;", "f", [("f", 2.0), ("f", 3.0)], 7.0),
    ("ex2.approx.ftz.f32 %0, %1;", "f", [("f", 3.0)], 8.0),
    ("cvt.rn.f16x2.f32 %0, %1, %2;", "r", [("f", 1.0), ("f", 2.0)], 0x3C004000),
    ("cvt.rn.bf16x2.f32 %0, %1, %2;", "r", [("f", 1.0), ("f", 2.0)], 0x3F804000),
    ("fma.rn.f16x2 %0, %1, %2, %2;", "r", [("r", 0x3C004000), ("r", 0x40004200)], 0x44004880),
    ("{.reg .u32 n; mov.u32 n, 0; L: add.u32 n, n, 3; {.reg .pred q; setp.lt.u32 q, n, %1; @q bra L;} mov.u32 %0, n;}",
     "r", [("r", 10)], 12),
    ("mov.u32 %0, %%laneid;", "r", [], 0),
]  # fmt: skip


@pytest.fixture(scope="module")
def instructions():
    types = {"r": "int", "f": "float", "l": "unsigned long long"}
    text = "\n".join(
        f"__global__ void k{n}({types[out[-1]]}* y"
        + "".join(f", {types[c]} a{i}" for i, (c, _) in enumerate(given))
        + ") { "
        f'{types[out[-1]]} r = 0; asm volatile("{template}" : "{out if out[0] == "+" else "=" + out}"(r) : '
        + ", ".join(f'"{c}"(a{i})' for i, (c, _) in enumerate(given))
        + "); *y = r; }"
        for n, (template, out, given, _) in enumerate(PTX)
    )
    return emulator.compile(text, "ptx.cu")


@pytest.mark.parametrize("number", range(len(PTX)), ids=[re.split(r"[ ;{]", t.strip("{"))[0] for t, *_ in PTX])
def test_instructions(instructions, number):
    _, out, given, expected = PTX[number]
    y = np.zeros(1, {"r": np.int32, "f": np.float32, "l": np.uint64}[out[-1]])
    values = [v - 2**32 if c == "r" and v >= 2**31 else v for c, v in given]
    instructions.launch(f"k{number}", 1, 1, (y, *values))
    assert y[0] == (
        np.array(expected).astype(y.dtype) if out[-1] != "r" else np.uint32(expected % 2**32).astype(np.int32)
    )


def test_instructions_without_a_meaning_are_named():
    assert "inline PTX: tcgen05.alloc" in ptx.translate("tcgen05.alloc.x [%0], 32;", [], [("r", "a")], 1)
    assert "inline PTX: the register q" in ptx.translate("mov.u32 %0, q;", [("=r", "a")], [], 1)


COPIES = """
__global__ void copies(const float* x, float* y, int wait) {
  __shared__ __align__(16) float s[2][128];
  for (int stage = 0; stage < 2; ++stage) {
    unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(&s[stage][threadIdx.x * 4]));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\\n" ::"r"(to), "l"(x + stage * 128 + threadIdx.x * 4));
    asm volatile("cp.async.commit_group;\\n" ::);
  }
  if (wait == 1) asm volatile("cp.async.wait_group %0;\\n" ::"n"(1));
  if (wait == 0) asm volatile("cp.async.wait_group 0;\\n");
  __syncthreads();
  y[threadIdx.x] = s[0][threadIdx.x + 32];
  if (wait < 2) y[threadIdx.x] += s[1][threadIdx.x + 64];  // LINE
}
"""


def test_a_copy_is_done_when_it_is_waited_for():
    program = emulator.compile(COPIES, "copies.cu")
    x, y = np.arange(256, dtype=np.float32), np.zeros(32, np.float32)
    program.launch("copies", 1, 32, (x, y, 0))
    assert (y == x[32:64] + x[192:224]).all()
    missing = r"copies.cu:13\): .* reads 4 bytes of the shared array s\[1, 64\], which an asynchronous copy has yet"
    with pytest.raises(emulator.UninitialisedShared, match=missing):
        program.launch("copies", 1, 32, (x, y, 1))
    with pytest.raises(emulator.UninitialisedShared, match=r"copies.cu:12\): .*an asynchronous copy has yet"):
        program.launch("copies", 1, 32, (x, y, 2))


def test_command(capsys):
    assert cli.main(["emulate", str(FILE), "--list"]) == 0
    out = capsys.readouterr().out
    assert "inner::rows(const float4 * __restrict__ x, float * y, Pair shift)  published_style.cu:" in out
    assert [line for line in out.splitlines() if line.startswith("launched as")] == ["launched as fill<float>"]
    call = ["emulate", str(FILE), "--kernel", "fill<int>", "--block", "4", "--arg", "int[4]=0"]
    assert cli.main([*call, "--arg", "5"]) == 0
    assert "argument 1 after fill<int>: 5, 5, 5, 5" in capsys.readouterr().out
    assert cli.main([*call, "--arg", "float[1]"]) == 2
    assert "fill<int>: value: expected a number, got an array" in capsys.readouterr().err
    assert cli.main(["emulate", str(FILE)]) == 2 and "--block: expected" in capsys.readouterr().err
    assert command.main([str(FILE), "-I", "nowhere", "--list"]) == 2
    assert "-I nowhere: expected a folder" in capsys.readouterr().err


def test_addresses_of_restrict_pointers_in_a_template_as_operands_of_ptx():
    """g++ takes the address of such an element for a pointer that is itself restrict, which no reference binds to."""
    source = """
template <int N>
__global__ void copied(const float* __restrict__ x, float* __restrict__ y) {
  for (int i = 0; i < N; ++i) {
    float value;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(&x[i]));
    asm volatile("st.global.f32 [%0], %1;" ::"l"(&y[i]), "f"(value));
  }
}
"""
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    emulator.compile(source, "copied.cu").launch("copied<4>", 1, 1, (x, y))
    assert y.tolist() == x.tolist()


def test_a_shared_array_begins_where_its_alignment_says():
    """One whose halves are told apart by a bit of the address."""
    source = """
__global__ void halves(const float* x, float* y) {
  __shared__ __align__(65536) float tile[8192];
  float* half = tile;
  half[threadIdx.x] = x[threadIdx.x];
  half = reinterpret_cast<float*>(reinterpret_cast<unsigned long long>(half) ^ 16384);
  half[threadIdx.x] = -x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = tile[threadIdx.x ^ 1];
  y[threadIdx.x + 64] = tile[4096 + (threadIdx.x ^ 1)];
}
"""
    x, y = np.arange(64, dtype=np.float32), np.zeros(128, np.float32)
    emulator.compile(source, "halves.cu").launch("halves", 3, 64, (x, y))
    swapped = x.reshape(-1, 2)[:, ::-1].ravel()
    assert (y == np.concatenate([swapped, -swapped])).all()


@pytest.mark.parametrize(
    ("before", "after", "multiple"),
    [
        ("alignas(512) alignas(64) __align__(256)", "", 512),
        ("alignas(Wide) __align__(64)", "", 512),
        ("alignas(4) alignas(0)", "__attribute__((aligned(512)))", 512),
        ("alignas(N) alignas(16)", "", 1024),
        ("__align__(1)", "", 4),
    ],
)
def test_of_several_alignments_the_strictest_holds(before, after, multiple):
    """C++, [dcl.align]: each is a number or a type, and none less than the type has."""
    arrays = "abc"
    declared = "".join(f"__shared__ {before} float {name}[3] {after}; {name}[0] = 0;\n" for name in arrays)
    source = f"""
struct alignas(512) Wide {{ float x; }};
template <int N> __global__ void k(unsigned long long* y) {{
  {declared}
  *y = {" | ".join(f"reinterpret_cast<unsigned long long>({name})" for name in arrays)};
}}
"""
    y = np.ones(1, np.uint64)
    emulator.compile(source, "aligned.cu").launch("k<1024>", 1, 1, (y,))
    assert y[0] % np.uint64(multiple) == 0


def test_structures_that_a_template_is_given_as_its_types():
    """Functors for loading and storing, as libraries hand them to a kernel: their fields are known by the instance."""
    source = """
template <typename S, typename D> struct From {
  From(const S* src, long long width) : src(src), width(width) {}
  template <int N> __device__ void load(D* to, long long row, long long at) const {
    for (int i = 0; i < N; ++i) to[i] = src[row * width + at + i];
  }
  const S* src;
  long long width;
};
template <typename S, typename D> struct To {
  To(D* dst, long long width) : dst(dst), width(width) {}
  template <int N> __device__ void store(const S* from, long long row, long long at) const {
    for (int i = 0; i < N; ++i) dst[row * width + at + i] = from[i];
  }
  D* dst;
  long long width;
};
template <typename LOAD, typename STORE, int N = 1, class T = float>
__global__ void doubled(LOAD load, STORE store, T by) {
  float held[N];
  load.template load<N>(held, blockIdx.x, threadIdx.x * N);
  for (int i = 0; i < N; ++i) held[i] *= by;
  store.template store<N>(held, blockIdx.x, threadIdx.x * N);
}
"""
    program = emulator.compile(source, "functors.cu")
    x, y = np.arange(32, dtype=np.float32).reshape(4, 8), np.zeros((4, 8), np.float32)
    functors = ({"src": x, "width": 8}, {"dst": y, "width": 8})
    program.launch("doubled<From<float, float>, To<float, float>, 2>", 4, 4, (*functors, 2.0))
    assert (y == 2 * x).all()
    (again,) = emulator.compile(source, "functors.cu").kernels  # from what is kept of the first
    assert again.given == program.kernels[0].given == ("LOAD", "STORE", "N", "T")
