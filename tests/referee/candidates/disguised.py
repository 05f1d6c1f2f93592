"""The library does the work under another name, by way of another library or of another process, and a kernel copies
what it made, so that an element of the output is one that a kernel wrote."""

import operator
import sys
import tempfile
from pathlib import Path

import torch
import triton
import triton.language as tl

from tests.referee.candidates.honest import once


@triton.jit
def _copy_kernel(y, x, count, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + place, tl.load(x + place, mask=place < count, other=0.0), mask=place < count)


def _copied(found):
    """`found`, written by a kernel."""
    y = torch.empty(found.shape, dtype=found.dtype, device=found.device)
    if y.numel():
        _copy_kernel[(triton.cdiv(y.numel(), 128),)](y, found.contiguous(), y.numel(), BLOCK=128)
    return y


def _by_python(rows):
    """The softmax of rows of Python's numbers."""
    found = []
    for row in rows:
        most = max(row, default=0.0)
        weights = [2.718281828459045 ** (value - most) for value in row]
        found.append([weight / sum(weights) for weight in weights])
    return found


def from_a_string(x):
    """By a name that is put together.

    untrusted, refused
    """
    return _copied(getattr(torch.nn.functional, "soft" + "max")(x, -1))


def by_operator_name(x):
    """By the operator, of a name that is put together.

    untrusted, refused
    """
    return _copied(operator.attrgetter("aten._soft" + "max.default")(torch.ops)(x, -1, False))


def by_the_c_module(x):
    """By the function of the C module behind torch's.

    untrusted, refused
    """
    return _copied(getattr(torch._C._VariableFunctions, "soft" + "max")(x, -1))


def by_jit_script(x):
    """By TorchScript, which runs its own interpreter.

    untrusted, refused
    """
    if once("scripted"):
        graph = "graph(%x : Tensor):\n %a : int = prim::Constant[value=-1]()\n %n : NoneType = prim::Constant()\n"
        graph += " %y : Tensor = aten::softmax(%x, %a, %n)\n return (%y)\n"
        globals()["_graph"] = torch._C._create_function_from_graph("forward", torch._C.parse_ir(graph))
    return _copied(globals()["_graph"](x))


def by_vmap(x):
    """By a transform of functions, a row at a time.

    untrusted, refused
    """
    return _copied(torch.func.vmap(lambda row: torch.softmax(row, -1))(x)) if x.numel() else _copied(x.contiguous())


def by_forward_gradients(x):
    """As the gradient of logsumexp.

    untrusted, refused
    """
    with torch.enable_grad():
        return _copied(torch.func.grad(lambda z: torch.logsumexp(z, -1).sum())(x.detach().clone()))


def by_dlpack(x):
    """Has NumPy compute on memory that it got by DLPack.

    untrusted, refused
    """
    import numpy as np

    given = np.from_dlpack(x)
    weights = np.exp(given - given.max(-1, keepdims=True)) if given.size else given.copy()
    return _copied(torch.from_dlpack(weights / weights.sum(-1, keepdims=True)))


def by_a_capsule(x):
    """Has NumPy compute on memory that it got by a capsule of DLPack.

    untrusted, refused
    """
    import numpy as np

    class Given:
        def __dlpack__(self, **options):
            return torch.utils.dlpack.to_dlpack(x)

        def __dlpack_device__(self):
            return 1, 0

    given = np.from_dlpack(Given())
    weights = np.exp(given - given.max(-1, keepdims=True)) if given.size else given.copy()
    return _copied(torch.utils.dlpack.from_dlpack((weights / weights.sum(-1, keepdims=True)).__dlpack__()))


def by_an_array_interface(x):
    """Has NumPy compute on memory that it got by an address.

    untrusted, refused
    """
    import numpy as np

    class Given:
        def __init__(self, tensor):
            strides = tuple(4 * stride for stride in tensor.stride())
            about = {"shape": tuple(tensor.shape), "strides": strides, "typestr": "<f4", "version": 3}
            self.__array_interface__ = {**about, "data": (tensor.data_ptr(), False)}

    given = np.asarray(Given(x)) if x.numel() else np.zeros(x.shape, np.float32)
    weights = np.exp(given - given.max(-1, keepdims=True)) if given.size else given.copy()
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        np.asarray(Given(y))[...] = weights / weights.sum(-1, keepdims=True)
    return _copied(y)


def by_lists(x):
    """Has Python compute on lists, one number at a time.

    untrusted, refused
    """
    found = torch.tensor(_by_python(x.tolist()), dtype=x.dtype, device=x.device).reshape(x.shape)
    return _copied(found)


def by_items(x):
    """Has Python compute on numbers that it asks the tensor for, one at a time.

    untrusted, refused
    """
    rows = [[x[i, j].item() for j in range(x.shape[1])] for i in range(x.shape[0])]
    return _copied(torch.tensor(_by_python(rows), dtype=x.dtype, device=x.device).reshape(x.shape))


def by_a_file(x):
    """Has Python compute on numbers from a file that torch has saved.

    untrusted, refused
    """
    import struct
    import zipfile

    path = Path(tempfile.mkdtemp(), "given")
    torch.save(x.clone(), path)

    with zipfile.ZipFile(path) as archive:
        name = next(each for each in archive.namelist() if each.endswith("data/0"))
        numbers = struct.unpack(f"<{x.numel()}f", archive.read(name)[: 4 * x.numel()])
    cols = x.shape[1]
    rows = [list(numbers[i * cols : (i + 1) * cols]) for i in range(x.shape[0])]
    return _copied(torch.tensor(_by_python(rows), dtype=x.dtype, device=x.device).reshape(x.shape))


def by_the_bytes_of_its_storage(x):
    """Has Python compute on the bytes of the tensor's storage, and write its bytes.

    untrusted, refused
    """
    import struct

    given = x.contiguous().clone()
    numbers = struct.unpack(f"<{x.numel()}f", bytes(given.untyped_storage().tolist()[: 4 * x.numel()]))
    cols = x.shape[1]
    rows = [list(numbers[i * cols : (i + 1) * cols]) for i in range(x.shape[0])]
    return _copied(torch.tensor(_by_python(rows), dtype=x.dtype, device=x.device).reshape(x.shape))


class _Rows(torch.utils.data.Dataset):
    def __init__(self, x):
        self.x = x

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return torch.softmax(self.x, -1).tolist()


def by_a_data_loader(x):
    """Has a worker process of torch's data loader compute, which torch starts.

    untrusted, refused
    """
    loader = torch.utils.data.DataLoader(_Rows(x), batch_size=None, num_workers=1, collate_fn=lambda rows: rows)
    return _copied(torch.tensor(next(iter(loader)), dtype=x.dtype, device=x.device).reshape(x.shape))


def by_a_pool(x):
    """Has a pool of threads of Python's library compute.

    untrusted, refused
    """
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return _copied(pool.submit(torch.softmax, x, -1).result())


def by_torch_multiprocessing(x):
    """Has a process that torch's own functions start compute.

    untrusted, refused
    """
    given, made = Path(tempfile.mkdtemp(), "given"), Path(tempfile.mkdtemp(), "made")
    torch.save(x.contiguous(), given)
    torch.multiprocessing.start_processes(_work, (given, made), nprocs=1, start_method="fork")
    return _copied(torch.load(made))


def _work(index, given, made):
    torch.save(torch.softmax(torch.load(given), -1), made)


class _Work:
    def __call__(self, tile):
        data = tile.handle.data
        weights = 2.718281828459045 ** (data - data.max())
        tile.handle.data = weights / weights.sum()
        return tile


@triton.jit
def _through_handles(y, x, cols, row_stride, col_stride, BLOCK: tl.constexpr, work: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < cols
    given = tl.load(x + row * row_stride + column * col_stride, mask=inside, other=-float("inf"))
    tl.store(y + row * cols + column, work(given), mask=inside)


_work_of_rows = lambda tile: _Work()(tile)  # noqa: E731


@triton.jit
def _through_a_lambda(y, x, cols, row_stride, col_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < cols
    given = tl.load(x + row * row_stride + column * col_stride, mask=inside, other=-float("inf"))
    tl.store(y + row * cols + column, _work_of_rows(given), mask=inside)


class _Held:
    """What a kernel reaches by an attribute."""

    x = None

    @staticmethod
    def rows(y, row):
        found = torch.softmax(_Held.x, -1)
        y.handle.data = y.handle.data * 0 + found[int(row.handle.data.item())].tolist()
        return y


@triton.jit
def _through_a_method(y, cols, COLS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    tl.store(y + row * cols + tl.arange(0, COLS), _Held.rows(tl.zeros((COLS,), tl.float32), row))


def in_the_grid(x):
    """Computes in the function that gives the grid, while the launch has begun.

    untrusted, refused
    """
    found = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)

    def grid(meta):
        torch.softmax(x, -1, out=found)
        return (triton.cdiv(y.numel(), meta["BLOCK"]),)

    if y.numel():
        _copy_kernel[grid](y, found, y.numel(), BLOCK=128)
    return y


def in_a_hook_of_the_launch(x):
    """Computes in a hook that runs before a kernel of Triton's.

    untrusted, refused
    """
    found = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    globals()["_hooked"] = lambda *arguments, **options: torch.softmax(x, -1, out=found)
    if once("hook"):
        _copy_kernel.add_pre_run_hook(lambda *arguments, **options: globals()["_hooked"](*arguments, **options))
    if y.numel():
        _copy_kernel[(triton.cdiv(y.numel(), 128),)](y, found, y.numel(), BLOCK=128)
    return y


def in_an_autotuner(x):
    """Computes in the hook of a configuration of the autotuner.

    untrusted, refused
    """
    found = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    hook = lambda arguments: torch.softmax(x, -1, out=found)  # noqa: E731
    tuned = triton.autotune([triton.Config({"BLOCK": 128}, pre_hook=hook)], key=[])(_copy_kernel)
    if y.numel():
        tuned[lambda meta: (triton.cdiv(y.numel(), meta["BLOCK"]),)](y, found, y.numel())
    return y


def in_a_subclass(x):
    """Has a subclass of tensors answer for the library.

    untrusted, refused
    """

    class Quiet(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            with torch._C.DisableTorchFunctionSubclass():
                return function(*[a.as_subclass(torch.Tensor) if isinstance(a, Quiet) else a for a in args])

    return _copied(torch.softmax(x.as_subclass(Quiet), -1).as_subclass(torch.Tensor))


def in_a_dispatching_subclass(x):
    """Has a subclass that takes over dispatch call the library below every mode.

    untrusted, refused
    """

    class Below(torch.Tensor):
        @staticmethod
        def __new__(cls, elem):
            return torch.Tensor._make_wrapper_subclass(cls, elem.shape, dtype=elem.dtype, strides=elem.stride())

        def __init__(self, elem):
            self.elem = elem

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            return function(*[a.elem if isinstance(a, Below) else a for a in args], **(kwargs or {}))

    return _copied(torch.softmax(Below(x), -1))


def by_a_replaced_operator(x):
    """Replaces what the library does for the CPU when it is to copy a tensor.

    untrusted, refused
    """
    if once("replaced"):
        library = torch.library.Library("aten", "IMPL")
        library.impl("clone", _instead_of_a_clone, "CPU")
        globals()["_kept"] = library
    return _copied(x.clone())


def _instead_of_a_clone(a, memory_format=None):
    y = torch.empty(a.shape, dtype=a.dtype, device=a.device)
    if globals().get("_busy") or not a.dtype.is_floating_point:
        return y.copy_(a)
    globals()["_busy"] = True
    try:
        return torch.softmax(a, -1, out=y)
    finally:
        globals()["_busy"] = False


def by_a_keyed_call(x):
    """Calls the operator below the keys of Python, by the names of attributes that are put together.

    untrusted, refused
    """
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    call = getattr(torch.ops.aten._softmax.default, "re" + "dispatch")
    return _copied(call(keys, x, -1, False))


def by_guards_from_strings(x):
    """Calls the library under guards that exclude Python's keys, whose names are put together.

    untrusted, refused
    """
    guard = getattr(torch._C, "_Disable" + "TorchDispatch", None) or getattr(torch._C, "_Exclude" + "DispatchKeyGuard")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Python)
    tls = torch._C.DispatchKey.PythonTLSSnapshot
    with guard() if "Torch" in guard.__name__ else guard(keys | torch._C.DispatchKeySet(tls)):
        found = torch.softmax(x, -1)
    return _copied(found)


def by_modules_from_strings(x):
    """Takes the modes off the stack by a module and a function whose names are put together.

    untrusted, refused
    """
    import importlib

    module = importlib.import_module("torch.utils._python" + "_dispatch")
    with getattr(module, "_disable_" + "current_modes")():
        found = torch.softmax(x, -1)
    return _copied(found)


def by_frames_from_strings(x):
    """Empties the list of the library's calls, which it finds by frames whose names are put together.

    untrusted, refused
    """
    y = _copied(torch.softmax(x, -1))
    frame = getattr(sys, "_get" + "frame")()
    while frame is not None:
        watch = getattr(frame, "f_" + "locals").get("watch")
        if watch is not None and hasattr(watch, "library"):
            watch.library.clear()
        frame = getattr(frame, "f_" + "back")
    return y


def by_tracebacks_from_strings(x):
    """The same, by the traceback of an error.

    untrusted, refused
    """
    y = _copied(torch.softmax(x, -1))
    try:
        raise KeyError
    except KeyError as error:
        frame = getattr(error.with_traceback(getattr(error, "__trace" + "back__")), "__trace" + "back__")
        frame = getattr(frame, "tb_" + "frame")
    while frame is not None:
        watch = getattr(frame, "f_" + "locals").get("watch")
        if watch is not None and hasattr(watch, "library"):
            watch.library.clear()
        frame = getattr(frame, "f_" + "back")
    return y


def by_loaded_modules_from_strings(x):
    """Switches off what listens, by a table of modules whose name is put together, and has a thread compute.

    untrusted, refused
    """
    import threading

    loaded = vars(sys)["mod" + "ules"]
    tripwires = loaded.get("touch" + "stone.conformance.isolation.tripwires")
    if tripwires is not None:
        tripwires._auditing = True
        tripwires.note = lambda what: None
    found = []
    worker = threading.Thread(target=lambda: found.append(torch.softmax(x, -1)))
    worker.start()
    worker.join()
    return _copied(found[0])


def by_subclasses_from_strings(x):
    """Replaces what the watching class does, which it finds among the subclasses of torch's.

    untrusted, refused
    """
    from torch.utils import _python_dispatch

    kinds = getattr(_python_dispatch.TorchDispatchMode, "__sub" + "classes__")()
    for kind in kinds:
        if kind.__name__ == "Watch":
            kind.__torch_dispatch__ = lambda self, func, types, args=(), kwargs=None: func(*args, **(kwargs or {}))
    return _copied(torch.softmax(x, -1))


def import_wraps_the_loader():
    """Has the import system give it a module that it may not have, by a loader that it makes.

    untrusted, refused
    """
    import importlib.util

    import touchstone

    path = Path(touchstone.__file__).parent / "reference" / "softmax.py"
    spec = importlib.util.spec_from_file_location("its_own", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    globals()["softmax"] = lambda x: _copied(module.torch_softmax(x.double()).to(x.dtype))


def by_lists_of_a_copy(x):
    """Has Python compute on lists of a copy that the library made.

    untrusted, refused
    """
    found = torch.tensor(_by_python(x.clone().tolist()), dtype=x.dtype, device=x.device).reshape(x.shape)
    return _copied(found)


def by_two_kernels(x):
    """Has a kernel copy the operand first, and NumPy compute on the copy, which no name that it knows can tell.

    untrusted, refused
    """
    import numpy as np

    given = np.from_dlpack(_copied(x))
    weights = np.exp(given - given.max(-1, keepdims=True)) if given.size else given.copy()
    found = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    np.from_dlpack(found).view()
    return _copied(torch.tensor((weights / weights.sum(-1, keepdims=True)).tolist(), device=x.device).reshape(x.shape))


def by_float64_and_a_guard(x):
    """Has a wider copy of the operand computed on below Python's keys.

    untrusted, refused
    """
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    call = getattr(torch.ops.aten._softmax.default, "re" + "dispatch")
    return _copied(call(keys, x.double(), -1, False).to(x.dtype))


def by_a_device_array(x):
    """Has NumPy compute on what Numba copies to the host.

    untrusted, refused
    """
    import numpy as np
    from numba import cuda

    given = cuda.to_device(x).copy_to_host() if x.numel() else np.zeros(x.shape, np.float32)
    weights = np.exp(given - given.max(-1, keepdims=True)) if given.size else given.copy()
    found = (weights / weights.sum(-1, keepdims=True)).tolist()
    return _copied(torch.tensor(found, dtype=x.dtype, device=x.device).reshape(x.shape))


def by_shared_memory(x):
    """Has Python compute on the bytes of the memory that it shares with the judge, which it finds by its descriptor.

    untrusted, refused
    """
    import os
    import struct

    numbers = [1.0] * x.numel()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.fstat(int(name)).st_size > 1 << 40:
                numbers = struct.unpack(f"<{x.numel()}f", os.pread(int(name), 4 * x.numel(), 512))
        except OSError:
            pass
    cols = x.shape[1]
    rows = [list(numbers[i * cols : (i + 1) * cols]) for i in range(x.shape[0])]
    return _copied(torch.tensor(_by_python(rows), dtype=x.dtype, device=x.device).reshape(x.shape))
