"""What stands between a kernel and the CPU: the compiler that is asked, libraries that are loaded, who wrote where."""

import ctypes
import os
from types import SimpleNamespace

import pytest
import torch

from touchstone.backends import NotRun
from touchstone.backends.emulator import compiler, instruments, library


def test_headers_are_told_apart_by_names_sizes_and_release(tmp_path):
    state = compiler._state_of.__wrapped__
    assert state(None) == compiler.digest("")
    (tmp_path / "crt").mkdir()
    states = [state(tmp_path)]
    for name, text in (("cuda.h", "1"), ("cuda.h", "22"), ("half.hpp", ""), ("crt/host.hpp", "")):
        (tmp_path / name).write_text(text)
        states.append(state(tmp_path))
    (tmp_path / "cuda.h").write_text("33")  # of the same size
    (tmp_path / "readme.txt").write_text("")
    assert state(tmp_path) == states[-1]
    release = tmp_path / "cccl/cuda/std/__cccl/version.h"
    release.parent.mkdir(parents=True)
    for text in ("#define CCCL_VERSION 2", "#define CCCL_VERSION 3"):
        release.write_text(text)
        states.append(state(tmp_path))
    assert len(set(states)) == len(states) == 7


@pytest.mark.parametrize(
    ("text", "name"), [("soft max.cu", "soft_max_cu"), ("a+b", "a+b"), ("né", "n_"), ("", "_"), ("x" * 81, "x" * 80)]
)
def test_a_name_that_any_file_may_have(text, name):
    assert compiler.plain_name(text) == name


def test_what_is_missing_is_said_instead_of_a_command(monkeypatch):
    monkeypatch.setattr(compiler, "why_not", lambda: "no C++ compiler is found")
    with pytest.raises(RuntimeError, match=r"^no C\+\+ compiler is found$"):
        compiler.command()
    monkeypatch.setattr(compiler, "why_not", lambda: None)
    monkeypatch.setattr(compiler, "compiler", lambda: ["g++"])
    assert compiler.command() == ["g++"]


class Machine:
    """One with a compiler of which is known what it says of itself, and a store that keeps nothing for long."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.kept, self.built, self.version = folder, [], [], "g++ 13"
        monkeypatch.setattr(compiler, "command", lambda: ["c++", "-m64"])
        monkeypatch.setattr(compiler, "store", lambda: self)
        monkeypatch.setattr(compiler, "cuda_headers", lambda: folder)
        monkeypatch.setattr(compiler, "processor_flags", lambda: ("-mfma",))
        monkeypatch.setattr(compiler, "build", lambda command, output, what: self.build(command, output, what))
        monkeypatch.setattr(compiler, "_version", lambda command, path: self.answer(command, path, self.version))
        monkeypatch.setattr(compiler, "_takes", lambda command, flag, path: self.answer(command, path, True))

    def answer(self, command, path, value):
        assert (command, path) == (("c++", "-m64"), os.environ.get("PATH"))
        return value

    def file(self, name, make):
        self.kept.append(name)
        beside = [path.parent for path in self.folder.glob(f"*/{name.removesuffix('.gch')}") if name.endswith(".gch")]
        output = (beside or [self.folder / str(len(self.kept))])[-1] / name
        output.parent.mkdir(exist_ok=True)
        make(output)
        return output

    def build(self, command, output, what):
        self.built.append((command, output.name, what))
        output.touch()


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def test_the_engine_is_a_library_with_a_name_of_its_own(machine):
    paths = [compiler.engine(), compiler.engine(portable=True)]
    machine.version = "g++ 14"
    paths.append(compiler.engine())
    assert len({path.name for path in paths}) == 3 and [path.name for path in paths] == machine.kept
    for (command, _, what), path, portable in zip(machine.built, paths, (False, True, False), strict=True):
        assert command[:2] == ["c++", "-m64"] and what == "the emulator's engine"
        assert command[-2:] == [f"-Wl,-soname,{path.name}", str(compiler.ENGINE / "engine.cpp")]
        needed = {
            "-std=c++17",
            "-O2",
            "-g1",
            "-fPIC",
            "-shared",
            "-fno-sanitize=all",
            "-fvisibility=hidden",
            "-pthread",
        }
        assert set(command[2:-2]) == needed | ({"-DTOUCHSTONE_UCONTEXT=1"} if portable else set())


def test_a_kernel_is_compiled_after_its_header_and_then_linked(machine):
    path = compiler.kernel("half x; // touchstone_torch.h cuda_bf16.h", "a/soft max.cu", machine.folder / "engine.so")
    header, compiled, linked = machine.built
    assert header[0][:2] == compiled[0][:2] == linked[0][:2] == ["c++", "-m64"]
    flags = [*compiler._flags(), "-isystem", compiler._torch_headers()]
    first = machine.folder / "2" / machine.kept[1]
    assert header[0][2:-1] == [*flags, "-x", "c++-header"] and header[1:] == (
        f"{first.name}.gch",
        "the emulator's header",
    )
    assert first.read_text() == "".join(f"#include <{n}.h>\n" for n in ("touchstone", "cuda_fp16", "cuda_bf16"))
    source = path.parent / "source/soft max.cu"
    assert compiled[0][2:] == [*flags, "-include", str(first), "-x", "c++", "-c", str(source)]
    assert compiled[1:] == ("kernel.o", "a/soft max.cu") and linked[1:] == (path.name, "a/soft max.cu")
    assert source.read_text().startswith("half x;") and path.name.startswith("soft_max_")
    own = ["-shared", "-O2", "-fno-sanitize=all", "-pthread", str(source.parent / "kernel.o")]
    assert linked[0][2:] == [*own, str(machine.folder / "engine.so"), "-lm", "-Wl,-z,now"]


def test_a_kernels_library_is_named_by_all_that_it_is_made_of(machine):
    given = ("int x;", "k.cu", machine.folder / "engine.so", False)
    others = [("int y;", 0), ("m.cu", 1), (machine.folder / "other.so", 2), (True, 3)]
    names = [compiler.kernel(*given).name]
    for value, place in others:
        names.append(compiler.kernel(*given[:place], value, *given[place + 1 :]).name)
    machine.version = "g++ 14"
    names.append(compiler.kernel(*given).name)
    (machine.folder / "cuda.h").write_text("a later release")
    compiler._state_of.cache_clear()
    names.append(compiler.kernel(*given).name)
    assert len(set(names)) == len(names) == 7
    assert compiler.kernel(*given).name == names[-1]
    compiler._state_of.cache_clear()


def test_what_is_compiled_before_any_kernel(machine):
    found = compiler.beginnings()
    assert [path.suffix for path in found] == [".so", ".h", ".gch", ".h", ".gch"] and found[1] != found[3]
    assert ["cuda_fp16.h" in path.read_text() for path in found[1::2]] == [False, True]
    assert [path.with_suffix("") for path in found[2::2]] == found[1::2]
    machine.version = "clang version 18"  # which finds no header by itself
    machine.built.clear()
    header, flags = compiler.first_header(True)
    assert [path.suffix for path in compiler.beginnings()] == [".so", ".h", ".h"]
    machine.built = [built for built in machine.built if built[2] != "the emulator's engine"]
    assert machine.built == [] and header.suffix == ".h" and flags == compiler._flags()
    assert compiler.made_by() == ("c++", "-m64", "clang version 18")


def test_flags_by_which_kernels_are_compiled(machine):
    assert compiler._flags()[:2] == ["-ftrivial-auto-var-init=pattern", "-std=c++17"]
    assert compiler._flags("c++20", zeroed=True)[:2] == ["-ftrivial-auto-var-init=zero", "-std=c++20"]
    assert {"-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing", "-mfma"} <= set(compiler._flags())
    assert compiler._flags()[-4:] == ["-isystem", str(machine.folder), "-isystem", f"{machine.folder}/cccl"]
    assert compiler._anywhere([f"-I{machine.folder}/x"])[0] == f"-I{compiler.CUDA_HEADERS}/x"
    for version, has, lacks in (
        ("g++ 13", "-fsanitize=bounds", "-fsanitize=array-bounds"),
        ("clang version 18", "-fsanitize=array-bounds", "-fsanitize=bounds"),
    ):
        machine.version = version
        flags = compiler.sanitizers(["c++", "-m64"])
        assert flags[:3] == ["-fsanitize=thread", "-fsanitize=alignment", "-fsanitize-recover=alignment"]
        assert has in flags and has.replace("sanitize", "sanitize-recover") in flags and lacks not in flags
    assert flags[-4:] == [
        *("-mllvm", "-tsan-instrument-func-entry-exit=0", "-mllvm", "-tsan-distinguish-volatile=1")
    ]  # fmt: skip
    later = ("requires x", "concept C", "consteval int f();", "std::bit_cast<int>(x)", "#include <span>")
    assert [compiler._standard(text) for text in later] == ["c++20"] * 5
    assert compiler._standard("int requirements;") == "c++17"


def test_why_nothing_can_be_compiled(monkeypatch):
    monkeypatch.setattr(compiler, "compiler", lambda: None)
    monkeypatch.setenv("CXX", "gone++")
    assert compiler.why_not() == "the compiler that CXX names, 'gone++', is not found"
    monkeypatch.delenv("CXX")
    assert compiler.why_not().startswith("no C++ compiler is found: install g++ or clang++")
    monkeypatch.setattr(compiler, "compiler", lambda: ["g++"])
    monkeypatch.setattr(compiler, "cuda_headers", lambda: None)
    assert compiler.why_not().startswith("NVIDIA's headers (cuda_fp16.h, vector_types.h) are not found: pip install")
    monkeypatch.setattr(compiler, "cuda_headers", lambda: compiler.Path("/usr"))
    assert compiler.why_not() is None


def test_the_compiler_that_is_asked(monkeypatch):
    there = {"clang++", "c++"}
    monkeypatch.setattr(compiler.shutil, "which", lambda name: name if name in there else None)
    monkeypatch.delenv("CXX", raising=False)
    assert compiler.compiler() == ["clang++"]
    for chosen, found in (("c++ -m64", ["c++", "-m64"]), ("g++", None), (" ", None)):
        monkeypatch.setenv("CXX", chosen)
        assert compiler.compiler() == found
    monkeypatch.delenv("CXX")
    there.clear()
    assert compiler.compiler() is None
    there.update(("g++", "clang++"))
    assert compiler.compiler() == ["g++"]


def test_a_compiler_is_run_in_english_beside_what_it_makes(monkeypatch, tmp_path):
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("KEPT", "as it is")
    said = compiler.run(["sh", "-c", 'echo "$LC_ALL $TMPDIR $KEPT"'], "k.cu", tmp_path)
    assert said == f"C {tmp_path} as it is\n"
    for script, text in (("echo out; echo err >&2; exit 1", "err"), ("echo out; exit 2", "out")):
        with pytest.raises(compiler.CompileError, match=f"^k.cu does not compile:\n{text}$"):
            compiler.run(["sh", "-c", script], "k.cu", tmp_path)
    with pytest.raises(NotRun, match="^the compiler no-such-compiler cannot be started: No such file or directory$"):
        compiler.run(["no-such-compiler"], "k.cu", tmp_path)


def test_a_library_that_cannot_be_loaded(monkeypatch):
    modes, said = [], ["k.so: cannot enable executable stack"]

    def load(path, mode):
        modes.append(mode)
        raise OSError(said[-1])

    monkeypatch.setattr(library.ctypes, "CDLL", load)
    with pytest.raises(NotRun, match=r"^a compiled kernel cannot be loaded: k\.so: cannot enable executable stack$"):
        library.opened("k.so")
    said.append("k.so: undefined symbol: f")  # the kernel's own fault
    monkeypatch.delattr(os, "RTLD_DEEPBIND", raising=False)
    with pytest.raises(OSError, match="undefined symbol"):
        library.opened("k.so")
    assert modes[1] == ctypes.DEFAULT_MODE


def test_addresses_are_given_to_the_engine_whole(monkeypatch):
    """Without its type, an address is passed as an int of 32 bits."""
    names = ("report_bytes", "writers_new", "writers_delete", "writers_of", "launch")
    made = SimpleNamespace(**{f"ts_{name}": Called(ctypes.sizeof(library.Report)) for name in names})
    monkeypatch.setattr(library, "opened", lambda path: made)
    assert library._engine("engine.so") is made
    assert made.ts_writers_new.restype is ctypes.c_void_p and made.ts_report_bytes.restype is ctypes.c_uint64
    assert made.ts_writers_delete.argtypes == [ctypes.c_void_p]
    assert made.ts_writers_of.argtypes == [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p]
    whole = {4: ctypes.c_uint64, 6: ctypes.c_int32}
    assert made.ts_launch.argtypes == [whole.get(place, ctypes.c_void_p) for place in range(10)]


class Called(SimpleNamespace):
    def __init__(self, value):
        super().__init__(value=value)

    def __call__(self):
        return self.value


def test_an_engine_is_loaded_once_by_its_name(monkeypatch):
    made = []
    monkeypatch.setattr(library, "_engines", {})
    monkeypatch.setattr(library, "_engine", lambda path: made.append(path) or len(made))
    assert [library.engine(path) for path in ("/a/one.so", "/b/one.so", "/a/two.so", "/a/one.so")] == [1, 1, 2, 1]
    assert made == ["/a/one.so", "/a/two.so"]


def test_a_kernels_parameters_as_its_library_tells_them():
    def told(kind, count):
        def describe(out, room=64):
            assert room == len(out) == 64
            for number in range(count):
                out[number] = kind(number + 1)
            return count

        return describe

    def clustered(out):
        out[:] = (2, 3, 4)

    def field(number):
        return library.Field(b"f%d" % number, 8 * number)

    own = SimpleNamespace(
        ts_parameters_0=told(library.Parameter, 3),
        ts_cluster_1=clustered,
        ts_fields_0_1=told(field, 64),
        ts_fields_0_2=lambda out: -1,  # more than there is room for
        ts_fields_0_3=lambda out: 0,
    )
    loaded = SimpleNamespace(library=own)
    assert [each.bytes for each in library.parameters(loaded, 0)] == [1, 2, 3]
    assert library.cluster(loaded, 0) == (0, 0, 0) and library.cluster(loaded, 1) == (2, 3, 4)
    assert [(each.name, each.offset) for each in library.fields(loaded, 0, 1)][::63] == [(b"f1", 8), (b"f64", 512)]
    assert [library.fields(loaded, 0, position) for position in (0, 2, 3)] == [[], [], []]


def test_where_a_library_lies():
    path = torch._C.__file__
    parts = library._maps(path)
    assert "r-xp" in [allowed for _, _, allowed in parts] and all(low < high for low, high, _ in parts)
    assert library.base.__wrapped__(path) == min(low for low, _, _ in parts)
    assert library._maps("/no/library.so") == [] and library.base.__wrapped__("/no/library.so") == 0


def test_writes_are_recorded_by_one_engine():
    deleted = []
    engine = SimpleNamespace(ts_writers_new=lambda: 7, ts_writers_delete=deleted.append, ts_writers_of=lambda *_: 0)
    loaded, other = (SimpleNamespace(engine=each, path="k.so") for each in (engine, SimpleNamespace()))
    assert instruments.record(loaded, (1, 1, 1), (32, 1, 1)) is None
    with instruments.writers() as record:
        assert record.of(64) is None
        assert [instruments.record(each, (1, 1, 1), (32, 1, 1)) for each in (loaded, other, loaded)] == [7, 0, 7]
        assert record.of(64) is None and record._launches == [(loaded, (1, 1, 1), (32, 1, 1))] * 2
    assert instruments.record(loaded, (1, 1, 1), (32, 1, 1)) is None
    del record
    assert deleted == [7]


def test_a_byte_that_was_moved_is_asked_for_where_it_lay_last(monkeypatch):
    asked = []

    def wrote(handle, place, found):
        asked.append(place)
        found[:] = (1, 7, 33, 100)
        return place == 5004

    engine = SimpleNamespace(ts_writers_new=lambda: 7, ts_writers_delete=lambda handle: None, ts_writers_of=wrote)
    moves = [SimpleNamespace(start=1000, bytes=8, at=at) for at in (5000, 9000)]
    monkeypatch.setattr(instruments, "line_of", lambda path, pc: {99: "k.cu:12"}[pc])
    with instruments.writers() as record:
        instruments.record(SimpleNamespace(engine=engine, path="k.so"), (3, 2, 2), (32, 4, 1), moves)
        assert record.of(1004) == "block (1, 0, 1), thread (1, 1, 0), line 12 of k.cu"
        assert asked == [9004, 5004]
        asked.clear()
        assert record.of(1008) is None and record.of(999) is None and asked == [1008, 999]


def test_settings_as_the_engine_is_given_them(monkeypatch):
    made = instruments.options(True, cluster=(2, 3, 4))
    assert (made.cooperative, made.strict, tuple(made.cluster)) == (1, instruments.settings.strict, (2, 3, 4))
    assert instruments.options(False, strict=True).strict == 1 and instruments.options(False).cooperative == 0
    monkeypatch.setattr(instruments.os, "sched_getaffinity", lambda pid: {0, 3, 5}, raising=False)
    for text, workers in (("", 3), ("2", 2), ("2,1", 2), ("0", 1), ("8", 3), ("many", 3)):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert instruments.workers() == workers
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert instruments.workers() == 3 and tuple(instruments.options(False).cluster) == (0, 0, 0)
