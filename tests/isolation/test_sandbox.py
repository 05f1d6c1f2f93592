"""The sandbox, tried by programs that want out of it, and by the same programs with the measure switched off.

An attack names the measures of which any one stops it (`alone`) and those that have to be off for it to succeed; where
a machine lacks them all, the sandbox must have said so. Everything runs for root, where the tests are root's, and for
an ordinary user.
"""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("confining a process takes Linux", allow_module_level=True)

from tests.isolation.hostile import MARK, ORDINARY, JudgeEnded, run
from tests.night import NIGHT, some
from touchstone.backends.storage import folders
from touchstone.conformance.discovery import registry
from touchstone.conformance.isolation.sandbox import kernel, outside
from touchstone.conformance.isolation.sandbox.outside import NotConfined, Sandbox, lacking
from touchstone.conformance.isolation.sandbox.settings import ALL, Limits, Measure, Settings

ROOT = os.geteuid() == 0
PROCESSES, FILES, NETWORK, USER = Measure.PROCESSES, Measure.FILES, Measure.NETWORK, Measure.USER
PRIVILEGES, SYSTEM_CALLS, LANDLOCK = Measure.PRIVILEGES, Measure.SYSTEM_CALLS, Measure.LANDLOCK
LIMITS, MEMORY, SECRECY = Measure.LIMITS, Measure.MEMORY, Measure.SECRECY

LIBC = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
REFUSED = "\nif result == -1: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))\nprint(DONE)"


@dataclass(frozen=True)
class Attack:
    """A program, and the measures against it. `others`: those that stop it in part of the cases, such as only root."""

    program: str
    alone: frozenset[Measure]
    others: frozenset[Measure] = frozenset()
    root: bool = False  # only root could do it to begin with


def against(*alone: Measure, program: str, others=(), root=False) -> Attack:
    return Attack(program, frozenset(alone), frozenset(others), root)


ATTACKS = {
    "connect": against(
        NETWORK,
        SYSTEM_CALLS,
        others=[LANDLOCK],
        program="import socket; socket.create_connection(('127.0.0.1', PORT), 2); print(DONE)",
    ),
    "listen": against(
        NETWORK,
        SYSTEM_CALLS,
        others=[LANDLOCK],
        program="import os, socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()\n"
        "if os.readlink('/proc/self/ns/net') == NET: print(DONE)",
    ),
    "send a datagram": against(
        NETWORK,
        SYSTEM_CALLS,
        others=[LANDLOCK],
        program="import socket\ns = socket.socket(type=socket.SOCK_DGRAM)\ns.sendto(b'x', ('127.0.0.1', PORT))\n"
        "print(DONE)",
    ),
    "connect to a local socket": against(
        SYSTEM_CALLS,
        others=[LANDLOCK],
        program="import socket; s = socket.socket(socket.AF_UNIX); s.connect(LOCAL); print(DONE)",
    ),
    "connect to an abstract socket": against(
        SYSTEM_CALLS,
        NETWORK,
        others=[LANDLOCK],
        program="import socket; s = socket.socket(socket.AF_UNIX); s.connect(ABSTRACT); print(DONE)",
    ),
    "write to the judge's home": against(
        FILES, LANDLOCK, others=[USER], program="open(f'{HOME}/{NAME}', 'w').write('x'); print(DONE)"
    ),
    "write to /tmp": against(FILES, LANDLOCK, program="open(f'/tmp/{NAME}', 'w').write('x'); print(DONE)"),
    "write to shared memory": against(
        FILES,
        LANDLOCK,
        program="import os\nopen(f'/dev/shm/{NAME}', 'w').write('x')\n"
        "if os.stat('/dev/shm').st_dev == SHM: print(DONE)",
    ),
    "write to the package": against(
        FILES, LANDLOCK, others=[USER], root=True, program="open(f'{PACKAGE}/{NAME}.py', 'w'); print(DONE)"
    ),
    "remove a file of the judge": against(
        FILES, LANDLOCK, others=[USER], program="import os; os.unlink(f'{HOME}/kept'); print(DONE)"
    ),
    "open a disk": against(
        FILES, LANDLOCK, others=[USER], root=True, program="import os; os.open(DISK, os.O_RDWR); print(DONE)"
    ),
    "set a variable of the kernel": against(
        FILES, LANDLOCK, others=[USER], root=True, program="open('/proc/sys/kernel/core_pattern', 'r+'); print(DONE)"
    ),
    "read the judge's memory": against(
        PROCESSES,
        LANDLOCK,
        others=[USER, PRIVILEGES, SECRECY, FILES, NETWORK],
        program="f = open(f'/proc/{JUDGE}/mem', 'rb'); f.seek(ADDRESS)\nif f.read(6) == b'secret': print(DONE)",
    ),
    "read the judge's environment": against(
        PROCESSES,
        others=[LANDLOCK, USER, PRIVILEGES, SECRECY, FILES, NETWORK],
        program="if open(f'/proc/{JUDGE}/environ').read(): print(DONE)",
    ),
    "trace the judge": against(
        PROCESSES,
        LANDLOCK,
        SYSTEM_CALLS,
        others=[USER, PRIVILEGES, SECRECY, FILES, NETWORK],
        program=LIBC + "result = libc.ptrace(0x4206, JUDGE, None, None)" + REFUSED,  # PTRACE_SEIZE
    ),
    "read the judge's memory by a call": against(
        PROCESSES,
        LANDLOCK,
        SYSTEM_CALLS,
        others=[USER, PRIVILEGES, SECRECY, FILES, NETWORK],
        program=LIBC
        + "import struct\nto = ctypes.create_string_buffer(6)\n"
        + "here = struct.pack('PN', ctypes.addressof(to), 6); there = struct.pack('PN', ADDRESS, 6)\n"
        + "result = libc.process_vm_readv(JUDGE, here, 1, there, 1, 0)"
        + REFUSED,
    ),
    "stop the judge": against(
        PROCESSES, others=[USER, LANDLOCK], program="import os, signal; os.kill(JUDGE, signal.SIGCONT); print(DONE)"
    ),
    "limit the judge": against(
        PROCESSES,
        SYSTEM_CALLS,
        others=[USER, PRIVILEGES, SECRECY, FILES, NETWORK],
        program="import resource; resource.prlimit(JUDGE, resource.RLIMIT_CORE); print(DONE)",
    ),
    "mount": against(
        SYSTEM_CALLS,
        LANDLOCK,
        PRIVILEGES,
        others=[USER],
        root=True,
        program=LIBC + "result = libc.mount(b'tmpfs', os.getcwd().encode(), b'tmpfs', 0, None)" + REFUSED,
    ),
    "change the root": against(
        SYSTEM_CALLS, PRIVILEGES, others=[USER], root=True, program="import os; os.chroot('.'); print(DONE)"
    ),
    "gain capabilities in a namespace": against(
        SYSTEM_CALLS, program=LIBC + "result = libc.unshare(0x10000000)" + REFUSED
    ),
    "clone into a namespace": against(
        SYSTEM_CALLS,
        program=LIBC + "result = libc.syscall(NEW[0], *map(ctypes.c_long, (NEW[1], 0, 0, 0, 0)))\n"
        "if result == 0: os._exit(0)" + REFUSED,
    ),
    "run a program as its owner": against(
        PRIVILEGES,
        FILES,
        others=[LANDLOCK],
        root=True,
        program="import subprocess\n"
        "if b'secret' in subprocess.run([SETUID, CLOSED], capture_output=True).stdout: print(DONE)",
    ),
    "read a closed file of the judge": against(
        USER, root=True, program="if 'secret' in open(CLOSED).read(): print(DONE)"
    ),
    "leave shared memory of System V": against(
        SYSTEM_CALLS,
        others=[PROCESSES],
        program=LIBC + "result = libc.shmget(0, 4096, 0o1600)\nif result != -1: libc.shmctl(result, 0, None)" + REFUSED,
    ),
    "allocate without end": against(LIMITS, program="kept = [bytearray(32 << 20) for _ in range(20)]; print(DONE)"),
    "memory that no limit counts": against(SYSTEM_CALLS, program="import os; os.memfd_create('hostile'); print(DONE)"),
    "write a file without end": against(
        LIMITS, program="f = open('file', 'wb')\nfor _ in range(20): f.write(bytes(1 << 20)); f.flush()\nprint(DONE)"
    ),
    "write files without end": against(
        FILES, program="for i in range(40): open(f'file{i}', 'wb').write(bytes(2 << 20))\nprint(DONE)"
    ),
    "open files without end": against(
        LIMITS, program="import os\nopened = [os.open('/dev/null', 0) for _ in range(200)]\nprint(DONE)"
    ),
    "fork without end": against(
        LIMITS,
        program="import os, time\nfor _ in range(60):\n    if os.fork() == 0: time.sleep(60); os._exit(0)\nprint(DONE)",
    ),
}
SMALL = Limits(memory=256 << 20, processes=40, open_files=128, file=8 << 20, files=64 << 20, output=1 << 16)
SECRET = b"secret in the memory of the judge"
JUDGES = [pytest.param(False, id="root"), pytest.param(True, id="ordinary")] if ROOT else [pytest.param(True, id="own")]


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """What attacks are after: servers, files of the judge, its memory."""
    import ctypes

    home = Path(tempfile.mkdtemp(prefix="hostile-home-", dir="/tmp"))  # a process id may be another's in a namespace
    home.chmod(0o755)
    local = str(home / "socket")
    abstract = f"\0{home.name}"
    servers = [socket.socket(), socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
    for server, address in zip(servers, (("127.0.0.1", 0), local, abstract), strict=True):
        server.bind(address)
        server.listen(64)
    os.chmod(local, 0o777)
    closed, setuid = home / "closed", home / "cat"
    closed.write_text("secret")
    closed.chmod(0o600)
    shutil.copyfile(shutil.which("cat"), setuid)
    setuid.chmod(0o4755)
    writable = home / "home"
    writable.mkdir()
    secret = ctypes.create_string_buffer(SECRET)
    disk = next((str(p) for p in sorted(Path("/dev").glob("*")) if stat.S_ISBLK(p.stat().st_mode)), "/dev/kmsg")
    machine = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    yield {
        "PORT": servers[0].getsockname()[1],
        "LOCAL": local,
        "ABSTRACT": abstract,
        "NAME": MARK,  # of files: the same ones would be another worker's
        "HOME": str(writable),
        "PACKAGE": os.path.dirname(kernel.__file__),
        "ADDRESS": ctypes.addressof(secret),
        "NET": os.readlink("/proc/self/ns/net"),
        "SHM": os.stat("/dev/shm").st_dev,
        "DISK": disk,
        "NEW": (machine, kernel.CLONE_NEWUSER | signal.SIGCHLD),
        "SETUID": str(setuid),
        "CLOSED": str(closed),
    }
    for server in servers:
        server.close()
    shutil.rmtree(home)


@pytest.fixture
def made(given, ordinary):
    """The files that attacks leave where nothing stops them, gone before and after."""
    name = given["NAME"]
    left = [Path("/tmp", name), Path("/dev/shm", name), Path(given["HOME"], name), Path(given["PACKAGE"], f"{name}.py")]
    for path in left:
        path.unlink(missing_ok=True)
    Path(given["HOME"], "kept").touch()
    if ROOT:
        for path in (given["HOME"], os.path.join(given["HOME"], "kept")):
            os.chown(path, ORDINARY if ordinary else 0, -1)
    yield left
    for path in left:
        path.unlink(missing_ok=True)


def each_attack():
    """Every attack against every judge at night; by day against one, which takes turns."""
    for number, name in enumerate(ATTACKS):
        for judge in JUDGES if NIGHT else [JUDGES[number % len(JUDGES)]]:
            marks = [pytest.mark.level("default")] if name == "fork without end" else []  # half a minute
            yield pytest.param(name, *judge.values, id=f"{name}-{judge.id}", marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ordinary"), some(list(each_attack()), 12))
def test_an_attack_is_stopped_by_each_measure_and_by_nothing_else(name, ordinary, given, made):
    attack = ATTACKS[name]
    guards = attack.alone | attack.others
    whole = run(attack.program, limits=SMALL, ordinary=ordinary, **given)
    assert whole.measures & guards or whole.lacking
    if whole.measures & attack.alone:
        assert not whole.done, whole.output
        assert not any(path.exists() for path in made)
    assert not whole.survivors and not whole.left
    for measure in attack.alone & whole.measures:
        some = run(attack.program, ALL - guards | {measure}, SMALL, ordinary, user_reads=False, **given)
        if measure in some.measures:  # a filter takes no_new_privs, which may be off
            assert not some.done, (measure, some.output)
        assert not some.survivors and not some.left
    if ordinary and attack.root:
        return
    none = run(attack.program, ALL - guards, SMALL, ordinary, user_reads=False, **given)
    assert none.done, none.output
    assert not none.survivors and not none.left


@pytest.mark.slow
@pytest.mark.parametrize("ordinary", JUDGES)
def test_the_key_of_the_judges_user_is_not_to_be_read(ordinary, given, monkeypatch):
    """Not where the kernel has the same user either."""
    state = Path(given["HOME"], "state")
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    key = state / "touchstone" / "judge.key"
    key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    key.write_text("secret")
    key.chmod(0o600)
    if ordinary:
        for path in (state, key.parent, key):
            os.chown(path, ORDINARY, -1)
    program = f"if open({str(key)!r}).read(): print(DONE)"
    whole = run(program, limits=SMALL, ordinary=ordinary, **given)
    assert not whole.done or not whole.measures & {FILES, USER}, whole.output
    some = run(program, ALL - {USER}, SMALL, ordinary, user_reads=False, **given)
    assert not some.done or FILES not in some.measures, some.output
    assert run(program, ALL - {USER, FILES}, SMALL, ordinary, user_reads=False, **given).done


FALLBACK = ALL - {PROCESSES, FILES, NETWORK}
WAYS = [pytest.param(ALL, id="all"), pytest.param(FALLBACK, id="without namespaces")]

DAEMON = """
import os, time, ctypes
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(1, 0)  # no signal when its parent ends
        for descriptor in range(3): os.close(descriptor)
        time.sleep(60)
    os._exit(0)
time.sleep(0.1)
print(DONE)
"""


@pytest.mark.parametrize("ordinary", JUDGES)
@pytest.mark.parametrize("measures", WAYS)
def test_a_daemon_ends_with_the_program(measures, ordinary):
    left = run(DAEMON, measures, ordinary=ordinary, user_reads=False)
    assert left.done and left.status == 0 and not left.running and not left.survivors and not left.left


@pytest.mark.parametrize("ordinary", JUDGES)
@pytest.mark.parametrize("measures", WAYS)
def test_bombs_end_at_the_deadline(measures, ordinary):
    """Forks of forks, each of which goes on, until the limit and then for ever. On a busy machine a child may take most
    of a second to be confined, which the deadline has to leave it."""
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    left = run(bomb, measures, Limits(processes=30, seconds=2.0), ordinary=ordinary, user_reads=False)
    assert left.status == -signal.SIGKILL and left.notes == ["killed after 2 s"]
    assert left.ended and not left.running and not left.survivors


@pytest.mark.parametrize("ordinary", JUDGES)
@pytest.mark.parametrize("measures", WAYS)
def test_the_judge_ends_what_goes_on(measures, ordinary):
    program = "import os, signal\nos.fork()\nprint(DONE, flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)"
    left = run(program, measures, ordinary=ordinary, user_reads=False, seconds=0.3)
    assert left.done and left.status == -signal.SIGKILL and not left.survivors


@pytest.mark.parametrize("ordinary", JUDGES)
def test_a_program_that_kills_its_supervisor_is_found(ordinary):
    """Without namespaces and as the same user it can; what it leaves becomes the judge's child, and is ended."""
    program = (
        "import ctypes, os, signal, time\nctypes.CDLL(None).prctl(1, 0)\n"
        "os.fork()\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(60)"
    )
    left = run(program, FALLBACK - {USER, LANDLOCK}, ordinary=ordinary, seconds=0.5)
    assert not left.survivors and not left.left


@pytest.mark.parametrize("ordinary", JUDGES)
def test_everything_in_sight_is_killed(ordinary):
    program = (
        "import os, signal\n"
        "for name in os.listdir('/proc'):\n"
        "    for number in (signal.SIGSTOP, signal.SIGKILL):\n"
        "        try: name.isdigit() and int(name) != os.getpid() and os.kill(int(name), number)\n"
        "        except OSError: pass\n"
        "for number in (signal.SIGSTOP, signal.SIGABRT, signal.SIGTERM): os.kill(os.getppid() or 1, number)\n"
        "print(DONE)"
    )
    measures = ALL if PROCESSES in plan_of(ordinary) else None
    if measures is None:
        assert any("PID namespace" in words for words in lacking())
        return
    left = run(program, ordinary=ordinary)
    assert left.survivors == [] and not left.left and left.status in (0, -signal.SIGTERM, -signal.SIGABRT)


def plan_of(ordinary: bool) -> set[Measure]:
    return run("pass", ordinary=ordinary).measures


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("import os; os._exit(7)", 7),
        ("import os; os.abort()", -signal.SIGABRT),
        ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        pytest.param(
            "def deep(*_): return sorted([1, 2], key=deep)\nimport sys; sys.setrecursionlimit(10**9); deep()",
            -signal.SIGSEGV,
            marks=pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python 3.12 counts calls within C itself"),
        ),
    ],
)
@pytest.mark.parametrize("measures", WAYS)
def test_the_judge_sees_how_it_ended(program, status, measures):
    assert run(program, measures, user_reads=False).status == status


@pytest.mark.parametrize("measures", WAYS)
def test_output_is_kept_up_to_a_limit(measures):
    limits = Limits(output=1050, seconds=0.5)
    left = run("while True: print('x' * 99)", measures, limits, user_reads=False)
    assert left.output == ("x" * 99 + "\n") * 10 + "x" * 50
    assert sorted(left.notes) == ["killed after 0.5 s", "printed more than 1050 bytes; the rest is not kept"]
    assert left.kept == 1050
    limits = Limits(output=1050)  # in whatever time a busy machine takes
    exact = run("import os; os.write(1, b'y' * 525); os.write(2, b'z' * 525)", measures, limits, user_reads=False)
    assert exact.output == "y" * 525 + "z" * 525 and not exact.notes


def test_only_descriptors_that_are_named_stay_open(tmp_path):
    program = (
        "import os\nfound = []\n"
        "for number in range(1024):\n"
        "    try: os.fstat(number); found.append(number)\n"
        "    except OSError: pass\n"
        "print(found == [0, 1, 2, KEPT] and DONE)"
    )
    with open(tmp_path / "secret", "w+") as secret, open(tmp_path / "kept", "w+") as kept:
        os.set_inheritable(secret.fileno(), True)
        assert run(program, keep=(kept.fileno(),), KEPT=kept.fileno()).done
        assert not run(program, keep=(kept.fileno(), secret.fileno()), KEPT=kept.fileno()).done


@pytest.mark.level("default")
@pytest.mark.parametrize("measures", WAYS)
def test_folders_that_resist_are_removed(measures):
    """A working folder that is gone, folders too deep for a path, and closed ones."""
    program = (
        "import os, shutil\nhome = os.getcwd()\n"
        "os.makedirs('closed/inner'); open('closed/inner/file', 'w'); os.chmod('closed/inner', 0)\n"
        "os.chmod('closed', 0)\n"
        "os.mkdir('away'); os.chdir('away')\n"
        "for _ in range(3000): os.mkdir('d'); os.chdir('d')\n"
        "os.chdir(home); os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); print(DONE)"
    )
    left = run(program, measures, user_reads=False, ordinary=True)
    assert left.done, left.output
    assert not left.left


@pytest.mark.skipif(not ROOT, reason="a user of its own takes root")
def test_a_closed_folder_of_the_import_path_costs_no_measure(tmp_path, monkeypatch):
    """What lies in it is read, but what is hidden or closed; where that is a module, the reason says which one."""
    if {USER, FILES} & set(Sandbox().plan.reasons):
        pytest.skip("takes a user and a mount namespace of its own")
    folder = tmp_path / "closed"
    (folder / "package").mkdir(parents=True)
    (folder / "package" / "__init__.py").write_text("answer = 42\n")
    (folder / ".secret").write_text("x")
    (folder / "closed").mkdir(0o700)
    (tmp_path / "empty").mkdir()
    for each in (folder, tmp_path / "empty"):
        each.chmod(0o700)
        monkeypatch.syspath_prepend(each)
    program = (
        "import os, sys\nsys.path.insert(0, FOLDER)\nimport package\n"
        "print(package.answer, sorted(os.listdir(FOLDER)), os.access(FOLDER, os.W_OK), os.getuid() != 0)"
    )
    left = run(program, FOLDER=str(folder))
    assert left.output.strip() == "42 ['package'] False True" and USER in left.measures
    (folder / "package").chmod(0o700)
    outside._tried.cache_clear()
    assert Sandbox().plan.reasons[USER] == f"[Errno 13] other users may not read {folder / 'package'}"


@pytest.mark.parametrize("ordinary", JUDGES)
@pytest.mark.parametrize("measures", WAYS)
def test_it_dies_with_its_judge(measures, ordinary):
    program = DAEMON + "time.sleep(60)"
    with pytest.raises(JudgeEnded) as ended:
        run(program, measures, ordinary=ordinary, user_reads=False, judge_ends_after=1.5)
    assert not ended.value.survivors and not ended.value.left


@pytest.mark.slow
def test_a_fresh_process_is_confined_by_settings_as_text(monkeypatch, tmp_path):
    """It has the judge's variables only where they are for computing, and folders of its own for the rest."""
    monkeypatch.setenv("SECRET_TOKEN", "secret")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(registry.IMPORT_PATH), *filter(None, sys.path))))
    (tmp_path / "kernel.py").write_text("answer = 42\n")
    code = (
        "import sys, os\n"
        "from touchstone.conformance.isolation.sandbox.inside import enter\n"
        "from touchstone.conformance.isolation.sandbox.settings import Settings\n"
        "enter(Settings.from_json(sys.argv[1]))\n"
        "exec(open(sys.argv[2]).read())\n"
        "from tempfile import gettempdir\n"
        "print(answer, os.environ.get('SECRET_TOKEN'), os.environ['OMP_NUM_THREADS'])\n"
        "print(os.getcwd() == os.path.expanduser('~'))\n"
        "inside = [os.environ[name] for name in sys.argv[3:]] + [gettempdir()]\n"
        "print(all(path.startswith(os.getcwd()) and os.access(path, os.W_OK) for path in inside))\n"
    )
    with Sandbox() as sandbox:
        given = sandbox.give(tmp_path / "kernel.py")
        settings = sandbox.settings()
        assert Settings.from_json(settings.to_json()) == settings and json.loads(settings.to_json())
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", code, settings.to_json(), str(given), *folders.LIBRARIES, *outside.PRIVATE],
            **sandbox.popen_arguments(),
        )
        sandbox.started(child.pid)
        assert child.wait(30) == 0, sandbox.output()
        assert sandbox.output() == "42 None 1\nTrue\nTrue\n"
    assert not os.path.exists(sandbox.folder or given.parent)


def test_what_is_promised_and_fails_runs_nothing(tmp_path):
    """A measure that worked when it was tried and does not now."""
    plan = outside.Plan(frozenset({MEMORY}), {})
    with Sandbox(plan=plan, group=tmp_path) as sandbox:
        os.rmdir(sandbox._group)
        child = os.fork()
        if child == 0:
            outside.inside.enter(sandbox.settings())
            os._exit(0)
        with pytest.raises(NotConfined, match="the child could not be confined: memory: .*cgroup.procs"):
            sandbox.started(child)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == outside.inside.UNCONFINED
        os.mkdir(sandbox._group)


def test_what_is_lacking_is_said(monkeypatch):
    monkeypatch.delenv("TOUCHSTONE_CGROUP", raising=False)
    words = Sandbox(measures=ALL - {NETWORK}).lacking
    assert "a network namespace (switched off)" in words
    assert any(line.startswith("a control group") and "TOUCHSTONE_CGROUP does not name" in line for line in words)
    monkeypatch.setattr(kernel.platform, "machine", lambda: "vax")
    outside._tried.cache_clear()
    try:
        assert any("the numbers of system calls on vax are not known here" in line for line in lacking())
    finally:
        outside._tried.cache_clear()


def test_elsewhere(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert lacking() == ["not available on darwin: confining a kernel's process takes Linux"]
    with pytest.raises(NotConfined, match="not available on darwin"):
        Sandbox()


def test_a_gpu_child_may_use_local_sockets_and_address_space(given):
    program = (
        "import resource, socket\n"
        "try: socket.socket(socket.AF_UNIX).connect(LOCAL)\n"
        "except ConnectionRefusedError: print('nobody answers')\n"
        "if resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY: print(DONE)\n"
        "socket.socket()"
    )
    plan = Sandbox("cuda").plan
    if SYSTEM_CALLS not in plan.measures:
        assert SYSTEM_CALLS in plan.reasons
        return
    left = run(program, device="cuda", LOCAL=given["LOCAL"])
    assert left.done and "nobody answers" in left.output and "PermissionError" in left.output


def test_control_groups_limit_what_is_below_them():
    """The hierarchy of version 1 for processes, or what TOUCHSTONE_CGROUP names."""
    group = os.environ.get("TOUCHSTONE_CGROUP", "/sys/fs/cgroup/pids")
    if not (ROOT and os.path.exists(os.path.join(group, "cgroup.procs"))):
        assert any("TOUCHSTONE_CGROUP" in line for line in lacking())
        return
    before = set(os.listdir(group))
    bomb = "import os, time\nfor _ in range(60):\n    if os.fork() == 0: time.sleep(60); os._exit(0)\nprint(DONE)"
    few = run(bomb, ALL - {LIMITS}, Limits(processes=20), group=group)
    assert not few.done and "BlockingIOError" in few.output and not few.survivors
    assert set(os.listdir(group)) == before


@pytest.mark.parametrize("measures", [(), ALL])
def test_folders_of_its_own_are_there_whatever_confines_it(measures):
    program = (
        "import os\nif all(map(os.path.isdir, (os.environ['HOME'], os.environ['TMPDIR'], os.getcwd()))): print(DONE)"
    )
    assert run(program, measures, user_reads=False).done


def test_settings_are_checked():
    with pytest.raises(ValueError, match="device: expected 'cpu' or 'cuda', got 'tpu'"):
        Sandbox("tpu")
    with pytest.raises(ValueError, match="processes: expected a positive number, got 0"):
        Limits(processes=0)
    with pytest.raises(ValueError, match="file: expected a positive number, got 1.5"):
        Limits(file=1.5)
    assert Limits(seconds=1.5).seconds == 1.5


def test_the_judge_is_hidden_while_a_sandbox_is_open_and_no_longer():
    before = kernel.dumpable()
    with Sandbox(), Sandbox():
        assert not kernel.dumpable()
    assert kernel.dumpable() == before


def test_folders_of_judges_that_were_killed_are_cleared_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Sandbox(measures=()) as used:
        assert os.path.basename(used.folder).startswith(outside.PREFIX)  # or none would be found
        left, young = tmp_path / f"{outside.PREFIX}left", tmp_path / f"{outside.PREFIX}young"
        for folder in (left, young):
            (folder / "home").mkdir(parents=True)
            (folder / outside.HELD).touch()
        for old in (left, used.folder):
            os.utime(old, (0, 0))
        outside._clear.cache_clear()
        outside._clear(str(tmp_path))
        assert not left.exists() and young.exists() and os.path.exists(used.folder)


def test_it_starts_fast():
    """From the fork to the first line of the program: a tenth of a second, on a busy machine in proportion."""
    without = min(run("pass", ()).started for _ in range(5))
    assert min(run("pass").started for _ in range(8)) < max(0.1, 5 * without)
