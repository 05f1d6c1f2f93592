"""Triton's cache with digests: what is not as it was put is compiled again, and never held against a kernel."""

import json
import os
from pathlib import Path

import pytest

from tests.processes import in_a_fork
from touchstone.conformance.compiling.client import Compiler

pytestmark = pytest.mark.needs("triton")


@pytest.fixture
def caching(monkeypatch, tmp_path):
    """The module, with Triton's cache in a folder of the test's."""
    pytest.importorskip("triton")
    from touchstone.backends.triton.runtime import caching

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    for function in (caching._trusted, caching._say, caching._elsewhere):
        function.cache_clear()
    yield caching
    for function in (caching._trusted, caching._say, caching._elsewhere):
        function.cache_clear()


def filled(caching, key="KEY"):
    cache = caching.VerifiedCache(key)
    files = {name: cache.put(data, name) for name, data in (("k.json", "{}"), ("k.cubin", b"\x7fELF"), ("k.ptx", "x"))}
    cache.put_group("k.json", files)
    return files


def test_a_group_is_found_as_it_was_put(caching, tmp_path):
    files = filled(caching)
    assert caching.VerifiedCache("KEY").get_group("k.json") == files
    assert Path(files["k.cubin"]) == tmp_path / "cache" / "KEY" / "k.cubin"  # where torch.compile looks for it
    assert Path(files["k.cubin"]).read_bytes() == b"\x7fELF"
    assert caching.VerifiedCache("KEY").get_file("k.ptx") == files["k.ptx"]
    assert caching.VerifiedCache("OTHER").get_group("k.json") is None
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


DAMAGE = {
    "cut short": lambda path: os.truncate(path, 2),
    "empty": lambda path: os.truncate(path, 0),
    "another": lambda path: path.write_bytes(b"\x7fELG"),
    "missing": lambda path: path.unlink(),
    "no digest": lambda path: path.with_name("k.cubin.sha256").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_group_with_a_damaged_file_is_made_again(caching, damage):
    files = filled(caching)
    damage(Path(files["k.cubin"]))
    cache = caching.VerifiedCache("KEY")
    assert cache.get_file("k.cubin") is None
    assert cache.get_group("k.json") is None
    assert filled(caching) == files
    assert caching.VerifiedCache("KEY").get_group("k.json") == files


@pytest.mark.parametrize("listed", [b"{", b"[]", b'{"child_paths": 3}', b'{"child_paths": {"../../elsewhere": "x"}}'])
def test_a_list_of_files_of_another_form_is_made_again(caching, tmp_path, listed):
    filled(caching)
    (tmp_path / "elsewhere").write_bytes(b"x")
    caching.artefacts.put(tmp_path / "cache" / "KEY" / "__grp__k.json", listed)
    assert caching.VerifiedCache("KEY").get_group("k.json") is None


def test_a_folder_that_others_may_have_filled_is_not_used(caching, tmp_path, capsys):
    filled(caching)
    (tmp_path / "cache").chmod(0o777)
    caching._trusted.cache_clear()
    cache = caching.VerifiedCache("KEY")
    assert cache.get_group("k.json") is None
    path = Path(cache.put(b"x", "k.cubin"))
    assert (path.read_bytes(), path.suffix) == (b"x", ".cubin")
    assert not path.is_relative_to(tmp_path / "cache")
    assert capsys.readouterr().err.count("Triton's compiled kernels are not kept") == 1


def test_where_kernels_cannot_be_kept_a_process_chooses_for_those_that_it_forks(caching, monkeypatch, tmp_path):
    monkeypatch.setattr(caching.knobs.cache, "manager_class", None)
    caching.install()
    assert caching._elsewhere.cache_info().currsize == 0  # nothing is chosen where they can
    monkeypatch.setattr(caching.knobs.cache, "manager_class", None)
    (tmp_path / "cache").mkdir(exist_ok=True)
    (tmp_path / "cache").chmod(0o777)
    caching._trusted.cache_clear()
    caching.install()
    forked = in_a_fork(lambda: caching.VerifiedCache("KEY").put(b"x", "k.cubin"), tmp_path)
    assert Path(forked).read_bytes() == b"x" and caching.VerifiedCache("KEY").put(b"x", "k.cubin") == forked


def test_what_cannot_be_written_goes_elsewhere_and_that_is_said(caching, tmp_path, capsys):
    filled(caching)
    (tmp_path / "cache" / "FULL").write_bytes(b"in the place of a folder")
    path = Path(caching.VerifiedCache("FULL").put(b"x", "k.cubin"))
    assert (path.read_bytes(), path.is_relative_to(tmp_path / "cache")) == (b"x", False)
    said = capsys.readouterr().err
    assert said == f"touchstone: {tmp_path}/cache/FULL: File exists; Triton's compiled kernels are not kept\n"


def test_what_is_dumped_or_put_in_the_place_of_compiled_code_is_where_a_user_looks_for_it(
    caching, monkeypatch, tmp_path
):
    """TRITON_KERNEL_DUMP and TRITON_KERNEL_OVERRIDE: files as Triton leaves them, without digests."""
    for option in ("dump", "override"):
        monkeypatch.setenv(f"TRITON_{option.upper()}_DIR", str(tmp_path / option))
    folder, other = tmp_path / "dump" / "KEY", tmp_path / "override" / "KEY"
    cache = caching.VerifiedCache("KEY", dump=True)
    assert cache.get_group("k.json") is None and cache.get_file("k.ptx") is None
    path = cache.put("code", "k.ptx")
    cache.put_group("k.json", {"k.ptx": path})
    assert (Path(path), Path(path).read_text()) == (folder / "k.ptx", "code")
    assert not list(folder.glob("*.sha256"))
    assert cache.get_file("k.ptx") == path and cache.get_group("k.json") == {"k.ptx": path}
    other.parent.mkdir()
    folder.rename(other)
    (other / "k.ptx").write_text("a user's")
    cache = caching.VerifiedCache("KEY", override=True)
    assert cache.get_file("k.ptx") == str(other / "k.ptx")


def test_another_cache_that_was_asked_for_stays(caching, monkeypatch):
    from triton import knobs
    from triton.runtime.cache import FileCacheManager

    with knobs.cache.scope():
        knobs.cache.manager_class = FileCacheManager
        caching.install()
        assert knobs.cache.manager_class is FileCacheManager
        knobs.cache.manager_class = None
        caching.install()
        assert knobs.cache.manager_class is caching.VerifiedCache


@pytest.mark.slow
@pytest.mark.needs("g++")
def test_a_launcher_is_compiled_again_where_it_is_damaged(caching, tmp_path):
    """As Triton compiles and loads the C code that launches a kernel on a GPU."""
    from triton import knobs
    from triton.runtime.build import compile_module_from_src

    source = (
        "#include <Python.h>\n"
        "static PyObject *one(PyObject *self, PyObject *x) { return PyLong_FromLong(1); }\n"
        'static PyMethodDef methods[] = {{"one", one, METH_NOARGS, 0}, {0}};\n'
        'static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "launcher", 0, -1, methods};\n'
        "PyMODINIT_FUNC PyInit_launcher(void) { return PyModule_Create(&module); }\n"
    )
    with knobs.cache.scope():
        knobs.cache.manager_class = None
        caching.install()
        for _ in range(2):
            assert compile_module_from_src(source, "launcher").one() == 1
            (library,) = (tmp_path / "cache").glob("*/launcher*.so")
            whole = library.stat().st_size
            library.unlink()  # another file: this one is loaded
            library.write_bytes(b"\x7fELF")
        assert compile_module_from_src(source, "launcher").one() == 1
        assert library.stat().st_size == whole


@pytest.mark.level("default")
@pytest.mark.slow
def test_compile_conformance_takes_no_damaged_code(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    for damaged in (False, True):
        for path in (tmp_path / "cache").glob("*/*.cubin") if damaged else ():
            os.truncate(path, 100)
        with Compiler("triton") as compiler:
            found = compiler.check("softmax", ["onerow"], every=False)
        assert found["findings"] == []
        assert [record for record in found["records"] if record.get("registers")]
    cubins = list((tmp_path / "cache").glob("*/*.cubin"))
    assert cubins and all(path.stat().st_size > 100 for path in cubins)
    groups = [json.loads(path.read_text()) for path in (tmp_path / "cache").glob("*/__grp__*.json")]
    assert len(groups) == len(cubins)
