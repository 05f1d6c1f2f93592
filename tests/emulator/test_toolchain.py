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
    assert instruments.workers() == 3
