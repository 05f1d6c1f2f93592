"""What of the file system another user may read, and what is looked for and refused before anything is mounted."""

import os
import stat
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

if sys.platform != "linux":
    pytest.skip("confining a process takes Linux", allow_module_level=True)

from tests.processes import in_a_fork
from touchstone.conformance.isolation.sandbox import kernel, mounts
from touchstone.conformance.isolation.sandbox.kernel import (
    MS_MOVE,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_RELATIME,
)


@pytest.fixture
def root():
    """A folder that others may enter."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def made(root, mode=0o755, *names, files=()):
    folder = root.joinpath(*names)
    folder.mkdir(parents=True, exist_ok=True)
    for name in files:
        (folder / name).write_text("x")
        (folder / name).chmod(0o644)
    folder.chmod(mode)
    return folder


@pytest.mark.parametrize(
    ("mode", "is_folder", "closed"),
    [
        (0o755, True, False),
        (0o751, True, True),  # others may enter it, and not see what is there
        (0o754, True, True),  # the reverse
        (0o700, True, True),
        (0o644, False, False),
        (0o640, False, True),
        (0o645, False, False),
    ],
)
def test_what_is_closed_to_others_itself(root, mode, is_folder, closed):
    path = root / "x"
    path.mkdir() if is_folder else path.write_text("x")
    path.chmod(mode)
    assert mounts._closed_itself(path) is closed
    assert (mounts.closed_to_others(path) == path) is closed


def test_the_topmost_folder_that_others_may_not_enter(root):
    inner = made(root, 0o755, "a", "b", "c", files=["file"])
    assert mounts.closed_to_others(inner / "file") is None
    (root / "a" / "b").chmod(0o744)
    assert mounts.closed_to_others(inner / "file") == mounts.closed_to_others(inner) == root / "a" / "b"
    (root / "a").chmod(0o700)
    assert mounts.closed_to_others(inner / "file") == root / "a"
    (root / "a").chmod(0o711)  # to enter is enough on the way
    (root / "a" / "b").chmod(0o711)
    assert mounts.closed_to_others(inner / "file") is None


def test_of_a_closed_folder_what_is_open_in_it(root):
    folder = made(root, 0o700, "closed", files=["open.py", ".hidden", "data"])
    made(folder, 0o755, "package", files=["__init__.py"])
    (folder / "gone").symlink_to(root / "nowhere")
    (folder / "data").chmod(0o600)
    assert mounts._within(folder) == [folder / "open.py", folder / "package"]
    for closed in ("open.py", "package"):
        kept = (folder / closed).stat().st_mode
        (folder / closed).chmod(0o700)
        with pytest.raises(OSError, match=f"other users may not read {folder / closed}"):
            mounts._within(folder)
        (folder / closed).chmod(kept)
    made(folder, 0o700, "notes")
    assert folder / "notes" not in mounts._within(folder)  # no module is in it
    (folder / "fast.so").write_text("x")
    (folder / "fast.so").chmod(0o600)
    with pytest.raises(OSError, match=r"fast\.so"):
        mounts._within(folder)
    with pytest.raises(OSError, match="other users may not read .*data"):
        mounts._within(folder / "data")


def test_paths_that_others_reach_by_way_of_one_another(root):
    inner = made(root, 0o755, "a", "b", "c")
    beside = made(root, 0o755, "ab")
    link = root / "link"
    link.symlink_to(inner)
    paths = list(map(str, (root / "a", inner, beside, link, root / "nowhere")))
    assert mounts._outermost(paths) == [root / "a", beside, link]
    (root / "a" / "b").chmod(0o700)
    assert mounts._outermost(paths) == [root / "a", inner, beside, link]
    assert mounts._closed_between(root / "a", inner) and not mounts._closed_between(root / "a" / "b", inner)
    inner.chmod(0o700)
    assert not mounts._closed_between(root / "a" / "b", inner)  # its own mode is no way to it
    assert mounts._outermost([]) == []


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        (stat.S_IFCHR | 0o666, None),
        (stat.S_IFCHR | 0o664, True),
        (stat.S_IFCHR | 0o662, True),
        (stat.S_IFDIR | 0o700, None),
    ],
)
def test_a_gpu_that_others_may_not_use(monkeypatch, mode, told):
    device = SimpleNamespace(stat=lambda: SimpleNamespace(st_mode=mode), __lt__=lambda a, b: True)
    monkeypatch.setattr(mounts, "Path", lambda *parts: SimpleNamespace(glob=lambda pattern: [device]))
    mounts.need_devices("cpu")
    if told is None:
        mounts.need_devices("cuda")
    else:
        with pytest.raises(OSError, match="other users may not use"):
            mounts.need_devices("cuda")


def test_what_is_mounted_and_how(tmp_path, monkeypatch):
    lines = (
        "22 1 0:21 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
        "30 22 0:5 / /with\\040blank ro,nosuid,nodev,noexec - tmpfs tmpfs rw\n"
        "31 22 0:6 / /plain rw - tmpfs tmpfs rw\n"
    )
    file = tmp_path / "mountinfo"
    file.write_text(lines)
    opened = open
    monkeypatch.setattr(
        "builtins.open", lambda path, *rest: opened(file if path == "/proc/self/mountinfo" else path, *rest)
    )
    assert mounts._mounts() == [
        ("/", MS_RELATIME),
        ("/with blank", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC),
        ("/plain", 0),
    ]


@pytest.mark.parametrize(("number", "passes"), [(2, True), (20, True), (22, True), (13, True), (1, False), (16, False)])
def test_a_mount_that_cannot_be_made_read_only(monkeypatch, number, passes):
    """One that another covers is out of reach; any other error counts."""
    given = []

    def mount(*arguments, **named):
        given.append((arguments, named))
        raise OSError(number, "no")

    monkeypatch.setattr(mounts, "mount", mount)
    if passes:
        mounts._read_only("/a", MS_NODEV)
    else:
        with pytest.raises(OSError, match="no"):
            mounts._read_only("/a", MS_NODEV)
    ((_, path), named) = given[0]
    assert path == "/a" and named["flags"] & MS_RDONLY and named["flags"] & MS_NODEV and named["flags"] & MS_NOSUID


def confined(monkeypatch, tmp_path, device="cpu", read_only=True, **about):
    """What is mounted where, and which of three mounts is made read-only."""
    done, closed = [], []
    monkeypatch.setattr(mounts, "mount", lambda source, target, *rest, **named: done.append((target, rest)))
    monkeypatch.setattr(mounts, "_devices", lambda settings: done.append(("/dev", ())))
    found = ["/", str(tmp_path / "home"), mounts.SHARED_MEMORY, "/proc"]
    monkeypatch.setattr(mounts, "_mounts", lambda: [(path, 0) for path in found])
    monkeypatch.setattr(mounts, "_read_only", lambda path, flags: closed.append(path))
    flags = os.ST_RDONLY if read_only else 0
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=flags))
    limits = SimpleNamespace(files=4096)
    settings = SimpleNamespace(
        home=str(tmp_path / "home"), device=device, limits=limits, **{"user": None, "covered": (), **about}
    )
    mounts.confine(settings)
    return done, closed


def test_everything_is_read_only_but_the_own_folder_and_shared_memory(monkeypatch, tmp_path):
    done, closed = confined(monkeypatch, tmp_path)
    assert [target for target, _ in done] == [str(tmp_path / "home"), "/dev", mounts.SHARED_MEMORY]
    assert closed == ["/", "/proc"]
    sizes = {target: rest[2] for target, rest in done if rest}
    assert set(sizes.values()) == {f"size=4096,nr_inodes={mounts._FILES_PER_FOLDER},mode=0700"}
    assert all(rest[0] == "tmpfs" and rest[1] == MS_NOSUID | MS_NODEV for _, rest in done if rest)


def test_a_user_owns_what_is_its_own_and_what_is_covered_is_empty(monkeypatch, tmp_path):
    covered = made(tmp_path, 0o755, "state")
    done, _ = confined(monkeypatch, tmp_path, user=61184, covered=(str(covered), str(tmp_path / "nowhere")))
    sizes = {target: rest[2] for target, rest in done if rest}
    assert sizes[str(covered)] == "size=4k,mode=0755" and str(tmp_path / "nowhere") not in sizes
    assert sizes[str(tmp_path / "home")].endswith(",mode=0700,uid=61184,gid=61184")


def test_a_driver_writes_to_its_own_entries(monkeypatch, tmp_path):
    assert confined(monkeypatch, tmp_path, device="cuda")[1] == ["/"]


def test_a_root_that_stays_writable_is_an_error(monkeypatch, tmp_path):
    with pytest.raises(OSError, match="/ is still writable"):
        confined(monkeypatch, tmp_path, read_only=False)


def test_what_is_revealed_is_bound_over_an_empty_folder(monkeypatch, root):
    """Of a folder that is closed itself what lies in it; of one below a closed one the folder."""
    own = made(root, 0o700, "own", files=["mine.py"])
    below = made(root, 0o755, "home", "package", files=["its.py"])
    (root / "home").chmod(0o700)
    plain = made(root, 0o755, "open")
    bound, mounted = [], []

    def bind(source, target):
        assert os.path.exists(source) and source.startswith("/proc/self/fd/")
        bound.append((os.readlink(source), target))

    monkeypatch.setattr(mounts, "mount", lambda source, target, *rest, **named: mounted.append(target))
    monkeypatch.setattr(mounts, "_bind", bind)
    asked = mounts.closed_to_others
    monkeypatch.setattr(mounts, "closed_to_others", lambda path: asked(path) if not mounted else None)
    before = set(os.listdir("/proc/self/fd"))
    mounts.reveal(list(map(str, (own, below, plain))))
    assert sorted(mounted) == [str(root / "home"), str(own)]
    assert sorted(bound) == sorted([(str(own / "mine.py"), own / "mine.py"), (str(below), below)])
    assert len(os.listdir("/proc/self/fd")) == len(before)
    mounted.clear()
    monkeypatch.setattr(mounts, "closed_to_others", lambda path: asked(path))
    with pytest.raises(OSError, match="other users may not read"):
        mounts.reveal([str(below)])  # it stays closed


def test_a_bind_makes_what_it_covers(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(mounts, "mount", lambda *given, **named: done.append(given))
    folder, file = made(tmp_path, 0o755, "folder"), tmp_path / "file"
    file.write_text("x")
    old = os.umask(0o077)
    try:
        mounts._bind(str(folder), tmp_path / "a" / "b" / "folder")
        mounts._bind(str(file), tmp_path / "a" / "b" / "file")
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(old)
    assert (tmp_path / "a" / "b" / "folder").is_dir() and (tmp_path / "a" / "b" / "file").is_file()
    assert (tmp_path / "a" / "b" / "folder").stat().st_mode & 0o777 == 0o755
    assert done == [
        (str(folder), str(tmp_path / "a" / "b" / "folder")),
        (str(file), str(tmp_path / "a" / "b" / "file")),
    ]
    mounts._bind(str(folder), Path(tmp_path / "a" / "b" / "folder"))  # twice


def test_a_view_of_its_own_begins_apart_and_with_its_own_processes(monkeypatch):
    done = []
    monkeypatch.setattr(mounts, "mount", lambda source, target, *rest, **named: done.append((target, rest, named)))
    mounts.detach()
    mounts.own_proc()
    assert done == [
        ("/", (), {"flags": MS_REC | MS_PRIVATE}),
        ("/proc", ("proc", MS_NOSUID | MS_NODEV | MS_NOEXEC), {}),
    ]


def test_a_folder_of_devices_has_what_computing_takes(monkeypatch, tmp_path):
    """No terminal and no disk; a GPU where it is asked for."""

    def made_of(device):
        bound, mounted = [], []
        staging = tmp_path / device
        (staging / "dev").mkdir(parents=True)
        monkeypatch.setattr(mounts, "_bind", lambda source, target: bound.append((source, target)))
        monkeypatch.setattr(
            mounts, "mount", lambda source, target, *rest, **named: mounted.append((source, target, named))
        )
        mounts._devices(SimpleNamespace(folder=str(staging), device=device))
        return staging / "dev", bound, mounted

    folder, bound, mounted = made_of("cpu")
    assert bound == [(f"/dev/{name}", folder / name) for name in mounts.DEVICES]
    assert {path.name for path in folder.iterdir()} == {"fd", "stdin", "stdout", "stderr", "shm"}
    assert os.readlink(folder / "fd") == "/proc/self/fd" and os.readlink(folder / "stderr") == "/proc/self/fd/2"
    assert mounted[0][1] == str(folder) and mounted[-1] == (str(folder), "/dev", {"flags": MS_MOVE})
    monkeypatch.setattr(mounts, "GPU_DEVICES", ("tty",))
    folder, bound, _ = made_of("cuda")
    assert bound[-1] == ("/dev/tty", folder / "tty") and len(bound) == len(mounts.DEVICES) + 1


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root")
def test_a_view_as_the_system_has_it(root):
    """Each mount with what holds for it, its kind and size; and nothing of it outside."""
    for name in ("home", "dev", "covered"):
        made(root, 0o755, name, files=["file"])
    about = dict(folder=str(root), home=str(root / "home"), device="cpu", user=61184, covered=(str(root / "covered"),))
    settings = SimpleNamespace(limits=SimpleNamespace(files=1 << 20), **about)

    def seen():
        try:
            kernel.unshare(kernel.CLONE_NEWNS)
        except PermissionError:
            return None
        mounts.detach()
        mounts.confine(settings)
        found = {}
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            own, _, system = line.partition(" - ")
            kind, source, options = system.split()
            found[own.split()[4]] = own.split()[5].split(","), kind, source, options.split(",")
        names = {folder: sorted(os.listdir(folder)) for folder in (root / "home", root / "covered", "/dev", "/dev/shm")}
        return found, list(names.values())

    if (told := in_a_fork(seen, root)) is None:
        pytest.skip("root may not make namespaces here")
    found, (home, covered, devices, shared) = told
    assert home == covered == shared == [] and set(devices) == {
        *("null", "zero", "full", "random", "urandom"),
        *("fd", "stdin", "stdout", "stderr", "shm"),
    }
    places = {"/": "ro nosuid", "/dev": "ro nosuid", "/dev/null": "ro nosuid"}
    places |= {str(root / "covered"): "ro nosuid nodev"}
    places |= dict.fromkeys((str(root / "home"), mounts.SHARED_MEMORY), "rw nosuid nodev")
    for path, held in places.items():
        assert set(held.split()) <= set(found[path][0]), path
    files = f"nr_inodes={mounts._FILES_PER_FOLDER}"
    own = {"size=1024k", files, "mode=700", "uid=61184", "gid=61184"}
    sizes = {"/dev": {"size=1024k", "mode=755"}, str(root / "covered"): {"size=4k", "mode=755"}}
    sizes |= dict.fromkeys((str(root / "home"), mounts.SHARED_MEMORY), own)
    for path, size in sizes.items():
        assert found[path][1:3] == ["tmpfs", "tmpfs"] and size <= set(found[path][3]), path
    assert (root / "home" / "file").exists() and (root / "covered" / "file").exists()
