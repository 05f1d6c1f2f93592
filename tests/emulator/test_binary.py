"""What a compiled library says of itself, on a small one, and what is read of it as a GPU's."""

import ctypes
import subprocess

import pytest

from touchstone.backends.emulator import binary

pytestmark = pytest.mark.needs("g++")

SOURCE = """
#include <cmath>
#include <cstdlib>
static int table[5] = {1, 2, 3};
extern "C" { int shown[2]; const double constant = 4.5; extern int wanted; int asked(int); }
namespace inner { float deep = 2.5f; }
static int hidden_site[4] = {7};
int ts_own = 1;
extern "C" int first(double x) { return table[asked(3)] + wanted + (int)std::cos(x) + hidden_site[1]; }
extern "C" int second() { return std::system("true") + getenv("HOME")[0] + inner::deep; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    (folder / "k.cpp").write_text(SOURCE)
    made = folder / "k.so"
    subprocess.run(["g++", "-O0", "-g", "-shared", "-fPIC", "-o", made, folder / "k.cpp"], check=True)
    return made


def test_the_variables_of_a_library(library):
    found, (start, end) = binary.variables(library)
    known = {each.name: each for each in found}
    assert set(known) == {"table", "shown", "constant", "deep"}  # and nothing of the compiler's own
    assert [known[name].bytes for name in ("table", "shown", "constant", "deep")] == [20, 8, 8, 4]
    assert [known[name].writable for name in ("table", "shown", "constant", "deep")] == [True, True, False, True]
    assert start <= known["constant"].start < end and not start <= known["table"].start < end
    data = library.read_bytes()
    assert ctypes.c_double.from_buffer_copy(data, known["constant"].start).value == 4.5  # constants lie as in the file


def test_what_a_library_wants_and_offers(library):
    assert {"wanted", "asked", "system", "getenv", "cos"} <= binary.undefined(library)
    assert not {"first", "second", "shown"} & binary.undefined(library)
    assert {"first", "second", "shown", "ts_own"} <= binary.exported(library)
    assert not {"wanted", "system", "table"} & binary.exported(library)


def test_what_no_gpu_has(library):
    code = library.read_bytes()
    assert binary.foreign(code, ()) == ["asked", "getenv", "system", "wanted"]
    assert binary.foreign(code, ("asked", "wanted", "system")) == ["getenv"]
    subprocess.run(["g++", "-c", "-o", library.with_suffix(".o"), library.with_suffix(".cpp")], check=True)
    assert binary.foreign(library.with_suffix(".o").read_bytes(), ("asked",)) == ["getenv", "system", "wanted"]
    bare = library.with_name("bare.so")  # what it wants is then in one table only
    subprocess.run(["g++", "-s", "-shared", "-fPIC", "-o", bare, library.with_suffix(".cpp")], check=True)
    assert binary.foreign(bare.read_bytes(), ("asked",)) == ["getenv", "system", "wanted"]
    assert binary.foreign(b"\x7fELF\x01\x01 of 32 bits", ()) == []


@pytest.mark.parametrize("name", ["ts_launch", "ts_report_bytes", "ts_writers_new"])
def test_what_the_engine_offers_to_python_is_given_to_no_kernel(tmp_path, name):
    (tmp_path / "k.cpp").write_text(f'extern "C" int {name}(), ts_other(); int k() {{ return {name}() + ts_other(); }}')
    subprocess.run(["g++", "-c", "-o", tmp_path / "k.o", tmp_path / "k.cpp"], check=True)
    assert binary.foreign((tmp_path / "k.o").read_bytes(), (name, "ts_other")) == [name]


OF_A_GPU = (
    "sin sinf sinl __isnanf isnan signbit fegetround memcpy memset strlen printf vfprintf puts fputc __cxa_atexit "
    "__stack_chk_fail _Unwind_Resume _ZSt9terminatev _ZSt20__throw_length_errorPKc lgammaf nan tgamma rint "
    "_ITM_registerTMCloneTable"
)
OF_A_PROCESSOR = (
    "system fopen dlsym mmap open read fork execve sinq memfrob strdup strtok getpid printf_ __cxa_throw time"
)


def test_which_functions_a_kernel_may_call():
    assert [name for name in OF_A_GPU.split() if not binary._OF_A_GPU.fullmatch(name)] == []
    assert [name for name in OF_A_PROCESSOR.split() if binary._OF_A_GPU.fullmatch(name)] == []


@pytest.mark.parametrize(
    ("label", "name"),
    [
        *(
            ("_ZL5table", "table"),
            ("_ZN5inner4deepE", "deep"),
            ("plain", "plain"),
            ("_Z3fooi", "foo"),
            ("_Zoo", "_Zoo"),
        ),
        *(
            ("_ZN12_GLOBAL__N_16hiddenE", "hidden"),
            ("_ZN1a1b1cE", "c"),
            ("_ZN5innerL4deepE", "deep"),
            ("5table", "5table"),
        ),
    ],
)
def test_names_as_they_were_written(label, name):
    assert binary._demangled(label) == name


def test_lines_of_addresses(library):
    if binary.shutil.which("addr2line") is None:
        pytest.skip("needs addr2line")
    text = subprocess.run(["nm", library], capture_output=True, text=True, check=True).stdout
    address = next(int(line.split()[0], 16) for line in text.splitlines() if line.endswith(" T first"))
    line = next(n for n, each in enumerate(SOURCE.splitlines(), 1) if "int first" in each)
    ((function, file, found),), unknown = binary.lines(str(library), [address, 0])
    assert (function, found) == ("first", line) and file.endswith("k.cpp")
    assert unknown == [("??", "??", 0)]
