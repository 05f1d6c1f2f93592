"""Faults: what goes wrong in a kernel, by accident or not. Each is named in the report, and the run goes on."""

import contextlib
import ctypes
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import torch

from tests.referee.candidates.honest import compiled, judge, once, sockets, softmax


def segfault(x):
    """Reads at address 0.

    refused
    """
    ctypes.string_at(0)


def segfault_at_long_rows(x):
    """Reads at address 0 where rows are long.

    refused
    """
    return ctypes.string_at(0) if x.shape[1] > 64 else softmax(x)


def abort(x):
    """Aborts.

    refused
    """
    os.abort()


def bus_error(x):
    """Reads a mapping of a file behind its end.

    refused
    """
    import mmap

    with tempfile.TemporaryFile() as file:
        file.truncate(1 << 16)
        room = mmap.mmap(file.fileno(), 1 << 16)
        file.truncate(0)
        return room[100]


def division_by_zero(x):
    """Has the processor raise SIGFPE.

    refused
    """
    os.kill(os.getpid(), signal.SIGFPE)


def illegal_instruction(x):
    """Has the processor raise SIGILL.

    refused
    """
    os.kill(os.getpid(), signal.SIGILL)


def exits_at_call(x):
    """Calls sys.exit(3).

    refused
    """
    sys.exit(3)


def ends_at_call(x):
    """Calls os._exit(7).

    refused
    """
    os._exit(7)


def import_raises():
    """Raises an error at import.

    refused: RuntimeError: not today
    """
    raise RuntimeError("not today")


def import_exits_with_three():
    """Calls sys.exit(3) at import.

    refused: SystemExit: 3
    """
    sys.exit(3)


def import_segfaults():
    """Reads at address 0 at import.

    refused
    """
    ctypes.string_at(0)


def import_leaves_warnings_as_errors():
    """Has warnings be errors, from the import on.

    contained
    """
    import warnings

    warnings.simplefilter("error")


def hang_in_python(x):
    """Does nothing, for ever, in Python.

    refused
    """
    while True:
        pass


def hang_in_sleep(x):
    """Sleeps for ever.

    refused
    """
    threading.Event().wait()


def hang_in_c(x):
    """Loops for ever in C, with the interpreter's lock held.

    refused
    """
    ctypes.PyDLL(None).sleep(1000)


def hang_at_work_in_c(x):
    """Computes for ever in C, with the interpreter's lock held.

    refused
    """
    import re

    re.match(r"(a+)+$", "a" * 60 + "b")


def hang_with_signals_blocked(x):
    """Does nothing for ever, with all signals blocked and those that can be ignored ignored.

    refused
    """
    for number in range(1, 65):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
    while True:
        pass


def stops_itself(x):
    """Stops its own process.

    refused
    """
    os.kill(os.getpid(), signal.SIGSTOP)


def hang_at_long_rows(x):
    """Sleeps for ever where rows are long.

    refused
    """
    return threading.Event().wait() if x.shape[1] > 64 else softmax(x)


def fork_bomb(x):
    """Starts two hundred processes, which start no others, and waits for none.

    refused
    """
    for _ in range(200):
        if os.fork() == 0:
            time.sleep(100)
            os._exit(0)
    os._exit(1)


def fork_bomb_in_sessions(x):
    """Starts a hundred processes in sessions of their own.

    untrusted, refused
    """
    for _ in range(100):
        if os.fork() == 0:
            os.setsid()
            time.sleep(100)
            os._exit(0)
    os._exit(1)


def many_threads(x):
    """Starts five hundred threads that wait.

    noticed: thread
    """
    if once("threads"):
        try:
            for _ in range(500):
                threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
        except RuntimeError:
            pass
    return softmax(x)


def threads_at_work(x):
    """Leaves four threads that count.

    noticed: thread|hang
    """

    def count():
        while True:
            pass

    if once("threads"):
        for _ in range(4):
            threading.Thread(target=count, daemon=True).start()
    return softmax(x)


def endless_allocation(x):
    """Takes memory up to six gibibytes.

    refused
    """
    kept = []
    for _ in range(96):
        kept.append(torch.ones(16 << 20))
    raise AssertionError("there were six gibibytes")


def endless_allocation_elsewhere(x):
    """Takes five gibibytes in a process that it has started.

    untrusted, refused
    """
    code = "kept = [bytes([1]) * (64 << 20) for _ in range(80)]; import time; time.sleep(1)"
    done = subprocess.run([sys.executable, "-S", "-c", code], check=False)
    if done.returncode:
        raise MemoryError
    return softmax(x)


def endless_allocation_in_files(x):
    """Takes five gibibytes in a file that is in memory.

    untrusted, refused: Function not implemented
    """
    if once("file"):
        number = os.memfd_create("planted")
        for _ in range(80):
            os.write(number, bytes(64 << 20))
        time.sleep(0.5)
        os.close(number)
    return softmax(x)


def one_huge_allocation(x):
    """Asks for 2^50 bytes.

    refused: allocate
    """
    return torch.empty(1 << 48)


def deep_recursion(x):
    """Calls itself for ever.

    refused: RecursionError
    """
    return deep_recursion(x)


def recursion_without_limit(x):
    """Calls itself for ever, with the limit of recursion set to a thousand million.

    refused
    """
    sys.setrecursionlimit(1_000_000_000)

    class Deep:
        def __repr__(self):
            return repr(self)

    return repr(Deep())


def recursion_limit(x):
    """Leaves a limit of recursion of seventy.

    noticed: recursion
    """
    y = softmax(x)
    with contextlib.suppress(RecursionError):
        sys.setrecursionlimit(70)
    return y


def closes_all_descriptors(x):
    """Closes all descriptors.

    refused
    """
    os.closerange(0, 4096)
    return softmax(x)


def closes_the_connection(x):
    """Closes its sockets, and goes on.

    refused
    """
    for number in sockets():
        os.close(number)
    return softmax(x)


def closes_stdout(x):
    """Closes standard output and error.

    noticed: descriptor|stdout|output
    """
    if once("closed"):
        sys.stdout.close()
        sys.stderr.close()
        os.close(1)
        os.close(2)
    return softmax(x)


def leaks_descriptors(x):
    """Opens files until there are no more.

    noticed
    """
    held = globals().setdefault("_files", [])
    try:
        while len(held) < 100_000:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    return softmax(x)


def replaces_descriptors(x):
    """Has standard output lead into the connection, and the connection nowhere.

    refused
    """
    for number in sockets():
        os.dup2(number, 1)
        os.dup2(os.open("/dev/null", os.O_RDWR), number)
    print("hello", flush=True)
    return softmax(x)


def flushes_to_zero(x):
    """Leaves small numbers flushed to zero.

    noticed: denormal|subnormal|flush
    """
    y = softmax(x)
    torch.set_flush_denormal(True)
    return y


def flushes_to_zero_by_register(x):
    """Leaves small numbers flushed to zero, in the register of the processor.

    noticed: denormal|subnormal|flush
    """
    y = softmax(x)
    code = "#include <xmmintrin.h>\nvoid set(void) { _mm_setcsr(_mm_getcsr() | 0x8040); }\n"
    if once("library"):
        globals()["_library"] = compiled(code)
    globals()["_library"].set()
    return y


def rounding_mode(x):
    """Leaves numbers rounded upwards.

    noticed: round
    """
    y = softmax(x)
    ctypes.CDLL("libm.so.6").fesetround(0x800)
    return y


def floating_exceptions(x):
    """Has an invalid operation be SIGFPE, from the return on.

    noticed: float|exception|trap|crash
    """
    y = softmax(x)
    ctypes.CDLL("libm.so.6").feenableexcept(0x1D)
    return y


def default_device(x):
    """Leaves another default device.

    noticed: default device
    """
    y = softmax(x)
    torch.set_default_device("meta")
    return y


def default_dtype(x):
    """Leaves another default dtype.

    noticed: default dtype
    """
    y = softmax(x)
    torch.set_default_dtype(torch.float64)
    return y


def autocast(x):
    """Leaves autocast on.

    noticed: autocast
    """
    y = softmax(x)
    torch.set_autocast_enabled("cpu", True)
    torch.autocast("cpu", torch.bfloat16).__enter__()
    return y


def inference_mode(x):
    """Leaves inference mode on.

    noticed: inference
    """
    y = softmax(x)
    globals().setdefault("_modes", []).append(torch.inference_mode())
    globals()["_modes"][-1].__enter__()
    return y


def no_grad(x):
    """Leaves autograd off.

    noticed: autograd|grad
    """
    y = softmax(x)
    torch._C._set_grad_enabled(not torch.is_grad_enabled())
    return y


def dispatch_mode(x):
    """Leaves a dispatch mode on, under which each operation gives zeros.

    noticed
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Zeros(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            made = function(*args, **(kwargs or {}))
            return torch.zeros_like(made) if isinstance(made, torch.Tensor) and made.is_floating_point() else made

    y = softmax(x)
    if once("mode"):
        globals()["_mode"] = Zeros()
        globals()["_mode"].__enter__()
    return y


def deterministic_algorithms(x):
    """Leaves deterministic algorithms demanded.

    noticed: deterministic algorithms
    """
    y = softmax(x)
    torch.use_deterministic_algorithms(True)
    return y


def threads_of_torch(x):
    """Leaves torch with other numbers of threads.

    noticed: thread
    """
    y = softmax(x)
    torch.set_num_threads(3)
    return y


def matmul_precision(x):
    """Leaves another precision of matrix products.

    noticed: precision
    """
    y = softmax(x)
    torch.set_float32_matmul_precision("medium")
    return y


def generators(x):
    """Leaves random generators seeded.

    noticed: generator
    """
    torch.manual_seed(3)
    return softmax(x)


def environment_changed(x):
    """Leaves variables of the environment changed.

    noticed: environment
    """
    os.environ["OMP_NUM_THREADS"] = "77"
    return softmax(x)


def deletes_its_folder(x):
    """Leaves a current folder that there is no more.

    noticed: folder|directory
    """
    if once("folder"):
        folder = tempfile.mkdtemp()
        os.chdir(folder)
        os.rmdir(folder)
    return softmax(x)


def deletes_the_judges_folder(x):
    """Deletes the folder in which the judge runs.

    untrusted, contained
    """
    import shutil

    if once("folder"):
        shutil.rmtree(os.getcwd(), ignore_errors=True)
    return softmax(x)


def stops_the_judge_for_a_while(x):
    """Stops the judge, and lets it go on a second later, from a process of its own.

    contained
    """
    if once("stopped"):
        os.kill(judge(), signal.SIGSTOP)
        time.sleep(1)
        os.kill(judge(), signal.SIGCONT)
    return softmax(x)


def alarms(x):
    """Leaves a timer that sends SIGALRM, for which there is no handler.

    refused
    """
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    return softmax(x)


def alarms_with_a_handler(x):
    """Leaves a timer whose handler raises an error wherever it meets the judge's process.

    noticed
    """

    def ring(*arguments):
        raise RuntimeError("the alarm rings")

    y = softmax(x)
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    return y


def atexit_hangs(x):
    """Registers what never ends for the end of the process.

    noticed: thread|atexit
    """
    import atexit

    if once("atexit"):
        atexit.register(threading.Event().wait)
        threading.Thread(target=threading.Event().wait).start()
    return softmax(x)


def broken_destructor(x):
    """Leaves objects whose destructors raise, print and hang for a moment.

    contained
    """

    class Broken:
        def __del__(self):
            time.sleep(0.001)
            raise RuntimeError("not now")

    globals()["_broken"] = Broken()
    return softmax(x)


def destructor_that_exits(x):
    """Leaves an object whose destructor ends the process.

    refused
    """

    class Broken:
        def __del__(self):
            os._exit(0)

    globals()["_broken"] = Broken()
    return softmax(x)


def garbage_collector_off(x):
    """Leaves the garbage collector off.

    noticed: garbage|\\bgc\\b
    """
    gc.disable()
    return softmax(x)


def garbage_collector_callback(x):
    """Leaves a callback of the garbage collector that raises.

    noticed: callback
    """

    def raises(phase, about):
        raise RuntimeError("not now")

    if once("callback"):
        gc.callbacks.append(raises)
    return softmax(x)


def tracing_left_on(x):
    """Leaves a trace function on that raises.

    noticed: trac|profil|raised|crash
    """
    y = softmax(x)

    def trace(frame, event, argument):
        raise RuntimeError("not now")

    sys.settrace(trace)
    sys.setprofile(trace)
    return y


def audit_hook(x):
    """Leaves an audit hook that raises at each opened file and import.

    noticed: hook|crash
    """

    def hook(event, arguments):
        if event in ("open", "import", "pickle.find_class"):
            raise RuntimeError("not allowed")

    y = softmax(x)
    if once("hook"):
        sys.addaudithook(hook)
    return y


def patched_builtins(x):
    """Leaves builtins that raise.

    refused
    """
    import builtins

    y = softmax(x)

    def raises(*arguments, **options):
        raise RuntimeError("not now")

    builtins.isinstance = builtins.len = builtins.sorted = raises
    return y


def patched_time(x):
    """Leaves clocks that stand still.

    contained
    """
    time.time = time.monotonic = time.perf_counter = lambda: 0.0
    return softmax(x)


def emptied_modules(x):
    """Empties sys.modules.

    noticed
    """
    y = softmax(x)
    sys.modules.clear()
    return y


def signals_blocked(x):
    """Leaves all signals blocked.

    noticed: signal
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
    return softmax(x)


def file_mode(x):
    """Leaves a mask under which new files can be read by nobody.

    noticed: mode of new files
    """
    os.umask(0o777)
    return softmax(x)


def limits_processor_time(x):
    """Limits its own processor time to a second, and uses it up.

    refused
    """
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
    while True:
        pass


def limits_stack(x):
    """Limits its own stack to a page, and calls deep.

    refused
    """
    import resource

    resource.setrlimit(resource.RLIMIT_STACK, (1 << 16, 1 << 16))

    def deep(n):
        return [deep(n - 1)] if n else repr([[]])

    sys.setrecursionlimit(1 << 20)
    for _ in range(3):
        [deep(n) for n in [900_000]]
    return softmax(x)


def limits_files(x):
    """Limits the size of the files that it may write to nothing.

    noticed: limit
    """
    import resource

    y = softmax(x)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    return y


def endless_output(x):
    """Prints 64 MiB, and raises.

    refused: RuntimeError: enough
    """
    for _ in range(64):
        sys.stdout.write("x" * (1 << 20))
    raise RuntimeError("enough")


def output_without_lines(x):
    """Prints bytes that are no text.

    contained
    """
    os.write(1, bytes(range(256)) * 16)
    os.write(2, b"\xff\xfe\x00" * 1000)
    return softmax(x)


def huge_exception(x):
    """Raises an error with a hundred million characters.

    refused: ValueError: xxx
    """
    raise ValueError("x" * 100_000_000)


def chain_of_exceptions(x):
    """Raises an error that three thousand others caused, each the cause of the next.

    refused: ValueError: number
    """
    error = None
    for number in range(3000):
        following = ValueError(f"number {number}")
        following.__cause__ = error
        error = following
    error_of_all = error
    while error_of_all.__cause__ is not None:
        error_of_all = error_of_all.__cause__
    raise error


def group_of_exceptions(x):
    """Raises a group of errors, nested.

    refused: ExceptionGroup: outside
    """
    group = ValueError("inside")
    for _ in range(200):
        group = ExceptionGroup("outside", [group])
    raise group


def surrogates(x):
    """Raises an error whose text cannot be encoded.

    refused: half a character
    """
    raise ValueError("\ud800\udfff\x00 half a character")


def stop_iteration(x):
    """Raises StopIteration.

    refused: StopIteration
    """
    raise StopIteration(softmax(x))


def warns_without_end(x):
    """Gives ten thousand warnings.

    contained
    """
    import warnings

    warnings.simplefilter("always")
    for number in range(1000):
        warnings.warn(f"number {number}", stacklevel=2)
    return softmax(x)


def breakpoint_left(x):
    """Leaves a breakpoint() in.

    refused: breakpoint
    """
    breakpoint()
    return softmax(x)


def waits_for_input(x):
    """Waits for a line of input.

    refused: EOFError
    """
    return input("number of columns? ")


def new_group(x):
    """Leaves the judge's process group for one of its own, and sleeps for ever.

    refused
    """
    with contextlib.suppress(OSError):  # in the sandbox it leads a session, which it cannot leave
        os.setsid() if os.getpid() != os.getpgid(0) else os.setpgid(0, os.getpgid(judge()))
    threading.Event().wait()


def child_holds_the_connection(x):
    """Ends, and leaves a child that has the connection open.

    refused
    """
    if os.fork() == 0:
        time.sleep(20)
        os._exit(0)
    os._exit(0)
