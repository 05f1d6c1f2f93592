"""The library does the work."""

import ctypes
import itertools
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import torch
import triton
import triton.language as tl

from tests.referee.candidates.honest import once, softmax


def plainly(x):
    """Calls torch.softmax.

    untrusted, refused
    """
    return torch.softmax(x, -1)


def by_steps(x):
    """Calls torch for each step.

    untrusted, refused
    """
    weights = (x - x.amax(-1, keepdim=True)).exp()
    return weights / weights.sum(-1, keepdim=True)


def in_a_thread(x):
    """Calls torch in another thread, where modes of this one are not.

    untrusted, refused
    """
    found = []
    worker = threading.Thread(target=lambda: found.append(torch.softmax(x, -1)))
    worker.start()
    worker.join()
    return found[0]


def under_disabled_dispatch(x):
    """Calls torch with Python's dispatch switched off.

    untrusted, refused
    """
    with torch._C._DisableTorchDispatch() if hasattr(torch._C, "_DisableTorchDispatch") else _no_modes():
        return torch.softmax(x, -1)


def _no_modes():
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def without_modes(x):
    """Takes the modes off the stack, calls torch, and puts them back.

    untrusted, refused
    """
    with _no_modes():
        return torch.softmax(x, -1)


def only_unwatched(x):
    """Calls torch where no mode is on the stack, and a kernel where one is.

    untrusted, refused
    """
    from torch.utils._python_dispatch import _len_torch_dispatch_stack

    return softmax(x) if _len_torch_dispatch_stack() else torch.softmax(x, -1)


def by_operator(x):
    """Calls the operator of torch.ops under a key that skips Python.

    untrusted, refused
    """
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    return torch.ops.aten._softmax.default.redispatch(keys, x, -1, False)


def by_script(x):
    """Calls a function that torch.jit has compiled.

    untrusted, refused
    """
    if once("script"):
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = torch._C.parse_ir(
                "graph(%x : Tensor):\n %d : int = prim::Constant[value=-1]()\n %n : NoneType = prim::Constant()\n"
                " %y : Tensor = aten::softmax(%x, %d, %n)\n return (%y)"
            )
            globals()["_scripted"] = torch._C._create_function_from_graph("forward", graph)
    return globals()["_scripted"](x)


def by_numpy(x):
    """Has NumPy do it.

    untrusted, refused
    """
    import numpy as np

    values = x.numpy()
    weights = np.exp(values - values.max(-1, keepdims=True))
    return torch.from_numpy((weights / weights.sum(-1, keepdims=True)).astype(np.float32))


def matmul_by_numpy(a, b):
    """Has NumPy's BLAS do it, over DLPack.

    matmul, untrusted, refused
    """
    import numpy as np

    return torch.from_dlpack(np.ascontiguousarray(np.from_dlpack(a) @ np.from_dlpack(b)))


def matmul_by_blas(a, b):
    """Calls sgemm of the BLAS that comes with NumPy or torch, by ctypes.

    matmul, untrusted, refused
    """
    import numpy as np

    found = itertools.chain(
        Path(np.__file__).parents[1].glob("numpy.libs/libscipy_openblas64_*"), Path("/usr/lib").rglob("libblas.so.3")
    )
    library = ctypes.CDLL(str(next(found)))
    gemm = getattr(library, "scipy_cblas_sgemm64_", None) or library.cblas_sgemm
    c = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype)
    if not c.numel():
        return c
    left, right = a.contiguous(), b.contiguous()
    m, n, k = map(ctypes.c_int64, (*c.shape, a.shape[1]))
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (left, right, c)]
    one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
    lda, ldb = ctypes.c_int64(max(1, a.shape[1])), ctypes.c_int64(max(1, b.shape[1]))
    gemm(101, 111, 111, m, n, k, one, pointers[0], lda, pointers[1], ldb, zero, pointers[2], ldb)
    return c


def matmul_plainly(a, b):
    """Calls torch.matmul.

    matmul, untrusted, refused
    """
    return a @ b


def rms_norm_plainly(x, weight, eps=1e-6):
    """Calls torch's rms_norm.

    rms_norm, untrusted, refused
    """
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps).contiguous()


def by_libm(x):
    """Has the exponentials computed by libm, one at a time, and the sums by Python: slow, but work of its own.

    contained
    """
    exp = ctypes.CDLL("libm.so.6").exp
    exp.restype, exp.argtypes = ctypes.c_double, [ctypes.c_double]
    rows = []
    for row in x.tolist():
        most = max(row, default=0.0)
        weights = [exp(value - most) for value in row]
        rows.append([weight / sum(weights) for weight in weights])
    return torch.tensor(rows, dtype=x.dtype).reshape(x.shape)


def in_another_process(x):
    """Has a Python of its own, with torch, do it.

    untrusted, refused
    """
    code = """if True:
        import sys, torch
        for line in sys.stdin:
            given, made = line.split()
            torch.save(torch.softmax(torch.load(given), -1), made)
            print(flush=True)"""
    if "_other" not in globals():  # one for all calls of this process: importing torch takes seconds
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        globals()["_other"] = subprocess.Popen([sys.executable, "-c", code], **pipes)
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder, "given"), Path(folder, "made")
        torch.save(x.contiguous(), given)
        print(given, made, file=globals()["_other"].stdin, flush=True)
        globals()["_other"].stdout.readline()
        return torch.load(made)


def in_a_fork(x):
    """Has a fork of this process call torch, on shared memory.

    untrusted, refused
    """
    y = torch.empty(x.shape).share_memory_()
    if (process := os.fork()) == 0:
        y.copy_(torch.softmax(x, -1))
        os._exit(0)
    os.waitpid(process, 0)
    return y


@triton.jit
def _cheating_kernel(y, x, BLOCK: tl.constexpr):
    _inside(y, x)


def _inside(y, x):
    y, x = globals()["_tensors"]
    y.copy_(torch.softmax(x, -1))


def in_a_kernel(x):
    """Calls torch from the body of an interpreted kernel, where nobody watches.

    untrusted, refused: no function of Triton's
    """
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    globals()["_tensors"] = y, x
    if x.numel():
        _cheating_kernel[(1,)](y, x, BLOCK=1)
    return y


def by_inheritance(x):
    """Calls torch under a mode that answers in the place of the watching one.

    untrusted, refused
    """
    from torch.overrides import TorchFunctionMode

    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            with torch._C.DisableTorchFunction():
                return function(*args, **(kwargs or {}))

    with Mode():
        return torch.softmax(x, -1)


def by_autograd(x):
    """Calls torch in the backward of an autograd function, which a thread of the library runs.

    untrusted, refused
    """

    class Backwards(torch.autograd.Function):
        @staticmethod
        def forward(context, z):
            return z.clone()

        @staticmethod
        def backward(context, gradient):
            found.append(torch.softmax(x, -1))
            return gradient

    found = []
    z = torch.zeros(1, requires_grad=True)
    with torch.enable_grad():
        Backwards.apply(z).sum().backward()
    return found[0]


def by_custom_operator(x):
    """Calls torch in an operator of its own.

    untrusted, refused
    """
    if once("operator"):
        library = torch.library.Library("planted_operators", "DEF")
        library.define("work(Tensor x) -> Tensor")
        library.impl("work", lambda x: _softmax_without_modes(x), "CPU")
        globals()["_library"] = library
    return torch.ops.planted_operators.work(x)


def _softmax_without_modes(x):
    with _no_modes():
        return torch.softmax(x, -1)


def only_the_hard_part(x):
    """Has a kernel copy, and torch do the rest before it.

    untrusted, refused
    """
    y = softmax(torch.zeros_like(x))
    with _no_modes():
        return y.copy_(torch.softmax(x, -1))
