"""Calls of the Linux kernel that Python has no function for, and the filter of those that a candidate may not make.

The filter is written here because there is no binding to be had: libseccomp's own is not on PyPI, and `pyseccomp` there
is of 2021 and needs the system's library. Numbers are those of the kernel's tables (unistd_64.h, asm-generic/unistd.h).
"""

import contextlib
import ctypes
import errno
import functools
import os
import platform
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Any

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWCGROUP, CLONE_NEWTIME = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x02000000, 0x00000080,
)  # fmt: skip
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_NOATIME, MS_NODIRATIME, MS_BIND, MS_MOVE, MS_REC = (
    1, 2, 4, 8, 32, 1024, 2048, 4096, 8192, 16384,
)  # fmt: skip
CLONE_THREAD = 0x00010000
MS_PRIVATE, MS_RELATIME = 1 << 18, 1 << 21

PR_SET_PDEATHSIG, PR_GET_DUMPABLE, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 3, 4, 22, 24
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 36, 37, 38, 47
_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_TSYNC = 1, 1
_SECCOMP_MODE_FILTER, _PR_CAP_AMBIENT_CLEAR_ALL, _CAPABILITY_VERSION_3, _CAP_SYS_ADMIN = 2, 4, 0x20080522, 21

_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

# name: number on x86_64, on aarch64
_NUMBERS = {
    "socket": (41, 198), "clone": (56, 220), "clone3": (435, 435), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kcmp": (312, 272), "pidfd_getfd": (438, 438), "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40),
    "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "open_by_handle_at": (304, 265), "quotactl": (179, 60),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "shmget": (29, 194), "semget": (64, 190),
    "msgget": (68, 186), "mq_open": (240, 180), "kexec_load": (246, 104), "init_module": (175, 105),
    "finit_module": (313, 273), "prlimit64": (302, 261), "connect": (42, 203),
}  # fmt: skip
_ABSENT = ("clone3", "memfd_secret")  # answered as a kernel without them does: the C library falls back to clone
_ABSENT_ON_CPU = ("memfd_create",)  # memory that no limit counts; CUDA may want it
_SPECIAL = ("socket", "clone", "prlimit64", "connect")
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_NEW_NAMESPACE = (
    CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWCGROUP
)
_STARTING = {"x86_64": (57, 58), "aarch64": ()}  # fork and vfork
_SECCOMP = {"x86_64": 317, "aarch64": 277}  # the number of seccomp(2)
_X32 = 0x40000000

_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06  # BPF opcodes
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _ERRNO, _END = 0x7FFF0000, 0x00050000, 0x80000000


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def prctl(option: int, value: int = 0) -> None:
    """Raises OSError."""
    assert _LIBC is not None
    _checked(_LIBC.prctl(option, ctypes.c_ulong(value), *map(ctypes.c_ulong, (0, 0, 0))), f"prctl({option})")


def dumpable() -> bool:
    """Whether other processes of this user may look into this one."""
    assert _LIBC is not None
    return _LIBC.prctl(PR_GET_DUMPABLE, *map(ctypes.c_ulong, (0, 0, 0, 0))) == 1


def is_subreaper() -> bool:
    """Whether orphans among the descendants become children of this process."""
    assert _LIBC is not None
    value = ctypes.c_int(0)
    _checked(_LIBC.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(value), *map(ctypes.c_ulong, (0, 0, 0))), "prctl")
    return bool(value.value)


def unshare(flags: int) -> None:
    """Raises OSError."""
    assert _LIBC is not None
    _checked(_LIBC.unshare(flags), f"unshare({flags:#x})")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Raises OSError."""
    assert _LIBC is not None
    texts = [os.fsencode(text) or None for text in (source, target, kind)]
    _checked(_LIBC.mount(*texts, ctypes.c_ulong(flags), os.fsencode(data) or None), f"mount {kind} on {target}")


def administers() -> bool:
    """Whether this process may make namespaces without one of users around them."""
    with open("/proc/self/status") as status:
        effective = next(line.split()[1] for line in status if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> _CAP_SYS_ADMIN & 1)


def forget_capabilities() -> None:
    """Take from what this process will execute whatever it could gain, as far as it is allowed to."""
    assert _LIBC is not None
    for capability in range(64):
        _LIBC.prctl(PR_CAPBSET_DROP, *map(ctypes.c_ulong, (capability, 0, 0, 0)))
    _LIBC.prctl(PR_CAP_AMBIENT, *map(ctypes.c_ulong, (_PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)))


def drop_capabilities() -> None:
    """Give up every capability that this process has. Raises OSError."""
    assert _LIBC is not None
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _checked(_LIBC.capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)())), "capset")


def filter_program(device: str, machine: str) -> bytes:
    """The filter for a child on a device, as BPF instructions. On the CPU there are no sockets but pairs; CUDA may
    have local ones, to which nobody answers. Raises OSError on an architecture whose numbers are not known."""
    column, program = _begun(machine)
    number = {name: numbers[column] for name, numbers in _NUMBERS.items()}
    absent = _ABSENT if device == "cuda" else _ABSENT + _ABSENT_ON_CPU
    families = (socket.AF_UNIX,) if device == "cuda" else ()
    forbidden = [name for name in _NUMBERS if name not in (*_SPECIAL, *_ABSENT, *_ABSENT_ON_CPU)]

    for name in absent:
        program += [(_EQUAL, 0, 1, number[name]), _error(errno.ENOSYS)]
    for name in forbidden:
        program += [(_EQUAL, 0, 1, number[name]), _error(errno.EPERM)]
    program += [(_EQUAL, 0, 1, number["connect"]), _error(errno.ECONNREFUSED)]
    body = [(_LOAD, 0, 0, _FIRST_ARGUMENT), (_ANY_BIT, 0, 1, _NEW_NAMESPACE), _error(errno.EPERM), _allow()]
    program += [(_EQUAL, 0, len(body), number["clone"]), *body]
    body = [(_LOAD, 0, 0, _FIRST_ARGUMENT)]
    for family in families:
        body += [(_EQUAL, 0, 1, family), _allow()]
    program += [(_EQUAL, 0, len(body) + 1, number["socket"]), *body, _error(errno.EACCES)]
    program += [(_EQUAL, 0, 3, number["prlimit64"]), (_LOAD, 0, 0, _FIRST_ARGUMENT), (_EQUAL, 1, 0, 0)]
    return _packed([*program, _error(errno.EPERM), _allow()])


def alone_program(machine: str) -> bytes:
    """The filter for a process that starts no other one. Raises OSError on an architecture whose numbers are not
    known."""
    column, program = _begun(machine)
    program += [(_EQUAL, 0, 1, _NUMBERS["clone3"][column]), _error(errno.ENOSYS)]
    for number in _STARTING[machine]:
        program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _END)]
    body = [(_LOAD, 0, 0, _FIRST_ARGUMENT), (_ANY_BIT, 1, 0, CLONE_THREAD), (_RETURN, 0, 0, _END), _allow()]
    return _packed([*program, (_EQUAL, 0, len(body), _NUMBERS["clone"][column]), *body, _allow()])


_Instruction = tuple[int, int, int, int]


def _begun(machine: str) -> tuple[int, list[_Instruction]]:
    """The column of `_NUMBERS` for a machine, and how a filter begins: with the number of a call of this
    architecture."""
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"the numbers of system calls on {machine} are not known here")
    column, architecture = _ARCHITECTURES[machine]
    program = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture), _error(errno.ENOSYS)]
    return column, [*program, (_LOAD, 0, 0, _NUMBER), (_AT_LEAST, 0, 1, _X32), _error(errno.ENOSYS)]


def _packed(program: Sequence[_Instruction]) -> bytes:
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def _error(number: int) -> _Instruction:
    return (_RETURN, 0, 0, _ERRNO | number)


def _allow() -> _Instruction:
    return (_RETURN, 0, 0, _ALLOW)


def install_filter(device: str) -> None:
    """From now on, for this process and all that it starts; needs no_new_privs. Raises OSError."""
    assert _LIBC is not None
    with _filter(filter_program(device, platform.machine())) as head:
        arguments = (ctypes.c_ulong(_SECCOMP_MODE_FILTER), head, ctypes.c_ulong(0), ctypes.c_ulong(0))
        _checked(_LIBC.prctl(PR_SET_SECCOMP, *arguments), "prctl(PR_SET_SECCOMP)")


@contextlib.contextmanager
def _filter(program: bytes) -> Iterator[Any]:
    """A filter as the system takes it."""
    held = ctypes.create_string_buffer(program)
    yield ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(held)))


def stay_alone() -> None:
    """From now on this process, whichever of its threads, ends by SIGSYS when it starts another one; threads it may
    start. Raises OSError."""
    assert _LIBC is not None
    machine = platform.machine()
    program = alone_program(machine)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    with _filter(program) as head:
        what = (ctypes.c_uint(_SECCOMP_SET_MODE_FILTER), ctypes.c_uint(_SECCOMP_FILTER_FLAG_TSYNC), head)
        _checked(_LIBC.syscall(ctypes.c_long(_SECCOMP[machine]), *what), "seccomp")


def filters(pid: int | str = "self") -> int | None:
    """How many filters of system calls a process has; None where that is not told."""
    with open(f"/proc/{pid}/status") as status:
        return next((int(line.split()[1]) for line in status if line.startswith("Seccomp_filters:")), None)


@functools.cache
def can_stay_alone() -> bool:
    """Whether `stay_alone` works on this machine, and can be seen from elsewhere. Tried in a process of its own."""
    if filters() is None:
        return False
    child = os.fork()
    if child == 0:
        status = 1
        try:
            before = filters()
            stay_alone()
            status = int(filters() == before)
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def close_others(keep: Sequence[int]) -> None:
    """Close every descriptor of this process but these."""
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in keep:
            with contextlib.suppress(OSError):
                os.close(number)
