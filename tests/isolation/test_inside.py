"""The child's end of a sandbox, by its parts: what of its output is kept, how its end is passed on, what it is limited
by."""

import errno
import faulthandler
import json
import mmap
import os
import resource
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

if sys.platform != "linux":
    pytest.skip("confining a process takes Linux", allow_module_level=True)

import psutil

from tests.processes import in_a_fork
from touchstone.conformance.isolation.sandbox import inside
from touchstone.conformance.isolation.sandbox.inside import Failed
from touchstone.conformance.isolation.sandbox.settings import ALL, Limits, Measure, Settings


@pytest.fixture
def settings(tmp_path):
    """Of a child in a folder of this test; with the pipe and the file that the judge reads."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    with open(tmp_path / "output", "w+b") as output:

        def of(**about):
            plain = dict(
                folder=str(tmp_path),
                measures=ALL,
                limits=Limits(output=10),
                device="cpu",
                readable=(),
                covered=(),
                user=None,
                group=None,
                environment={},
                keep=(),
                status=write,
                output=output.fileno(),
            )
            return Settings(**{**plain, **about})

        of.said = lambda: [json.loads(line) for line in _all_of(read).splitlines()]
        of.kept = lambda: (tmp_path / "output").read_bytes()
        yield of
    os.close(read)
    os.close(write)


def _all_of(descriptor):
    try:
        return os.read(descriptor, 1 << 16)
    except BlockingIOError:
        return b""


def test_what_is_printed_is_passed_on_up_to_the_limit(settings):
    made = settings()
    printed, write = os.pipe()
    os.set_blocking(printed, False)
    assert inside._pass_on(made, printed, 10) == (10, True)
    os.write(write, b"abcd")
    assert inside._pass_on(made, printed, 10) == (6, True) and settings.kept() == b"abcd"
    os.write(write, b"efghijkl")
    assert inside._pass_on(made, printed, 6) == (-1, True) and settings.kept() == b"abcdefghij"
    assert settings.said() == [{"cut": 10}]
    os.write(write, b"m")
    assert inside._pass_on(made, printed, -1) == (-1, True) and settings.said() == []  # it is said once
    assert inside._pass_on(made, printed, 0) == (0, True)
    os.write(write, b"n")
    assert inside._pass_on(made, printed, 0) == (-1, True) and settings.said() == [{"cut": 10}]
    os.close(write)
    assert inside._pass_on(made, printed, 3) == (3, False) and settings.kept() == b"abcdefghij"
    os.close(printed)


def test_exactly_what_is_allowed_is_not_cut(settings):
    printed, write = os.pipe()
    os.write(write, b"0123456789")
    os.close(write)
    assert inside._pass_on(settings(), printed, 10, everything=True) == (0, False)
    assert settings.kept() == b"0123456789" and settings.said() == []
    os.close(printed)


@pytest.mark.parametrize("error", [OSError("no"), ValueError("no"), ImportError("no")])
def test_what_fails_is_the_fault_of_a_measure(error):
    with pytest.raises(Failed, match="^no$") as failed, inside._having(Measure.LIMITS):
        raise error
    assert failed.value.measure is Measure.LIMITS and failed.value.reason == "no"
    with pytest.raises(KeyError), inside._having(Measure.LIMITS):
        raise KeyError("x")


def test_who_cannot_be_confined_says_so_and_runs_nothing(settings, monkeypatch):
    for error, told in (
        (Failed(Measure.FILES, "no mount"), {"failed": "files", "reason": "no mount"}),
        (RuntimeError(), {"failed": None, "reason": "RuntimeError()"}),
    ):

        def confine(settings, error=error):
            raise error

        monkeypatch.setattr(inside, "_confine", confine)
        child = os.fork()
        if child == 0:
            inside.enter(settings())
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 97
        assert settings.said() == [told]


def ended_like(status):
    child = os.fork()
    if child == 0:
        inside._end_like(status)
    return os.waitpid(child, 0)[1]


def test_a_supervisor_ends_as_the_candidate_did():
    for code in (0, 7, 255):
        assert os.waitstatus_to_exitcode(ended_like(code << 8)) == code
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV):
        assert os.waitstatus_to_exitcode(ended_like(int(number))) == -number


def test_a_supervisor_leaves_no_core_of_its_own(tmp_path, monkeypatch):
    def ends_like_a_crash():
        seen = []
        resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20))
        with monkeypatch.context() as patched:
            patched.setattr(inside.os, "kill", lambda *which: seen.append(resource.getrlimit(resource.RLIMIT_CORE)))
            patched.setattr(inside.os, "_exit", seen.append)
            inside._end_like(int(signal.SIGSEGV))
        return seen

    assert in_a_fork(ends_like_a_crash, tmp_path) == [[0, 0], 97]


@pytest.mark.parametrize(
    ("measure", "fails"), [(Measure.LANDLOCK, "_landlock"), (Measure.LIMITS, "_limit"), (Measure.SYSTEM_CALLS, None)]
)
def test_what_cannot_be_restricted_is_the_fault_of_a_measure(settings, monkeypatch, tmp_path, measure, fails):
    def fail(*given):
        raise OSError("not here")

    monkeypatch.setattr(*((inside, fails) if fails else (inside.kernel, "install_filter")), fail)

    def restricted():
        try:
            inside._restrict(settings(measures=frozenset({measure})), os.dup(1), 0)
        except Failed as failed:
            return [failed.measure.value, failed.reason]

    assert in_a_fork(restricted, tmp_path) == [measure.value, "not here"]


def test_init_reaps_until_the_candidate_has_ended_and_passes_on_who_asks_for_that():
    read, write = os.pipe()
    init = os.fork()
    if init == 0:
        if os.fork() == 0:
            os._exit(3)  # of another
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        inside._be_init(child, write)
    os.close(write)
    until = time.monotonic() + 10
    while not _caught(init) >> signal.SIGTERM - 1 & 1 and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(init, signal.SIGTERM)
    assert os.waitpid(init, 0)[1] == 0 and os.read(read, 16) == str(int(signal.SIGTERM)).encode()
    os.close(read)


def _caught(pid):
    """The signals that a process handles, as bits."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))


def test_an_end_is_mirrored_from_what_init_says():
    def mirrored(status, said):
        read, write = os.pipe()
        os.write(write, said)
        os.close(write)
        child = os.fork()
        if child == 0:
            inside._mirror(status, read)
        os.close(read)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert mirrored(0, str(5 << 8).encode()) == 5 and mirrored(3 << 8, b"") == 3
    assert mirrored(0, b"9") == -9
    assert mirrored(int(signal.SIGKILL), str(5 << 8).encode()) == -signal.SIGKILL  # init itself was killed


def test_all_that_a_process_has_started_is_ended():
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            os.write(write, b"x")
            time.sleep(60)
        time.sleep(60)
        os._exit(0)
    os.read(read, 1)
    process = psutil.Process(child)
    below = process.children(recursive=True)
    assert len(below) == 1 and inside.end_tree(process) == 1
    until = time.monotonic() + 10
    while below[0].is_running() and below[0].status() != psutil.STATUS_ZOMBIE and time.monotonic() < until:
        time.sleep(0.01)
    assert time.monotonic() < until
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for descriptor in (read, write):
        os.close(descriptor)


@pytest.mark.parametrize(
    ("about", "administers", "counts"),
    [
        ({}, True, True),
        ({"user": 61184}, True, False),  # nobody else is that user
        ({"measures": ALL - {Measure.LIMITS}}, True, False),
        ({}, False, False),  # in a namespace of users
        ({"measures": frozenset({Measure.LIMITS, Measure.PROCESSES})}, False, False),
        ({"measures": frozenset({Measure.LIMITS, Measure.FILES})}, False, False),
        ({"measures": frozenset({Measure.LIMITS, Measure.NETWORK})}, False, False),
        ({"measures": frozenset({Measure.LIMITS, Measure.SYSTEM_CALLS})}, False, True),
        ({"measures": frozenset({Measure.LIMITS})}, False, True),
    ],
)
def test_whose_threads_a_limit_counts(settings, monkeypatch, about, administers, counts):
    monkeypatch.setattr(inside.kernel, "administers", lambda: administers)
    me, other = os.getuid(), os.getuid() + 1
    found = [(me, 3), (other, 100), (me, 4), (None, 50), (me, None)]
    processes = [
        SimpleNamespace(info={"uids": None if user is None else SimpleNamespace(real=user), "num_threads": threads})
        for user, threads in found
    ]
    monkeypatch.setattr(inside.psutil, "process_iter", lambda names: processes)
    assert inside._tasks_of(settings(**about)) == (7 if counts else 0)


def test_the_limits_of_a_candidate(settings, tmp_path):
    limits = Limits(memory=1 << 40, processes=500, open_files=99, file=12345)

    def limited(device):
        own = inside._private_memory()
        inside._limit(settings(limits=limits, device=device), 11)
        names = ("CORE", "MSGQUEUE", "FSIZE", "NOFILE", "NPROC", "STACK", "DATA")
        return {"own": own} | {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0] for name in names}

    most = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1] for name in ("NPROC", "STACK", "DATA")}
    least = lambda name, value: value if most[name] == resource.RLIM_INFINITY else min(value, most[name])  # noqa: E731
    found = in_a_fork(lambda: limited("cpu"), tmp_path)
    assert found["CORE"] == found["MSGQUEUE"] == 0
    assert (found["FSIZE"], found["NOFILE"]) == (12345, 99)
    assert found["NPROC"] == least("NPROC", 511) and found["STACK"] == least("STACK", 64 << 20)
    if most["DATA"] == resource.RLIM_INFINITY:
        assert 0 <= found["DATA"] - (1 << 40) - found["own"] < 1 << 26  # beyond what it has already
        assert in_a_fork(lambda: limited("cuda"), tmp_path)["DATA"] == resource.RLIM_INFINITY


def test_private_memory_grows_with_what_is_mapped():
    before = inside._private_memory()
    held = mmap.mmap(-1, 1 << 26, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # of malloc's, some may be there already
    assert (1 << 25) < inside._private_memory() - before < (1 << 27)
    held.close()


def test_folders_that_variables_name(settings, tmp_path):
    home = settings().home
    made = settings(environment={"HOME": home, "TMPDIR": os.path.join(home, "tmp"), "PATH": "/nowhere/bin"})
    inside._make_folders(made)
    inside._make_folders(made)
    assert (tmp_path / "home" / "tmp").is_dir() and not os.path.exists("/nowhere")


def test_what_a_process_forgets(settings):
    kept = [os.pipe() for _ in range(2)]
    made = settings(keep=kept[1])
    inside._forget(made, kept[0][0], keep=True)
    assert [_is_open(each) for pair in kept for each in pair] == [False, True, True, True]
    inside._forget(made, kept[0][0], kept[0][1])
    assert not any(_is_open(each) for pair in kept for each in pair)


def _is_open(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_a_user_takes_more_than_a_namespace_of_users(settings):
    with pytest.raises(Failed, match="takes CAP_SYS_ADMIN beside namespaces") as failed:
        inside._separate(settings(user=61184, measures=frozenset()), within=True)
    assert failed.value.measure is Measure.USER


def test_without_a_view_of_its_own_a_user_has_to_be_able_to_read(settings, tmp_path):
    (tmp_path / "closed").mkdir(mode=0o700)
    made = settings(user=61184, measures=frozenset(), readable=(str(tmp_path / "closed"), str(tmp_path / "nowhere")))
    with pytest.raises(Failed, match="other users may not read") as failed:
        inside._separate(made, within=False)
    assert failed.value.measure is Measure.USER
    inside._separate(
        settings(user=61184, measures=frozenset(), readable=("/", str(tmp_path / "nowhere"))), within=False
    )
    inside._separate(settings(measures=frozenset(), readable=(str(tmp_path / "closed"),)), within=False)


DONE_BY = {
    "unshare": inside.kernel,
    "detach": inside.mounts,
    "own_proc": inside.mounts,
    "need_devices": inside.mounts,
    "reveal": inside.mounts,
    "confine": inside.mounts,
}
FILES, PROCESSES, NETWORK = Measure.FILES, Measure.PROCESSES, Measure.NETWORK


def separated(settings, monkeypatch, *measures, fails=None, **about):
    """What is done to separate a child with these measures, in turn; and whose fault it is that one step fails."""
    done = []

    def step(name):
        def do(*given):
            done.append(f"{name} {given[0]:#x}" if name == "unshare" else name)
            if done[-1] == fails:
                raise OSError("no")

        return do

    for name, module in DONE_BY.items():
        monkeypatch.setattr(module, name, step(name))
    try:
        inside._separate(settings(measures=frozenset(measures), **about), within=False)
    except Failed as failed:
        return failed.measure
    return done


MOUNTS, IPC, NET = (
    f"unshare {getattr(inside.kernel, name):#x}" for name in ("CLONE_NEWNS", "CLONE_NEWIPC", "CLONE_NEWNET")
)


@pytest.mark.parametrize(
    ("measures", "about", "steps"),
    [
        ([], {}, []),
        ([FILES], {}, [MOUNTS, "detach", "confine"]),  # never in the judge's own namespace
        ([PROCESSES], {}, [MOUNTS, "detach", "own_proc", IPC]),
        ([NETWORK], {}, [NET]),
        ([FILES, PROCESSES, NETWORK], {}, [MOUNTS, "detach", "own_proc", IPC, "confine", NET]),
        ([FILES], {"user": 61184}, [MOUNTS, "detach", "need_devices", "reveal", "confine"]),
        ([NETWORK], {"user": 61184}, ["need_devices", NET]),
    ],
)
def test_what_a_child_has_of_its_own(settings, monkeypatch, measures, about, steps):
    assert separated(settings, monkeypatch, *measures, **about) == steps


@pytest.mark.parametrize(
    ("fails", "measures", "fault"),
    [
        (MOUNTS, [FILES], FILES),
        (MOUNTS, [FILES, PROCESSES], PROCESSES),
        ("detach", [FILES], FILES),
        ("own_proc", [FILES, PROCESSES], PROCESSES),
        (IPC, [FILES, PROCESSES], PROCESSES),
        ("need_devices", [FILES], Measure.USER),
        ("reveal", [FILES], Measure.USER),
        ("confine", [FILES, PROCESSES], FILES),
        (NET, [FILES, PROCESSES, NETWORK], NETWORK),
    ],
)
def test_what_a_child_cannot_have_of_its_own_is_the_fault_of_a_measure(settings, monkeypatch, fails, measures, fault):
    assert separated(settings, monkeypatch, *measures, fails=fails, user=61184) is fault


@pytest.mark.parametrize("user", [None, 61184])
def test_all_below_a_supervisor_is_ended(settings, monkeypatch, tmp_path, user):
    """Its children, what they have started, and every process of a user that is the child's alone."""
    ended = []
    monkeypatch.setattr(inside, "end_user", ended.append)

    def ends():
        inside.kernel.prctl(inside.kernel.PR_SET_CHILD_SUBREAPER, 1)
        read, write = os.pipe()
        for _ in range(2):
            if os.fork() == 0:
                if os.fork() == 0:
                    os.write(write, b"x")
                time.sleep(60)
        while len(psutil.Process().children(recursive=True)) < 4:
            os.read(read, 1)
        inside.end_all(settings(user=user))
        return ended, psutil.Process().children(recursive=True)

    began = time.monotonic()
    assert in_a_fork(ends, tmp_path) == [[] if user is None else [user], []]
    assert time.monotonic() - began < 30


def test_a_supervisor_only_waits_and_passes_on_who_asks_for_an_end(tmp_path):
    """Nothing of what it has from the judge is put away in it."""
    gone = []

    class Kept:
        def __init__(self):
            self.itself = self

        def __del__(self):
            gone.append(1)

    def supervises():
        faulthandler.enable()
        ended = []
        for number in (signal.SIGABRT, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            inside._supervise(child)
            os.kill(os.getpid(), number)
            ended.append(os.WTERMSIG(os.waitpid(child, 0)[1]) == number)
        Kept()
        made = [[] for _ in range(50_000)]
        return ended, gone and len(made), faulthandler.is_enabled()

    assert in_a_fork(supervises, tmp_path) == [[True] * 3, [], False]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("measures", [[], [FILES]])
def test_what_landlock_leaves(settings, tmp_path, device, measures):
    """Reading everywhere; writing to a folder of its own, to devices that take it, and to what is its own otherwise."""
    if not pytest.importorskip("landlockpy").supported():
        pytest.skip("the kernel does not have it")
    made = settings(device=device, measures=frozenset(measures))
    os.makedirs(made.home)
    (tmp_path / "kept").write_text("x")
    judge, shared = os.getpid(), f"/dev/shm/of-a-test-{os.getpid()}"
    deeds = {
        "read": lambda: open(__file__).close(),
        "list": lambda: os.listdir(tmp_path),
        "execute": lambda: subprocess.run(["true"], check=True),
        "write at home": lambda: open(f"{made.home}/file", "w").close(),
        "make a folder at home": lambda: os.mkdir(f"{made.home}/folder"),
        "remove at home": lambda: os.unlink(f"{made.home}/file"),
        "write elsewhere": lambda: open(tmp_path / "other", "w").close(),
        "append elsewhere": lambda: open(tmp_path / "kept", "a").close(),
        "cut elsewhere": lambda: os.truncate(tmp_path / "kept", 0),
        "remove elsewhere": lambda: os.unlink(tmp_path / "kept"),
        "write to a device": lambda: open("/dev/null", "w").close(),
        "control a device": lambda: termios.tcgetattr(null),
        "read a device": lambda: os.read(os.open("/dev/urandom", os.O_RDONLY), 1),
        "share memory": lambda: open(shared, "w").close(),
        "write to /proc": lambda: open("/proc/self/comm", "w").close(),
        "signal its judge": lambda: os.kill(judge, 0),
        "gain privileges": lambda: Path("/proc/self/status").read_text().index("NoNewPrivs:\t0"),
    }

    def does():
        nonlocal null
        inside._landlock(made)
        null, found = os.open("/dev/null", os.O_RDWR), []
        for name, deed in deeds.items():
            try:
                deed()
                found.append(name)
            except PermissionError:
                pass
            except (termios.error, ValueError) as error:
                found += [name] * (error.args[0] == errno.ENOTTY)
        return found

    null = None
    try:
        found = in_a_fork(does, tmp_path)
    finally:
        Path(shared).unlink(missing_ok=True)
    may = {
        "read", "list", "execute", "write at home", "make a folder at home", "remove at home", "write to a device",
        "control a device", "read a device",
    }  # fmt: skip
    may |= {"share memory"} if measures else set()
    assert set(found) == may | ({"write to /proc"} if device == "cuda" else set())


def relayed(settings, tmp_path, candidate, *, left=None, **about):
    """How a supervisor says that a candidate ended, which has a pipe to print to; `left`: with that done before."""

    def supervises():
        made = settings(**about) if left is None else left()
        printed, print_to = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(printed)
            candidate(print_to)
            os._exit(0)
        os.close(print_to)
        began = time.monotonic()
        status = inside._relay(made, child, printed)
        return status, time.monotonic() - began

    return in_a_fork(supervises, tmp_path)


def test_a_supervisor_keeps_what_is_printed_until_the_candidate_ends(settings, tmp_path):
    def prints(print_to):
        for text in (b"a" * 100_000, b"b" * 50_000):
            os.write(print_to, text)
        os._exit(3)

    status, _ = relayed(settings, tmp_path, prints, limits=Limits(output=1 << 20))
    assert os.waitstatus_to_exitcode(status) == 3 and settings.said() == []
    assert settings.kept() == b"a" * 100_000 + b"b" * 50_000


def test_a_candidate_that_prints_no_more_goes_on(settings, tmp_path):
    def closes(print_to):
        os.close(print_to)
        time.sleep(0.3)
        os._exit(5)

    status, took = relayed(settings, tmp_path, closes, limits=Limits(seconds=60))
    assert os.waitstatus_to_exitcode(status) == 5 and took >= 0.3 and settings.said() == []


def test_a_candidate_is_killed_at_its_deadline(settings, tmp_path):
    """However much it prints; what is left in the pipe is kept."""

    def goes_on(print_to):
        os.write(print_to, b"begun")
        while True:
            time.sleep(0.05)
            os.write(print_to, b".")

    status, took = relayed(settings, tmp_path, goes_on, limits=Limits(seconds=0.5, output=9))
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL and 0.5 <= took < 30
    assert settings.kept().startswith(b"begun.") and settings.said() == [{"cut": 9}, {"late": 0.5}]


@pytest.mark.parametrize("measures", [[], [PROCESSES]])
def test_once_its_judge_is_gone_a_supervisor_clears_up(settings, tmp_path, monkeypatch, measures):
    ended = tmp_path / "ended"
    monkeypatch.setattr(inside, "end_all", lambda settings: ended.touch())
    folder = tmp_path / "folder"
    (folder / "home").mkdir(parents=True)

    def left():
        read, write = os.pipe()
        os.close(read)
        return settings(status=write, folder=str(folder), measures=frozenset(measures), limits=Limits(seconds=None))

    status, _ = relayed(settings, tmp_path, lambda print_to: time.sleep(60), left=left)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL and not folder.exists()
    assert ended.exists() == (not measures)  # init's end ends the rest


def test_streams_are_those_of_the_descriptors(tmp_path):
    """Whatever a test or a notebook has put there; a line is written as it ends, and none is refused."""

    def prints():
        read, write = os.pipe()
        os.write(write, b"asked\n")
        os.close(write)
        os.dup2(read, 0)
        kept = os.dup(1)
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(tmp_path / name, os.O_CREAT | os.O_RDWR), number)
        sys.stdin = sys.stdout = sys.stderr = None
        inside._fresh_streams()
        print("a \ud800\nrest", end="")
        print("b \ud800", file=sys.stderr)
        found = [(tmp_path / name).read_text() for name in ("out", "err")]
        asked = sys.stdin.read()
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            stream.close()
        for number in (0, 1, 2):
            os.fstat(number)  # it is not the stream's to close
        sys.stdout, sys.stderr = os.fdopen(kept, "w"), open(os.devnull, "w")  # noqa: SIM115
        return asked, found

    asked, (out, err) = in_a_fork(prints, tmp_path)
    assert asked == "asked\n" and err == "b \\ud800\n" and out in ("a \\ud800\n", "a \\ud800\nrest")


@pytest.mark.parametrize("measures", [[Measure.LANDLOCK], [FILES]])
@pytest.mark.parametrize("there", [True, False])
def test_what_landlock_takes_is_imported_while_it_can_be_read(settings, monkeypatch, measures, there):
    """Before anything else; a machine that lacks it has no such measure."""
    seen = []

    def next_step(keep):
        raise KeyError(seen)

    monkeypatch.setattr(inside.kernel, "close_others", next_step)
    monkeypatch.setattr(inside.importlib, "import_module", seen.append)
    if not there:
        monkeypatch.setattr(inside.importlib, "import_module", lambda name: __import__("of_nobody"))
    wanted = Measure.LANDLOCK in measures
    with pytest.raises(Failed if wanted and not there else KeyError) as raised:
        inside._confine(settings(measures=frozenset(measures)))
    assert seen == (["landlockpy"] if wanted and there else [])
    assert not (wanted and not there) or raised.value.measure is Measure.LANDLOCK


USER = 65520  # beside those that sandboxes take; nobody is that one nor the next


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root")
def test_who_becomes_a_user_is_nothing_else(tmp_path):
    def becomes():
        os.setgroups([0, 4])
        inside._become(USER + 1, USER)
        return os.getgroups(), os.getresuid(), os.getresgid()

    assert in_a_fork(becomes, tmp_path) == [[], [USER + 1, USER, USER + 1], [USER] * 3]


@pytest.mark.parametrize("error", [PermissionError("takes root"), KeyboardInterrupt()])
def test_who_cannot_become_a_user_ends_and_goes_on_with_nothing(monkeypatch, tmp_path, error):
    """The process that was to end the user's; the one that asked for it goes on."""

    def refuses(real, effective):
        raise error

    def ends():
        monkeypatch.setattr(inside, "_become", refuses)
        asking = os.getpid()
        try:
            inside.end_user(USER)
        finally:
            if os.getpid() != asking:
                (tmp_path / "went on").touch()
                os._exit(0)
        return "went on"

    assert in_a_fork(ends, tmp_path) == "went on" and not (tmp_path / "went on").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root")
def test_every_process_of_a_user_is_ended_and_no_other():
    def sleeping(user):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            if user:
                os.setsid()  # and so is in no group of the killer's
                inside._become(user, user)
            os.write(write, b"x")
            time.sleep(60)
            os._exit(0)
        os.read(read, 1)
        os.close(read)
        os.close(write)
        return child

    theirs, others = [sleeping(USER), sleeping(USER)], [sleeping(None), sleeping(USER + 2)]
    inside.end_user(USER)
    assert [os.WTERMSIG(os.waitpid(child, 0)[1]) for child in theirs] == [signal.SIGKILL] * 2
    assert [os.waitpid(child, os.WNOHANG) for child in others] == [(0, 0)] * 2
    for child in others:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
