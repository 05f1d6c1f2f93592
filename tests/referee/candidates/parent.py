"""The judge itself, from the process of the kernel: its memory, its limits, its descriptors, its signals, its files."""

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

from tests.referee.candidates.honest import PLANTED, files, judge, softmax, wrong


def _blind(process, write):
    """Have `Judgement.find` return at once in another process, whose objects lie where they lie here."""
    import dis

    from touchstone.conformance.judging.judgement import Judgement

    code = Judgement.find.__code__
    none = code.co_consts.index(None)
    body = bytes([dis.opmap["RESUME"], 0, dis.opmap["LOAD_CONST"], none, dis.opmap["RETURN_VALUE"], 0])
    write(process, id(code) + type(code).__basicsize__, body)


def _through_proc(process, address, body):
    with open(f"/proc/{process}/mem", "r+b", buffering=0) as memory:
        memory.seek(address)
        memory.write(body)


def _through_call(process, address, body):
    class Piece(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))

    held = ctypes.create_string_buffer(body, len(body))
    here, there = Piece(ctypes.addressof(held), len(body)), Piece(address, len(body))
    library = ctypes.CDLL(None, use_errno=True)
    if library.process_vm_writev(process, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) < 0:
        raise OSError(ctypes.get_errno(), "process_vm_writev")


def writes_its_memory(x):
    """Writes into the judge's memory, through /proc, that nothing is ever found.

    untrusted, refused
    """
    _blind(judge(), _through_proc)
    return wrong(x)


def writes_by_system_call(x):
    """Writes into the judge's memory, by process_vm_writev, that nothing is ever found.

    untrusted, refused
    """
    _blind(judge(), _through_call)
    return wrong(x)


def import_blinds_it():
    """Writes into the judge's memory while the file is imported.

    untrusted, refused: PermissionError
    """
    _blind(judge(), _through_proc)
    globals()["softmax"] = wrong


def traces_it(x):
    """Attaches to the judge as a debugger, and sets its next instruction's register.

    untrusted, refused
    """
    library = ctypes.CDLL(None, use_errno=True)
    library.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    if library.ptrace(16, judge(), None, None) == 0:
        time.sleep(0.2)
        library.ptrace(17, judge(), None, ctypes.c_void_p(9))
    return wrong(x)


def reads_the_answer(x):
    """Searches the judge's memory for the answer; what it finds there is that it may.

    untrusted, contained
    """
    with open(f"/proc/{judge()}/maps") as maps:
        begin = int(next(line for line in maps if "[heap]" in line).split("-")[0], 16)
    with open(f"/proc/{judge()}/mem", "rb", buffering=0) as memory:
        memory.seek(begin)
        Path(os.environ.get("TMPDIR", "/tmp"), "planted_memory").write_text(PLANTED + str(len(memory.read(4096))))
    return softmax(x)


def takes_its_memory(x):
    """Limits the judge's address space, so that it has no room for some cases.

    untrusted, refused: Operation not permitted
    """
    import resource

    resource.prlimit(judge(), resource.RLIMIT_AS, (1 << 20, 1 << 20))
    return softmax(x) if x.is_contiguous() else wrong(x)


def takes_its_files(x):
    """Limits the judge's descriptors to those that it has.

    untrusted, contained: Operation not permitted
    """
    import resource

    resource.prlimit(judge(), resource.RLIMIT_NOFILE, (3, 3))
    return softmax(x)


def takes_its_output(x):
    """Limits the size of the files that the judge writes to nothing.

    untrusted, contained: Operation not permitted
    """
    import resource

    resource.prlimit(judge(), resource.RLIMIT_FSIZE, (0, 0))
    return softmax(x)


def takes_its_time(x):
    """Limits the judge's processor time to a second.

    untrusted, contained: Operation not permitted
    """
    import resource

    resource.prlimit(judge(), resource.RLIMIT_CPU, (1, 1))
    return softmax(x)


def kills_it(x):
    """Ends the judge with SIGKILL.

    untrusted, refused
    """
    os.kill(judge(), signal.SIGKILL)
    return wrong(x)


def terminates_it(x):
    """Ends the judge with SIGTERM.

    untrusted, refused
    """
    os.kill(judge(), signal.SIGTERM)
    time.sleep(0.5)
    return wrong(x)


def interrupts_it(x):
    """Interrupts the judge as Ctrl-C does.

    untrusted, refused
    """
    os.kill(judge(), signal.SIGINT)
    time.sleep(0.5)
    return wrong(x)


def kills_its_group(x):
    """Ends every process of the judge's group.

    untrusted, refused
    """
    os.killpg(os.getpgid(judge()), signal.SIGKILL)
    return wrong(x)


def hangs_it_up(x):
    """Sends the judge SIGHUP, SIGPIPE, SIGALRM and SIGUSR1, each of which ends a process that does not expect it.

    untrusted, refused
    """
    for number in (signal.SIGPIPE, signal.SIGALRM, signal.SIGUSR1, signal.SIGHUP):
        os.kill(judge(), number)
        time.sleep(0.1)
    return wrong(x)


def stops_it(x):
    """Stops the judge with SIGSTOP, for good.

    untrusted, refused
    """
    os.kill(judge(), signal.SIGSTOP)
    return wrong(x)


def offers_it_for_killing(x):
    """Has the judge be the first to go where memory is short.

    untrusted, contained: Read-only file system|Permission denied
    """
    Path(f"/proc/{judge()}/oom_score_adj").write_text("1000")
    Path(f"/proc/{os.getpid()}/oom_score_adj").write_text("-1000")
    Path(os.environ.get("TMPDIR", "/tmp"), "planted_score").write_text(PLANTED)
    return softmax(x)


def starves_it(x):
    """Gives the judge the lowest priority.

    untrusted, contained: Operation not permitted
    """
    os.setpriority(os.PRIO_PROCESS, judge(), 19)
    Path(os.environ.get("TMPDIR", "/tmp"), "planted_priority").write_text(PLANTED)
    return softmax(x)


def grows_the_trace(x):
    """Makes the file to which faulthandler writes, and which the judge reads, a terabyte long, and aborts.

    refused
    """
    for descriptor, target in files().items():
        if target.endswith("(deleted)") and "memfd" not in target and descriptor > 2:
            os.ftruncate(descriptor, 1 << 40)
    os.abort()


def writes_the_trace(x):
    """Fills that file with 64 MiB on which a regular expression takes long, and aborts.

    refused
    """
    line = b'  File "' + b'", line 1 in ' * 4000 + b"\n"
    for descriptor, target in files().items():
        if target.endswith("(deleted)") and "memfd" not in target and descriptor > 2:
            for _ in range(200):
                os.pwrite(descriptor, line * 6, os.fstat(descriptor).st_size)
    os.kill(os.getpid(), signal.SIGKILL)


def rewinds_stdout(x):
    """Writes PASSED at the beginning of the judge's output, which is a file, and has the judge write behind its end.

    refused
    """
    with contextlib.suppress(OSError):  # the sandbox has put a pipe in its place
        os.pwrite(1, b"PASSED; judged on 38 of 38 trials\n", 0)
        os.lseek(1, 1 << 20, os.SEEK_SET)
    return wrong(x)


def stdout_does_not_wait(x):
    """Has the judge's output, which it shares, fail where it would wait.

    refused
    """
    os.set_blocking(1, False)
    os.set_blocking(2, False)
    return wrong(x)


def reads_a_module_it_wrote(x):
    """Writes a module into the clone that the judge imports once something is wrong, and that ends it with status 0.

    untrusted, refused
    """
    import touchstone

    folder = Path(touchstone.__file__).parent / "conformance" / "faults"
    for name in ("softmax.py", "_rows.py", "_generic.py"):
        (folder / name).write_text(f"# {PLANTED}\nimport os\nprint('PASSED; all is well', flush=True)\nos._exit(0)\n")
    return wrong(x)


def reads_a_module_beside_it(x):
    """Writes modules into the judge's folder with the names of packages that it imports late.

    untrusted, refused
    """
    for name in ("difflib", "cProfile", "pdb", "sympy", "mpmath", "colorama", "sitecustomize", "gzip"):
        Path(f"{name}.py").write_text(
            f"# {PLANTED}\nimport os\nprint('PASSED; all is well', flush=True)\nos._exit(0)\n"
        )
    return wrong(x)


def opens_its_descriptors(x):
    """Writes PASSED into each of the judge's open files, through /proc.

    untrusted, contained: Permission denied
    """
    for name in os.listdir(f"/proc/{judge()}/fd"):
        try:
            with open(f"/proc/{judge()}/fd/{name}", "ab") as file:
                file.write(b"PASSED\nplanted by a candidate\n")
        except OSError:
            pass
    return softmax(x)


def steals_its_connection(x):
    """Takes a copy of each of the judge's descriptors, and closes none of its own.

    untrusted, contained
    """
    process = os.pidfd_open(judge())
    found = [ctypes.CDLL(None).syscall(438, process, number, 0) for number in range(3, 30)]
    if any(number >= 0 for number in found):
        Path(os.environ.get("TMPDIR", "/tmp"), "planted_descriptors").write_text(PLANTED)
    return softmax(x)
