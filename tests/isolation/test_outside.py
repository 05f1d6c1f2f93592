"""The judge's end of a sandbox, by its parts: what is foreseen, what a child is told, what is left and cleared up."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

if sys.platform != "linux":
    pytest.skip("confining a process takes Linux", allow_module_level=True)

from tests.fixed import changeable
from tests.processes import in_a_fork
from touchstone.conformance.isolation.sandbox import inside, outside
from touchstone.conformance.isolation.sandbox.outside import NotConfined, Plan, Sandbox
from touchstone.conformance.isolation.sandbox.settings import ALL, Limits, Measure

ROOT = os.geteuid() == 0
NONE = Plan(frozenset(), {})


def test_a_trial_whose_child_hangs_is_ended(monkeypatch):
    """And does not wait for it."""
    monkeypatch.setattr(outside, "END_SECONDS", 0.3)
    monkeypatch.setattr(inside, "enter", lambda settings: time.sleep(30))

    def gives_up(self, pid):
        self.pid = pid
        os.close(self._their_status)
        self._their_status = -1
        raise NotConfined("the child was not confined within 30 s")

    monkeypatch.setattr(Sandbox, "started", gives_up)
    began = time.monotonic()
    assert outside._trial(NONE, "cpu", (), None) == (None, "the child was not confined within 30 s")
    assert time.monotonic() - began < 15


def test_a_trial_that_cannot_begin_is_the_fault_of_what_it_was_given(monkeypatch, tmp_path):
    memory = Plan(frozenset({Measure.MEMORY}), {})
    measure, why = outside._trial(memory, "cpu", (), str(tmp_path / "nowhere"))
    assert measure is Measure.MEMORY and "nowhere" in why

    def refuses(*given, **named):
        raise OSError("no folder")

    monkeypatch.setattr(outside.tempfile, "mkdtemp", refuses)
    assert outside._trial(NONE, "cpu", (), None) == (None, "no folder")


def test_a_measure_that_fails_in_the_trial_is_left_out_and_the_rest_is_tried_again(monkeypatch):
    tried = []

    def trial(plan, device, readable, group):
        tried.append(plan.measures)
        return (Measure.LIMITS, "no limits") if Measure.LIMITS in plan.measures else None

    monkeypatch.setattr(outside, "_trial", trial)
    wanted = frozenset({Measure.LIMITS, Measure.PRIVILEGES})
    plan = outside._tried.__wrapped__(wanted, "cpu", (), None)
    assert plan == Plan(frozenset({Measure.PRIVILEGES}), {Measure.LIMITS: "no limits"})
    assert tried == [wanted, frozenset({Measure.PRIVILEGES})]
    monkeypatch.setattr(outside, "_trial", lambda *given: (Measure.FILES, "no files"))
    for failed in ((Measure.FILES, "no files"), (None, "no files")):
        monkeypatch.setattr(outside, "_trial", lambda *given, failed=failed: failed)
        with pytest.raises(NotConfined, match="^no child can be confined here: no files$"):
            outside._tried.__wrapped__(wanted, "cpu", (), None)


def test_limits_that_cannot_be_had_are_said_to_be_lacking(monkeypatch):
    """By the child, where it fails: the others are had all the same."""

    def refuses(settings, tasks):
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(inside, "_limit", refuses)
    plan = outside._tried.__wrapped__(frozenset({Measure.LIMITS, Measure.PRIVILEGES}), "cpu", (), None)
    assert plan.measures == {Measure.PRIVILEGES}
    assert plan.reasons == {Measure.LIMITS: "not allowed to raise maximum limit"}


def test_what_is_switched_off_is_a_reason(monkeypatch):
    monkeypatch.setattr(outside, "_tried", lambda *given: Plan(frozenset({Measure.LIMITS}), {Measure.FILES: "no"}))
    plan = outside.offered(frozenset({Measure.LIMITS, Measure.FILES}), "cpu", (), None)
    assert plan.measures == {Measure.LIMITS} and plan.reasons[Measure.FILES] == "no"
    assert {m for m, why in plan.reasons.items() if why == "switched off"} == ALL - {Measure.LIMITS, Measure.FILES}
    assert Sandbox(plan=plan).lacking[0].endswith("(switched off)")  # the most important first
    assert len(Sandbox(plan=plan).lacking) == len(ALL) - 1


def test_what_needs_no_trial_to_fail(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert outside._foreseen(Measure.USER, None) == "takes root"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert outside._foreseen(Measure.USER, None) is None
    assert "TOUCHSTONE_CGROUP does not name" in outside._foreseen(Measure.MEMORY, None)
    assert outside._foreseen(Measure.MEMORY, "/sys/fs/cgroup/x") is None
    assert all(outside._foreseen(measure, None) is None for measure in (Measure.FILES, Measure.LIMITS))
    monkeypatch.setattr(outside.importlib.util, "find_spec", lambda name: None)
    assert outside._foreseen(Measure.LANDLOCK, None).startswith("pip install")
    for supported, why in ((True, None), (False, "the kernel does not have it")):
        paper = SimpleNamespace(supported=lambda supported=supported: supported)
        monkeypatch.setattr(outside.importlib.util, "find_spec", lambda name: "found")
        monkeypatch.setitem(sys.modules, "landlockpy", paper)
        assert outside._foreseen(Measure.LANDLOCK, None) == why


def test_what_the_judge_keeps_is_covered(monkeypatch, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "state")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "link"))
    assert outside._covered() == (str(tmp_path / "state" / "touchstone"),)

    def refused():
        raise PermissionError("there is no home folder")

    monkeypatch.setattr(outside.folders, "state", refused)
    assert outside._covered() == ()


def test_a_child_is_told_what_it_is_for_computing(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("CXX", "clang++")
    monkeypatch.setenv("TMPDIR", "/nowhere")
    monkeypatch.setenv("HOME", "/root")
    sandbox = Sandbox(plan=NONE)
    sandbox.folder = "/tmp/x"
    told = sandbox.environment
    assert "SECRET_TOKEN" not in told and told["CUDA_VISIBLE_DEVICES"] == "3" and told["LC_ALL"] == "C"
    assert told["CXX"] == "clang++" and told["PATH"] == os.environ["PATH"]
    home = Path("/tmp/x", "home")
    assert told["HOME"] == str(home) and told["USER"] == told["LOGNAME"] == "kernel"
    assert told["TMPDIR"] == told["TMP"] == told["TEMP"] == str(home / "tmp")
    own = {name: told[name] for name in outside.PRIVATE}
    assert own == {name: str(home / "cache" / folder) for name, folder in outside.PRIVATE.items()}
    languages = {f"{name}_CACHE": name.lower() for name in ("TRITON", "NUMBA", "CUPY")}
    for name, value in languages.items():
        monkeypatch.setenv(name, value)
    assert languages.items() <= sandbox.environment.items()
    assert told[outside.artefacts.GIVEN] == str(sandbox.given) == "/tmp/x/given"


def test_settings_of_a_sandbox():
    with Sandbox(plan=NONE, readable=["/usr/share"], limits=Limits(processes=7)) as sandbox:
        told = sandbox.settings(9, 5, 9)
        assert told.keep == (5, 9) and told.folder == sandbox.folder and told.limits.processes == 7
        assert "/usr/share" in told.readable and sandbox.folder in told.readable
        assert told.user is None and told.group is None and told.measures == frozenset()
        assert sandbox.popen_arguments(4)["pass_fds"] == (4, told.status, told.output)
        assert os.stat(sandbox.folder).st_mode & 0o777 == 0o755
        assert all(os.stat(f"{sandbox.folder}/{name}").st_mode & 0o777 == 0o700 for name in ("home", "dev"))
        folder = sandbox.folder
    assert not os.path.exists(folder) and sandbox.folder == ""
    sandbox.close()  # twice


def test_what_got_away_from_its_supervisor_is_ended_with_all_below_it(monkeypatch):
    """It is a child of the judge's by then, with more filters than the judge; of a user of its own, by that user."""
    done = []

    class Process:
        def __init__(self, pid=None):
            self.pid = pid

        def children(self):
            return [Process(pid) for pid in (7, 8, 9) if ("ended", pid) not in done]

        def kill(self):
            done.append(("killed", self.pid))

        def wait(self, seconds):
            done.append(("ended", self.pid))

    monkeypatch.setattr(outside, "_filters", lambda pid: 2 if pid in (7, 9) else 1)
    monkeypatch.setattr(outside.psutil, "Process", Process)
    monkeypatch.setattr(inside, "end_tree", lambda process: done.append(("below", process.pid)))
    monkeypatch.setattr(inside, "end_user", lambda user: done.append(("user", user)))
    sandbox = Sandbox(plan=NONE)
    sandbox.pid, sandbox.user = 9, None  # which is its supervisor
    sandbox._kill_strays()
    assert done == [("below", 7), ("killed", 7), ("ended", 7)]
    done.clear()
    sandbox.user = 61184
    sandbox._kill_strays()
    assert done == [("user", 61184)]


@pytest.mark.parametrize("measures", [(), (Measure.PROCESSES,)])
def test_what_got_away_is_looked_for_where_the_kernel_does_not_end_it(monkeypatch, measures):
    """With a process table of its own it cannot get away, and another sandbox may have the same user."""
    looked, waited = [], []
    monkeypatch.setattr(Sandbox, "_kill_strays", lambda self: looked.append(self.pid))
    monkeypatch.setattr(outside, "_wait_gone", waited.append)
    sandbox = Sandbox(plan=Plan(frozenset(measures), {}))
    sandbox.kill()
    assert looked == waited == []  # nothing was started
    sandbox.pid = 2**22 + 5  # of nobody
    sandbox.kill()
    assert looked == ([] if measures else [sandbox.pid]) and waited == []
    sandbox._init = 2**22 + 6
    sandbox.kill()
    assert waited == [sandbox._init]


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("measures", [(), (Measure.PROCESSES,), (Measure.SECRECY,)])
def test_a_sandbox_leaves_the_judge_s_process_as_it_was(tmp_path, measures, before):
    """It takes over orphans meanwhile, but those of a process table of their own, and is closed to others; in the end
    neither more than before."""
    plan = Plan(frozenset(measures), {})

    def state():
        return outside.kernel.is_subreaper(), outside.kernel.dumpable(), len(os.listdir("/proc/self/fd"))

    def seen():
        outside.kernel.prctl(outside.kernel.PR_SET_CHILD_SUBREAPER, before)
        outside.kernel.prctl(outside.kernel.PR_SET_DUMPABLE, 1)
        first = state()
        with Sandbox(plan=plan):
            with Sandbox(plan=plan):
                inner = state()
            within = state()
        return first, inner, within, state()

    first, inner, within, last = in_a_fork(seen, tmp_path)
    assert first == last and first[:2] == [before, True]
    assert inner[:2] == within[:2] == [before or Measure.PROCESSES not in measures, Measure.SECRECY not in measures]


def test_what_is_given_can_be_read_and_not_written(tmp_path):
    (tmp_path / "folder" / "inner").mkdir(parents=True, mode=0o700)
    (tmp_path / "folder" / "inner" / "file").write_text("x")
    for path in (tmp_path / "folder", tmp_path / "folder" / "inner"):
        path.chmod(0o700)
    (tmp_path / "one").write_text("y")
    (tmp_path / "one").chmod(0o600)
    with Sandbox(plan=NONE) as sandbox:
        folder, one = sandbox.give(tmp_path / "folder"), sandbox.give(tmp_path / "one")
        modes = [path.stat().st_mode & 0o777 for path in (folder, folder / "inner", folder / "inner" / "file", one)]
        assert modes == [0o755, 0o755, 0o644, 0o644] and one.parent == Path(sandbox.folder) and one.read_text() == "y"


def saying(*lines):
    """A sandbox to whose judge the child has said this."""
    sandbox = Sandbox(plan=NONE)
    sandbox._said, sandbox._listen = list(lines), lambda: True
    return sandbox


def test_what_a_child_says_is_told_in_words():
    sandbox = saying({"init": 5}, {"late": 0.5}, {"cut": 1050}, {"cut": 1050})
    assert sandbox.notes == ["killed after 0.5 s", "printed more than 1050 bytes; the rest is not kept"]
    assert sandbox.failed is None and saying().notes == []
    assert saying({"failed": "limits", "reason": "no"}).failed == (Measure.LIMITS, "no")
    assert saying({"failed": None, "reason": "no"}).failed == (None, "no")
    assert outside._failure({"failed": "limits", "reason": "no"}) == "the child could not be confined: limits: no"
    assert outside._failure({"failed": None, "reason": "no"}) == "the child could not be confined: no"


@pytest.mark.parametrize(
    "look", [lambda sandbox: sandbox.notes, lambda sandbox: sandbox.processes(), lambda sandbox: sandbox.kill()]
)
def test_what_a_child_has_said_by_now_is_read(look):
    """Before its notes are told, and before its init is told from its own processes."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    sandbox = Sandbox(plan=NONE)
    sandbox.folder, sandbox._status, sandbox.pid, sandbox.user = "/tmp/x", read, 2**22 + 5, None
    try:
        os.write(write, b'{"init": 4194311}\n{"late": 2.0}\n')
        look(sandbox)
        assert sandbox._init == 4194311 and sandbox._said[-1] == {"late": 2.0}
    finally:
        os.close(read)
        os.close(write)


def test_lines_that_come_in_parts():
    read, write = os.pipe()
    os.set_blocking(read, False)
    sandbox = Sandbox(plan=NONE)
    assert sandbox._listen() is False  # before it begins
    sandbox.folder, sandbox._status = "/tmp/x", read
    try:
        assert sandbox._listen() is True and sandbox._said == []
        os.write(write, b'{"init": 42}\n{"rea')
        assert sandbox._listen() is True and sandbox._said == [{"init": 42}] and sandbox._init == 42
        os.write(write, b'dy": true}\n')
        os.close(write)
        assert sandbox._listen() is False and sandbox._said == [{"init": 42}, {"ready": True}] and sandbox._init == 42
    finally:
        os.close(read)


@pytest.mark.parametrize(
    ("said", "open_still", "error"),
    [
        ([{"ready": True}], False, None),
        ([{"failed": "limits", "reason": "no"}], True, "the child could not be confined: limits: no"),
        ([], False, "the child ended before it was confined"),
        ([], True, r"the child was not confined within 0\.05 s"),
    ],
)
def test_a_child_is_waited_for_until_it_is_confined_or_not(said, open_still, error):
    sandbox = Sandbox(plan=NONE)
    _, sandbox._their_status = os.pipe()
    sandbox._listen = lambda: sandbox._said.extend(said[len(sandbox._said) :]) or open_still
    with pytest.raises(NotConfined, match=f"^{error}$") if error else contextlib.nullcontext():
        sandbox.started(1234, seconds=0.05)
    assert (sandbox.pid, sandbox._their_status) == (1234, -1)


@pytest.mark.parametrize("of_memory", ["memory.max", "memory.limit_in_bytes"])
def test_a_control_group_has_limits_and_is_removed(tmp_path, monkeypatch, of_memory):
    """Of version 2 or 1; a file that the kernel does not offer is not made."""
    make, remove = os.mkdir, os.rmdir

    def mkdir(path, *mode):
        make(path, *mode)
        for name in ("pids.max", of_memory):
            Path(path, name).touch()

    monkeypatch.setattr(os, "mkdir", mkdir)
    group = outside._new_group(str(tmp_path), "own", Limits(processes=7, memory=99))
    assert group == str(tmp_path / "own")
    assert {path.name: path.read_text() for path in Path(group).iterdir()} == {"pids.max": "7", of_memory: "99"}
    left = [1, 1]

    def rmdir(path):
        if left:  # its processes are not gone yet
            left.pop()
            raise OSError("busy")
        for file in Path(path).iterdir():
            file.unlink()
        remove(path)

    monkeypatch.setattr(os, "rmdir", rmdir)
    outside._remove_group(group)
    assert not os.path.exists(group) and not left
    monkeypatch.setattr(outside, "END_SECONDS", 0.05)
    left.extend([1] * 10_000)
    with pytest.raises(OSError, match="busy"):
        outside._remove_group(group)


def test_a_user_that_nobody_is(monkeypatch):
    user = outside._free_user(shared=True)
    assert user in outside.USERS
    taken = [SimpleNamespace(info={"uids": SimpleNamespace(real=each)}) for each in outside.USERS if each != 61186]
    monkeypatch.setattr(outside, "USERS", range(61184, 61190, 2))
    monkeypatch.setattr(outside.psutil, "process_iter", lambda names: [SimpleNamespace(info={"uids": None}), *taken])
    draws = iter([61184, 61188, 61186])
    monkeypatch.setattr(outside.secrets, "choice", lambda users: next(draws))
    assert outside._free_user(shared=False) == 61186
    monkeypatch.setattr(outside.secrets, "choice", lambda users: 61184)
    with pytest.raises(NotConfined, match="no user id between 61184 and 61189 is free"):
        outside._free_user(shared=False)
    assert outside._free_user(shared=True) == 61184
    monkeypatch.setattr(outside.pwd, "getpwuid", lambda user: "somebody")
    with pytest.raises(NotConfined):
        outside._free_user(shared=True)


def test_the_filters_of_a_process():
    assert outside._filters(os.getpid()) >= 0 and outside._filters(2**22 + 5) == 0


def test_an_init_that_is_gone_is_not_waited_for(monkeypatch):
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    began = time.monotonic()
    outside._wait_gone(child.pid)
    assert time.monotonic() - began < 5
    monkeypatch.setattr(outside, "END_SECONDS", 0.1)
    outside._wait_gone(os.getpid())  # one that stays is waited for no longer
    assert 0.1 <= time.monotonic() - began < 5


@pytest.mark.skipif(not ROOT, reason="takes root")
def test_what_a_user_has_left_where_everybody_may_write_is_swept(tmp_path, monkeypatch):
    monkeypatch.setattr(outside, "WORLD_WRITABLE", (str(tmp_path), str(tmp_path / "nowhere")))
    monkeypatch.setattr(outside.tempfile, "gettempdir", lambda: str(tmp_path))
    for name, user in (("its", 61184), ("folder", 61184), ("other", 61186)):
        (tmp_path / name).mkdir() if name == "folder" else (tmp_path / name).touch()
        os.chown(tmp_path / name, user, user)
    outside._sweep(61184)
    assert os.listdir(tmp_path) == ["other"]


def test_what_this_machine_lacks_is_asked_of_a_plan(monkeypatch):
    monkeypatch.setattr(outside, "offered", lambda *given: Plan(ALL - {Measure.LIMITS}, {Measure.LIMITS: "no"}))
    assert outside.lacking() == ["limits on memory, processes and files (no)"]


def test_what_is_passed_on_cannot_be_changed():
    assert changeable(Plan) == []


def test_what_all_processes_of_a_child_use():
    """Of those that live."""

    def process(user, system, resident):
        times, memory = SimpleNamespace(user=user, system=system), SimpleNamespace(rss=resident)
        return SimpleNamespace(cpu_times=lambda: times, memory_info=lambda: memory)

    def gone():
        raise outside.psutil.NoSuchProcess(7)

    sandbox = Sandbox(plan=NONE)
    assert sandbox.usage() == (0.0, 0) and sandbox.processes() == []
    ended = SimpleNamespace(cpu_times=gone, memory_info=gone)
    sandbox.processes = lambda: [process(1.0, 0.5, 100), ended, process(2.0, 0.25, 1000)]
    assert sandbox.usage() == (3.75, 1100)
