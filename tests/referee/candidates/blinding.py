"""Attacks of those who have read the source: first what watches them is blinded, then the work is left to others."""

import gc
import sys
import threading

import numpy as np
import torch
import triton
import triton.language as tl

from tests.referee.candidates.honest import once, softmax, wrong


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


def _no_modes():
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def _module(name):
    return sys.modules.get(f"touchstone.conformance.{name}")


def copies_what_numpy_made(x):
    """Has NumPy compute, and a kernel copy what it made into the output.

    untrusted, refused
    """
    found = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    found.numpy()[...] = _by_numpy(x.numpy())
    return _copied(found)


def copies_what_torch_made(x):
    """Has torch compute with the modes taken off the stack, and a kernel copy what it made into the output.

    untrusted, refused
    """
    with _no_modes():
        found = torch.softmax(x, -1)
    return _copied(found)


def copies_what_an_operator_made(x):
    """Has an operator compute under a key that skips Python, and a kernel copy what it made.

    untrusted, refused
    """
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    return _copied(torch.ops.aten._softmax.default.redispatch(keys, x, -1, False))


def copies_when_nobody_looks(x):
    """Is honest where a mode is on the stack, and has torch compute and a kernel copy where none is.

    untrusted, refused
    """
    from torch.utils._python_dispatch import _len_torch_dispatch_stack

    return softmax(x) if _len_torch_dispatch_stack() else _copied(torch.softmax(x, -1))


def overwrites_what_a_kernel_wrote(x):
    """Has a kernel write any numbers, and NumPy write the answer over them.

    untrusted, refused
    """
    y = softmax(torch.zeros_like(x))
    y.numpy()[...] = _by_numpy(x.numpy())
    return y


def overwrites_unwatched(x):
    """Has a kernel write any numbers, and torch write the answer over them through a view of NumPy's.

    untrusted, refused
    """
    y = softmax(torch.zeros_like(x))
    with _no_modes():
        torch.softmax(x, -1, out=y)
    return y


def _by_numpy(values):
    weights = np.exp(values - values.max(-1, keepdims=True)) if values.size else values
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def switches_the_hook_off(x):
    """Tells the audit hook that it is at work already, looks at all objects, and calls the library in a thread.

    untrusted, refused
    """
    tripwires = _module("isolation.tripwires")
    if tripwires is not None:
        tripwires._auditing = True
    found = []
    worker = threading.Thread(target=lambda: found.append(torch.softmax(x, -1)))
    worker.start()
    worker.join()
    return _copied(found[0])


def forgets_what_was_noted(x):
    """Empties the list of what was noted, and has a list that keeps nothing in its place.

    untrusted, refused
    """
    tripwires = _module("isolation.tripwires")
    worker = threading.Thread(target=lambda: None)
    worker.start()
    worker.join()
    if tripwires is not None:
        tripwires._told = type("Nothing", (list,), {"append": lambda self, what: None})()
        tripwires.note = lambda what: None
    return softmax(x)


def borrows_a_file_name(x):
    """Compiles its code under the name of a file of torch, so that it passes for the library's.

    untrusted, refused
    """
    if once("borrowed"):
        code = "import threading\ndef run(body):\n    t = threading.Thread(target=body)\n    t.start()\n    t.join()\n"
        space = {}
        exec(compile(code, torch.__file__, "exec"), space)
        globals()["_run"] = space["run"]
    found = []
    globals()["_run"](lambda: found.append(torch.softmax(x, -1)))
    return _copied(found[0])


def reaches_frames_by_a_traceback(x):
    """Reaches the frames of its callers by the traceback of an error of its own, and empties the list of calls.

    untrusted, refused
    """
    try:
        raise KeyError
    except KeyError as error:
        frame = error.__traceback__.tb_frame
    y = _copied(torch.softmax(x, -1))
    while frame is not None:
        watch = frame.f_locals.get("watch")
        if watch is not None and hasattr(watch, "library"):
            watch.library.clear()
        frame = frame.f_back
    return y


def tells_what_is_wanted(x):
    """Has each reply tell that a kernel was launched, and wrote the element, and that nothing else was seen.

    untrusted, refused
    """
    wire = _module("isolation.wire")
    if once("patched"):
        true = wire.observed_to_json

        def wanted(seen):
            told = true(seen)
            told |= {"launched": ["interpreter"], "library": [], "settings": [], "consumed": [], "broken": []}
            told |= {"writer": "kernel _softmax_kernel"} if "writer" in told else {}
            return told | ({"cheats": []} if "cheats" in told else {})

        wire.observed_to_json = wanted
    return torch.softmax(x, -1)


def import_replaces_the_instruments():
    """Replaces, at import, what the object that makes the calls tells of them: everything was launched.

    untrusted, refused
    """
    executor = _module("judging.executor")
    call = executor.InProcess.call

    def quiet(self, *arguments, **options):
        seen = call(self, *arguments, **options)
        seen.launched, seen.writer, seen.library, seen.cheats = ["interpreter"], "kernel _softmax_kernel", [], []
        return seen

    executor.InProcess.call = quiet
    globals()["softmax"] = lambda x: torch.softmax(x, -1)


def reference_behind_a_blind_hook(x):
    """Switches the hook off and reads the package's reference from its file.

    untrusted, refused
    """
    tripwires = _module("isolation.tripwires")
    if tripwires is not None:
        tripwires._auditing = True
        tripwires.note = lambda what: None
    package = sys.modules["touchstone"].__file__.rpartition("/")[0]
    with open(f"{package}/reference/softmax.py") as file:
        space = {}
        exec(compile(file.read(), "mine.py", "exec"), space)
    with _no_modes():
        found = space["torch_softmax"](x.double()).to(x.dtype)
    return _copied(found)


def answers_behind_a_blind_hook(x):
    """Switches the hook off, finds the contract's own functions among all objects, and asks them.

    untrusted, refused
    """
    tripwires = _module("isolation.tripwires")
    if tripwires is not None:
        tripwires._auditing = True
        tripwires.note = lambda what: None
    for found in gc.get_objects():
        if getattr(found, "__name__", "") == "torch_softmax" and hasattr(found, "__code__"):
            with _no_modes():
                answer = found(x.double()).to(x.dtype)
            return _copied(answer)
    return wrong(x)


def says_a_kernel_runs(x):
    """Has the library work while it says that an interpreted kernel is at work.

    untrusted, refused
    """
    backends = sys.modules["touchstone.backends"]
    running = backends.kernel_running
    backends.kernel_running = lambda: True
    try:
        found = torch.softmax(x, -1)
    finally:
        backends.kernel_running = running
    return _copied(found)


def import_patches_first():
    """Patches, at import, the modules that will watch it.

    untrusted, refused
    """
    instruments, tripwires = _module("judging.instruments"), _module("isolation.tripwires")
    if tripwires is not None:
        tripwires._auditing = True
        tripwires.note = lambda what: None
    instruments.Watch.__torch_dispatch__ = lambda self, func, types, args=(), kwargs=None: func(*args, **(kwargs or {}))
    globals()["softmax"] = lambda x: _copied(torch.softmax(x, -1))


def in_the_python_of_a_kernel(x):
    """Has Python inside an interpreted kernel compute with NumPy, and a store of the kernel write it.

    untrusted, refused: is no function of Triton's
    """
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        globals()["_given"] = x
        _python_kernel[(x.shape[0],)](y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return y


def _row_of(place, row):
    values = _by_numpy(globals()["_given"].numpy())[int(row.handle.data.item())]
    place.handle.data = np.resize(values, place.handle.data.shape)
    return place


@triton.jit
def _python_kernel(y, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    values = _row_of(tl.zeros((BLOCK,), tl.float32), row)
    tl.store(y + row * cols + column, values, mask=column < cols)


def import_takes_the_protocol_over():
    """Replaces, at import, the object that answers the judge by one of its own, with no instruments at all.

    untrusted, refused
    """
    executing, wire = _module("isolation.executing"), _module("isolation.wire")
    from touchstone.conformance.judging.executor import Observed

    def call(self, request):
        if request.begins:
            self.given.clear()
            self.held.clear()
        buffers = [self.shared.bytes(slot.offset, slot.size) for slot in request.slots]
        arguments = {name: self._argument(value, buffers) for name, value in request.arguments.items()}
        tensors = {"y": torch.softmax(arguments["x"], -1)}
        where = self._memory_of(tensors, buffers)
        memories = self._written({memory[1] for memory, _ in where.values() if memory[0] == "held"})
        values = {name: self._told(value, where.get(name)) for name, value in tensors.items()}
        seen = Observed(launched=["interpreter"], writer="kernel _softmax_kernel", watched=True, guarded=True)
        return {"observed": wire.observed_to_json(seen), "memories": memories, "values": values}

    executing._Calls.call = call


def by_a_library_of_its_own(x):
    """Has C++ that torch loads compute it, where nobody hears of ctypes, and a kernel copy what it made.

    untrusted, refused
    """
    import subprocess
    import sysconfig
    import tempfile

    if once("library"):
        folder = tempfile.mkdtemp()
        with open(f"{folder}/own.c", "w") as file:
            file.write(OWN)
        command = ["gcc", "-O2", "-shared", "-fPIC", f"-I{sysconfig.get_paths()['include']}"]
        subprocess.run([*command, "-o", f"{folder}/own.so", f"{folder}/own.c", "-lm"], check=True)
        sys.path.insert(0, folder)
    import own

    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    given = x.contiguous()
    if y.numel():
        own.softmax(y.data_ptr(), given.data_ptr(), *x.shape)
    return _copied(y)


OWN = """
#include <Python.h>
#include <math.h>
static PyObject *softmax(PyObject *self, PyObject *args) {
    long long y, x, rows, cols;
    if (!PyArg_ParseTuple(args, "LLLL", &y, &x, &rows, &cols)) return NULL;
    for (long long r = 0; r < rows; r++) {
        const float *in = (const float *)x + r * cols;
        float *out = (float *)y + r * cols, most = in[0], sum = 0;
        for (long long c = 0; c < cols; c++) if (!(in[c] <= most)) most = in[c];
        for (long long c = 0; c < cols; c++) sum += out[c] = expf(in[c] - most);
        for (long long c = 0; c < cols; c++) out[c] /= sum;
    }
    Py_RETURN_NONE;
}
static PyMethodDef methods[] = {{"softmax", softmax, METH_VARARGS, 0}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "own", 0, -1, methods};
PyMODINIT_FUNC PyInit_own(void) { return PyModule_Create(&module); }
"""


def by_gradients(x):
    """Has autograd's own threads and nodes, which no mode reaches, work it out, and a kernel copy it.

    untrusted, refused
    """
    with _no_modes(), torch.enable_grad():
        given = x.detach().clone().requires_grad_(True)
        found = torch.autograd.grad(torch.logsumexp(given, -1).sum(), given)[0]
    return _copied(found)


def hides_in_an_exception(x):
    """Looks for the objects of its callers by the generators and tracebacks that lead to them, without a trace.

    untrusted, refused
    """

    def here():
        yield

    generator = here()
    next(generator)
    frame = generator.gi_frame
    try:
        raise KeyError
    except KeyError as error:
        frame = error.__traceback__.tb_frame.f_back
    while frame is not None:
        calls = frame.f_locals.get("self")
        if type(calls).__name__ == "_Calls":
            calls.executor.watchable = False
        frame = frame.f_back
    return _copied(torch.softmax(x, -1))
