"""The filter of system calls, run as the kernel runs it; and what is asked of the kernel."""

import ctypes
import errno
import os
import signal
import socket
import struct
import sys
import threading

import pytest

if sys.platform != "linux":
    pytest.skip("a filter of Linux", allow_module_level=True)

from tests.processes import in_a_fork
from touchstone.conformance.isolation.sandbox import kernel

X86, ARM = 0xC000003E, 0xC00000B7
ALLOWED, ENDED = "allowed", "ended"
# numbers of unistd_64.h and asm-generic/unistd.h: (name, on x86_64, on aarch64)
READ, WRITE, OPENAT, EXECVE = (0, 63), (1, 64), (257, 56), (59, 221)
SOCKET, SOCKETPAIR, CONNECT, CLONE, PRLIMIT, MEMFD = (41, 198), (53, 199), (42, 203), (56, 220), (302, 261), (319, 279)
FORK, VFORK = (57, None), (58, None)
PTRACE, UNSHARE, MOUNT, BPF, CLONE3, SECRET = (101, 117), (272, 97), (165, 40), (321, 280), (435, 435), (447, 447)


def verdict(program, number, argument=0, architecture=X86):
    """What a filter says of a call: the error's number, or that it is allowed. See struct seccomp_data."""
    data = struct.pack("<IIQQ", number, architecture, 0, argument & (2**64 - 1))
    code = [struct.unpack_from("HBBI", program, at) for at in range(0, len(program), 8)]
    at = accumulator = 0
    for _ in range(1000):
        operation, yes, no, value = code[at]
        if operation == 0x20:  # a word is loaded
            (accumulator,) = struct.unpack_from("<I", data, value)
            at += 1
        elif operation == 0x06:
            return {0x7FFF0000: ALLOWED, 0x80000000: ENDED}.get(value, value & 0xFFFF)
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[operation]
            at += 1 + (yes if holds else no)
    raise AssertionError("no end")


@pytest.mark.parametrize(("machine", "column", "architecture"), [("x86_64", 0, X86), ("aarch64", 1, ARM)])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_which_calls_a_candidate_may_make(machine, column, architecture, device):
    program = kernel.filter_program(device, machine)

    def asked(call, argument=0, architecture=architecture):
        return verdict(program, call[column], argument, architecture)

    for call in (READ, WRITE, OPENAT, EXECVE, SOCKETPAIR):
        assert asked(call) == ALLOWED
        assert asked(call, architecture=X86 + ARM - architecture) == errno.ENOSYS
    for call in (PTRACE, UNSHARE, MOUNT, BPF):
        assert asked(call) == errno.EPERM
    for call in (CLONE3, SECRET):
        assert asked(call) == errno.ENOSYS  # as of a kernel without them
    assert asked(MEMFD) == (ALLOWED if device == "cuda" else errno.ENOSYS)
    assert asked(CONNECT) == errno.ECONNREFUSED
    assert asked(SOCKET, socket.AF_INET) == asked(SOCKET, socket.AF_NETLINK) == errno.EACCES
    assert asked(SOCKET, socket.AF_UNIX) == (ALLOWED if device == "cuda" else errno.EACCES)
    assert asked(CLONE, signal.SIGCHLD) == ALLOWED
    for namespace in (kernel.CLONE_NEWNS, kernel.CLONE_NEWUSER, kernel.CLONE_NEWPID, kernel.CLONE_NEWNET, 0x02000000):
        assert asked(CLONE, namespace | signal.SIGCHLD) == errno.EPERM
    assert asked(PRLIMIT, 0) == ALLOWED and asked(PRLIMIT, 1234) == errno.EPERM  # of itself alone
    if machine == "x86_64":
        assert verdict(program, READ[0] + 0x40000000) == errno.ENOSYS  # the other numbers of the same calls


def test_every_call_that_is_named_has_its_verdict():
    """Each by its own number: none of them is skipped by a jump too far."""
    for machine, (column, architecture) in {"x86_64": (0, X86), "aarch64": (1, ARM)}.items():
        program = kernel.filter_program("cpu", machine)
        for name, numbers in kernel._NUMBERS.items():
            expected = errno.ENOSYS if name in ("clone3", "memfd_secret", "memfd_create") else errno.EPERM
            expected = {
                "socket": errno.EACCES,
                "connect": errno.ECONNREFUSED,
                "clone": ALLOWED,
                "prlimit64": ALLOWED,
            }.get(name, expected)
            assert verdict(program, numbers[column], 0, architecture) == expected, name
            assert verdict(program, 1000 + numbers[column], 0, architecture) == ALLOWED


@pytest.mark.parametrize(("machine", "column", "architecture"), [("x86_64", 0, X86), ("aarch64", 1, ARM)])
def test_which_calls_a_process_that_starts_no_other_may_make(machine, column, architecture):
    program = kernel.alone_program(machine)

    def asked(call, argument=0, architecture=architecture):
        return verdict(program, call[column], argument, architecture)

    for call in (READ, WRITE, OPENAT, EXECVE, SOCKETPAIR, SOCKET, MEMFD, PRLIMIT, (0x3FFFFFFF, 0x3FFFFFFF)):
        assert asked(call) == ALLOWED
        assert asked(call, architecture=X86 + ARM - architecture) == errno.ENOSYS
    assert asked(CLONE3) == errno.ENOSYS  # whose flags lie in memory: the C library falls back to clone
    assert asked(CLONE, signal.SIGCHLD) == asked(CLONE) == asked(CLONE, kernel.CLONE_NEWUSER) == ENDED
    assert asked(CLONE, kernel.CLONE_THREAD) == asked(CLONE, 0x3D0F00) == ALLOWED  # as pthread_create asks for it
    assert asked((0x40000000, 0x40000000)) == errno.ENOSYS  # the other numbers of the same calls
    if machine == "x86_64":
        assert asked(FORK) == asked(VFORK) == ENDED


def test_an_unknown_machine_has_no_filter():
    for program in (lambda machine: kernel.filter_program("cpu", machine), kernel.alone_program):
        with pytest.raises(OSError, match="the numbers of system calls on vax are not known here") as raised:
            program("vax")
        assert raised.value.errno == errno.ENOSYS


@pytest.mark.skipif(not kernel.can_stay_alone(), reason="this machine has no filters of system calls")
def test_a_process_that_stays_alone_starts_threads_and_nothing_else(tmp_path):
    def alone():
        before, ran = kernel.filters(), []
        started = threading.Event()
        other = threading.Thread(target=lambda: started.wait(60) and ran.append(kernel.filters("thread-self")))
        other.start()
        kernel.stay_alone()
        started.set()
        other.join()
        later = threading.Thread(target=lambda: ran.append("later"))
        later.start()
        later.join()
        clone3 = ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(CLONE3[0]), None, ctypes.c_ulong(0))
        return before, kernel.filters(), ran, clone3, ctypes.get_errno()

    before, after, ran, clone3, error = in_a_fork(alone, tmp_path)
    assert after == before + 1 and ran == [after, "later"]  # a thread that was there has it too
    assert (clone3, error) == (-1, errno.ENOSYS)
    child = os.fork()
    if child == 0:
        kernel.stay_alone()
        os.fork()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSYS


@pytest.mark.parametrize(
    ("stays", "filters", "can"),
    [
        (None, [2, 2, 3], True),
        (None, [2, 2, 2], False),  # nothing is seen of it
        (None, [None], False),
        (OSError("no"), [2, 2, 3], False),
    ],
)
def test_whether_a_process_can_stay_alone_here(monkeypatch, capfd, stays, filters, can):
    """The parent asks once, the child before and after."""
    told, child = list(filters[1:]), os.getpid()

    def stay_alone():
        if stays is not None:
            raise stays

    monkeypatch.setattr(kernel, "filters", lambda: filters[0] if os.getpid() == child else told.pop(0))
    monkeypatch.setattr(kernel, "stay_alone", stay_alone)
    assert kernel.can_stay_alone.__wrapped__() is can


def test_errors_of_the_kernel_are_raised(tmp_path):
    with pytest.raises(OSError, match=r"mount tmpfs on .*nowhere: "):
        kernel.mount("tmpfs", str(tmp_path / "nowhere"), "tmpfs")
    with pytest.raises(OSError, match=r"prctl\(12345\): ") as raised:
        kernel.prctl(12345)
    assert raised.value.errno == errno.EINVAL
    with pytest.raises(OSError, match=r"unshare\(0x7fffffff\): "):
        kernel.unshare(0x7FFFFFFF)


def test_whether_other_processes_may_look_into_this_one(tmp_path):
    def asked():
        found = []
        for value in (0, 1):
            kernel.prctl(kernel.PR_SET_DUMPABLE, value)
            found.append(kernel.dumpable())
        for value in (1, 0):
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, value)
            found.append(kernel.is_subreaper())
        return found

    assert in_a_fork(asked, tmp_path) == [False, True, True, False]


def test_capabilities_are_given_up(tmp_path):
    def asked():
        before = kernel.administers()
        kernel.forget_capabilities()
        kernel.drop_capabilities()
        with open("/proc/self/status") as status:
            sets = {line.split()[0]: int(line.split()[1], 16) for line in status if line.startswith("Cap")}
        return before, kernel.administers(), sets["CapEff:"], sets["CapPrm:"], sets["CapAmb:"]

    before, after, *left = in_a_fork(asked, tmp_path)
    assert not after and left == [0, 0, 0]
    if os.geteuid() == 0 and before:
        bounding = in_a_fork(_bounding, tmp_path)
        assert bounding == 0  # nothing that it executes gains any


def _bounding():
    kernel.forget_capabilities()
    with open("/proc/self/status") as status:
        return next(int(line.split()[1], 16) for line in status if line.startswith("CapBnd:"))


def test_descriptors_are_closed_but_for_those_that_are_kept(tmp_path):
    def asked():
        kept, other = (os.open(os.devnull, os.O_RDONLY) for _ in range(2))
        standing = [int(name) for name in os.listdir("/proc/self/fd") if int(name) != other]
        kernel.close_others(standing)
        found = []
        for number in (kept, other):
            try:
                os.fstat(number)
                found.append(True)
            except OSError:
                found.append(False)
        return found

    assert in_a_fork(asked, tmp_path) == [True, False]
