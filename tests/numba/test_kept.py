"""Machine code for a GPU is kept from one process to the next, where nothing that it was made of has changed."""

import json
from types import SimpleNamespace

import pytest

from tests.processes import output_of, run_touchstone
from tests.programs import PROGRAMS
from touchstone.backends import numba
from touchstone.backends.devices import cuda_unavailable

if numba.why_not("cpu"):
    pytest.skip(numba.why_not("cpu"), allow_module_level=True)

from touchstone.backends.numba.runtime import kept

HELPER = "from numba import cuda\n\n\n@cuda.jit(device=True)\ndef changed(value):\n    return value * {}\n"


@pytest.mark.skipif(bool(cuda_unavailable()), reason=f"needs a GPU: {cuda_unavailable()}")
def test_a_second_process_compiles_what_is_not_kept(tmp_path):
    helper = tmp_path / "helper.py"

    def run(factor):
        helper.write_text(HELPER.format(factor))
        done = run_touchstone(
            [str(PROGRAMS / "kept_kernels.py"), str(helper)], environment={"TOUCHSTONE_CACHE": str(tmp_path / "cache")}
        )
        assert done.returncode == 0, done.stderr[-3000:]
        told = json.loads(done.stdout)
        assert told["found"] == [0.0, factor, 2.0 * factor, 3.0 * factor] and told["then"] == [0.0, 0.0, 0.0, 0.0]
        return told["compiled"]

    assert run(3) == ["kernel", "rounded", "kernel", "debugged"]
    assert run(3) == ["debugged"]
    assert run(5) == ["kernel", "kernel", "debugged"]  # only one of them calls what has changed
    for path in (tmp_path / "cache").rglob("numba_gpu_*.json"):
        path.write_bytes(path.read_bytes().replace(b"name", b"nome"))
    assert run(5) == ["kernel", "rounded", "kernel", "debugged"]


def _made(**changed):
    library = {"_linking_files": set(), "referenced_objects": {}, "_setup_functions": [], "_teardown_functions": []}
    kernel = {"debug": False, "extensions": [], "launch_config_sensitive": False, "shared_memory_carveout": None}
    library |= {name: value for name, value in changed.items() if name in library}
    kernel |= {name: value for name, value in changed.items() if name in kernel}
    return SimpleNamespace(
        _codelibrary=SimpleNamespace(get_cubin=lambda: SimpleNamespace(code=b"code"), **library),
        entry_name="k",
        cooperative=False,
        **kernel,
    )


def test_only_what_is_nothing_but_machine_code_is_kept():
    assert json.loads(kept._written(_made())) == {"name": "k", "cooperative": False, "code": "Y29kZQ=="}
    for name, value in [
        ("debug", True),
        ("extensions", [1]),
        ("launch_config_sensitive", True),
        ("shared_memory_carveout", 0),
        ("_linking_files", {"a.cu"}),
        ("referenced_objects", {1: 2}),
        ("_setup_functions", [print]),
        ("_teardown_functions", [print]),
    ]:
        assert kept._written(_made(**{name: value})) is None


def test_c_plus_plus_of_numba_cuda_itself_may_be_linked():
    code = """if True:
        import json
        from touchstone.backends import numba
        numba.restore_row_stack()
        import numba.cuda.bf16, numba.cuda.fp16
        from touchstone.backends.numba.runtime import kept
        from tests.numba.test_kept import _made
        shims = kept._shims()
        calls = [shim.setup_callback for shim in shims if shim.setup_callback]
        made = _made(_linking_files=shims, _setup_functions=calls)
        print(json.dumps([len(shims), len(calls), kept._written(made) is not None]))
    """
    found, calls, written = json.loads(output_of(code))
    assert found >= 2 and calls >= 1 and written


def test_numba_cuda_has_what_is_relied_on():
    code = """if True:
        import inspect, json
        from numba.cuda.codegen import CUDACodeLibrary
        from numba.cuda.cudadrv.driver import ObjectCode
        from numba.cuda.dispatcher import CUDADispatcher, _Kernel
        parameters = inspect.signature(_Kernel._rebuild).parameters
        wanted = [name for name, each in parameters.items() if each.default is each.empty]
        assert ObjectCode.from_cubin(b"code").code == b"code"
        library = vars(CUDACodeLibrary(None, "name", entry_name="name"))
        print(json.dumps([wanted, sorted(library), type(CUDADispatcher(lambda: None, {})._cache).__name__]))
    """
    wanted, library, cache = json.loads(output_of(code))
    own = {"cooperative", "name", "signature", "codelibrary", "debug", "lineinfo", "call_helper", "extensions"}
    assert set(wanted) == own and cache == "NullCache"
    relied_on = {"_cubin_cache", "_linking_files", "referenced_objects", "_setup_functions", "use_cooperative"}
    assert relied_on <= set(library)


def test_no_ptx_is_made_that_nobody_reads_and_what_is_linked_is_the_same():
    code = """if True:
        import json
        from contextlib import nullcontext
        import numba.cuda as cuda
        from numba.cuda import dispatcher, types
        from numba.cuda.cudadrv import nvvm
        from touchstone.backends.numba.runtime import compiling, kept
        from touchstone.backends import numba
        numba.restore_row_stack()
        made, stock = [], nvvm.compile_ir
        nvvm.compile_ir = lambda text, **options: made.append("gen-lto" in options) or stock(text, **options)

        def plain(x):
            x[cuda.threadIdx.x] = 1.0

        def reshaped(x):
            x.reshape((4, 4))[1, 1] = 1.0

        found = {}
        for function in (plain, reshaped):
            for name, within in (("stock", nullcontext), ("ours", kept.without_ptx)):
                made.clear()
                with compiling._device("sm_90"), within():
                    library = dispatcher._Kernel(function, (types.float32[::1],), lto=True)._codelibrary
                    files, first = sorted(map(str, library._linking_files)), list(made)
                    found[function.__name__ + " " + name] = first, files
        with compiling._device("sm_90"), kept.without_ptx():
            debugged = dispatcher._Kernel(plain, (types.float32[::1],), lto=False)._codelibrary
            found["without lto"] = ".visible .entry" in debugged.get_asm_str()
        print(json.dumps(found))
    """
    found = json.loads(output_of(code))
    for function in ("plain", "reshaped"):
        (first, linked), (ours, same) = found[f"{function} stock"], found[f"{function} ours"]
        assert (first, ours) == ([False], []) and linked == same
    assert found["plain ours"][1] == [] and found["reshaped ours"][1][0].endswith("reshape_funcs.cu")
    assert found["without lto"]
