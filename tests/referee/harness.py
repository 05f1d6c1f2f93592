"""Hostile candidates and faults: where they are written down, and how one of them is judged, or timed.

They are functions of the files in tests/referee/candidates, and for `bench` in tests/referee/timed, one file a class.
Whole files of honest kernels in other forms are in tests/referee/forms.
The first line of a docstring says what
the function does; the last one what is demanded of the judge, as `demands`:

- refused: the exit status is not 0;
- noticed: the exit status is not 0, or the report names what happened, in the words after the colon;
- contained: the verdict is that of an honest kernel, or worse; only nothing is left;
- untrusted: refused, in untrusted mode alone; "untrusted, contained": likewise.

An attack that ends by an error of its own has attacked nothing, and is broken: it fails its test. Where an error is
what it is for, or is how it is held up, the words after the colon (of "noticed" too) are in that error.

A function whose name begins with `import_` is called when the file is imported, and the kernel is honest besides.
"""

import ast
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.processes import clean_environment
from touchstone.backends.emulator import compiler
from touchstone.backends.storage import artefacts
from touchstone.conformance.discovery import registry
from touchstone.conformance.spec.checks import Check

HERE = Path(__file__).parent
CANDIDATES = HERE / "candidates"
TIMED = HERE / "timed"
FORMS = HERE / "forms"
HEAD = "honest"
DEMANDS = ("refused", "noticed", "contained")
NARROWED = {  # of each op: trials that take about a second
    "softmax": ("--sizes=cols=64,1024", "--dtypes=float32"),
    "rms_norm": ("--sizes=cols=33", "--dtypes=float32"),
    "matmul": ("--sizes=M=33,65", "--dtypes=float32"),
    "transpose": ("--sizes=cols=33", "--dtypes=float32"),
}
OF_KIND = {  # of each class of candidates that takes others
    "declining": ("--timeout=10", "--dtypes=float32"),
    "sizes": ("--timeout=10",),
    "faults": (
        "--sizes=cols=64,1024",
        "--dtypes=float32",
        "--timeout=2",
    ),  # two trials, since each that ends a process is made again
}
SECONDS = 60.0  # which a command may take before it counts as stopped
PLANTED = b"planted by a candidate"
RAISED = re.compile(r"(?:a timed call raised )?[A-Z]\w*: ")  # how a bench tells that a kernel raised
NO_IMPORT = re.compile(r"does not import: ((?:[A-Z]\w*: |No module named ).*)")
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
VERDICT = re.compile(r"^\s*(PASSED|FAILED|NOT RUN|PARTIAL|NOT JUDGED)\b", re.MULTILINE)
SERVICE = re.compile(r"^\s*(?:::|##\[)", re.MULTILINE)  # what CI services take for a command in what is printed


@dataclass(frozen=True)
class Candidate:
    """One hostile function."""

    kind: str  # its file: the class of attack
    name: str
    says: str
    demand: str
    words: str = ""  # a regular expression that the report has to match
    untrusted: bool = False  # whether the demand is made in untrusted mode alone
    op: str = "softmax"
    options: tuple[str, ...] = ()
    folder: Path = CANDIDATES

    @property
    def id(self) -> str:
        return f"{self.kind}-{self.name}"

    @property
    def at_import(self) -> bool:
        return self.name.startswith("import_")

    def source(self, tag: str, port: int) -> str:
        """The file as it is judged; `tag` and `port` take the places of TAG and PORT. Its function is `kernel`."""
        head = (self.folder / f"{HEAD}.py").read_text()
        head = head.replace('TAG = "planted"', f"TAG = {tag!r}").replace("PORT = 0", f"PORT = {port}")
        last = f"{self.name}()\nkernel = {self.op}\n" if self.at_import else f"kernel = {self.name}\n"
        whole = "\n\n".join([head, _without_head((self.folder / f"{self.kind}.py").read_text()), last])
        return needed(whole, "kernel", *([self.name] if self.at_import else []))


def _without_head(text: str) -> str:
    """Without the import of what is put before it."""
    return re.sub(rf"^from tests\.referee\.\w+\.{HEAD} import (?:\([^)]*\)|.*)\n", "", text, flags=re.MULTILINE)


def needed(text: str, *wanted: str) -> str:
    """Of a module, what these names need, and the statements that stand for themselves: nobody else's imports."""
    tree, missing, kept = ast.parse(text), set(wanted), set()
    while missing:
        found = {id(node): node for node in tree.body if _defined(node) & missing}
        used = {each.id for node in found.values() for each in ast.walk(node) if isinstance(each, ast.Name)}
        kept |= missing
        missing = used - kept
    body = []
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            node.names = [alias for alias in node.names if (alias.asname or alias.name.partition(".")[0]) in kept]
            body += [node] if node.names else []
        elif _defined(node) & kept or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            body.append(node)
    return ast.unparse(ast.Module(body, [])) + "\n"


def _defined(node: ast.stmt) -> set[str]:
    """The names that a statement of a module gives a meaning."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


def candidates(*kinds: str, folder: Path = CANDIDATES) -> list[Candidate]:
    """All of a folder, or those of these files."""
    names = kinds or sorted(path.stem for path in folder.glob("*.py") if path.stem not in (HEAD, "__init__"))
    return [found for kind in names for found in _of_file(folder, kind)]


def _of_file(folder: Path, kind: str) -> Iterator[Candidate]:
    for node in ast.parse((folder / f"{kind}.py").read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and (text := ast.get_docstring(node)):
            lines = text.splitlines()
            told, _, words = lines[-1].partition(":")
            marks = [mark.strip() for mark in told.lower().rstrip(".").split(",")]
            demand = next((mark for mark in marks if mark in DEMANDS), "refused")
            if not set(marks) <= {*DEMANDS, "untrusted", *NARROWED, *(m for m in marks if m.startswith("--"))}:
                continue
            op = next((mark for mark in marks if mark in NARROWED), "softmax")
            options = tuple(mark for mark in marks if mark.startswith("--"))
            says = " ".join(lines[:-1]).strip()
            alone = "untrusted" in marks
            yield Candidate(kind, node.name, says, demand, words.strip(), alone, op, options, folder)


def sizes_of(candidate: Candidate) -> dict[str, list[int]]:
    """The sizes that a candidate is judged on, as a line of JSON has them."""
    given = OF_KIND.get(candidate.kind, NARROWED[candidate.op])
    pairs = (word.removeprefix("--sizes=").split("=") for word in given if word.startswith("--sizes="))
    return {axis: [int(size) for size in sizes.split(",")] for axis, sizes in pairs}


@dataclass
class Ended:
    """How the judging of a candidate ended."""

    status: int
    late: bool  # it was ended because it took too long
    seconds: float
    left: list[str]  # processes that outlived it
    stdout: str
    stderr: str
    files: list[str] = field(default_factory=list)  # that it left outside its folder, or changed in the clone
    record: dict | None = None  # what the command wrote into record.json

    @property
    def verdict(self) -> str | None:
        """The last one that was printed."""
        return next(iter(reversed(VERDICT.findall(self.stdout))), None)

    @property
    def errors(self) -> list[str]:
        """The errors of the candidate's own code, where the judge holds nothing else against it."""
        found = NO_IMPORT.findall(f"{self.stdout}\n{self.stderr}")
        for report in (self.record or {}).get("reports", []):
            failures = [finding for finding in report["findings"] if finding["severity"] == "failure"]
            if any(finding["check"] != Check.RAISED for finding in failures):
                return []
            found += [finding["message"] for finding in failures]
            found += [why for why in report["coverage"]["reasons"]["not_run"] if why.startswith("No module named ")]
        return found

    @property
    def told(self) -> bool:
        """Whether the judge came to an end of its own: with a verdict, or with a sentence about the import."""
        usage = self.status in (2, 3) and re.search(
            r"^python -m touchstone check: .* does not import", self.stderr, re.M
        )
        return not self.late and self.status >= 0 and bool(usage or self.verdict)


class Judge:
    """Judges candidates, one at a time, with a clone of its own that they may harm."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clone = folder, folder / "clone"
        self.lock = threading.Lock()
        self.tag = f"planted_{os.getpid()}_{id(self)}"
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.setblocking(False)
        self.cache = folder / "cache"
        artefacts.give([] if compiler.why_not() else [compiler.engine()], self.cache)  # as other tests left it
        self.port = self.server.getsockname()[1]
        self._count = 0
        self._zygote: subprocess.Popen[str] | None = None
        self._restore()
        self.knows_untrusted = "--untrusted" in self._asked(["check", "--help"]).stdout

    def close(self) -> None:
        self.server.close()
        self._end_zygote()

    def _end_zygote(self) -> None:
        if self._zygote is not None:
            self._zygote.kill()
            self._zygote.communicate()
            self._zygote = None

    def judged(self, candidate: Candidate, untrusted: bool, seconds: float = SECONDS) -> Ended:
        """The end of `check` with this candidate."""
        arguments = [
            "check",
            candidate.op,
            "--kernel={file}:kernel",
            "--device=cpu",
            "--quick",
            *OF_KIND.get(candidate.kind, (*NARROWED[candidate.op], "--timeout=10")),
            *(["--untrusted"] if untrusted else []),
            *candidate.options,
            "--json=record.json",
        ]
        return self._asked(arguments, candidate.source(self.tag, self.port), seconds)

    def form(self, path: Path) -> Ended:
        """The end of `check --untrusted` with a file of a softmax."""
        arguments = ["check", "softmax", "--kernel={file}:softmax", "--device=cpu", "--quick", "--untrusted"]
        arguments += ["--sizes=cols=64,1024", *(["--allow-library"] if path.stem == "by_library" else [])]
        return self._asked(arguments, path.read_text(), beside=path.parent.glob(f"{path.stem}.cu"))

    def timed(self, candidate: Candidate, seconds: float = SECONDS) -> Ended:
        """The end of `bench` with this candidate."""
        arguments = ["bench", candidate.op, "--kernel={file}:kernel", "--device=cpu", "--json=record.json"]
        arguments += ["--seconds=0.02", "--timeout=2", *(["--untrusted"] if candidate.untrusted else [])]
        return self._asked(arguments, candidate.source(self.tag, self.port), seconds)

    def _asked(
        self, arguments: list[str], source: str | None = None, seconds: float = SECONDS, beside: Iterable[Path] = ()
    ) -> Ended:
        with self.lock:
            self._count += 1
            place = self.folder / f"{self._count}"
            for name in ("here", "home", "tmp"):
                (place / name).mkdir(parents=True)
            if source is not None:
                (place / "here" / "candidate.py").write_text(source)
            for path in beside:
                shutil.copy(path, place / "here")
            request = {
                "arguments": [word.replace("{file}", str(place / "here" / "candidate.py")) for word in arguments],
                "folder": str(place / "here"),
                "environment": clean_environment(
                    PYTHONPATH=str(self.clone),
                    HOME=str(place / "home"),
                    TMPDIR=str(place / "tmp"),
                    TOUCHSTONE_CACHE=str(self.cache),
                    OMP_NUM_THREADS="1",
                    COLUMNS="200",
                ),
                "stdout": str(place / "stdout"),
                "stderr": str(place / "stderr"),
                "seconds": seconds,
            }
            answer = self._answer(request)
            texts = [(place / name).read_bytes()[-200_000:].decode(errors="replace") for name in ("stdout", "stderr")]
            ended = Ended(**answer, stdout=texts[0], stderr=texts[1], files=self._planted(place))
            with contextlib.suppress(OSError, ValueError):  # a candidate without a sandbox may have been at it
                ended.record = json.loads((place / "here" / "record.json").read_text())
            if self._harmed():
                ended.files.append("the clone")
                self._restore()
            shutil.rmtree(place, ignore_errors=True)
            return ended

    def _answer(self, request: dict) -> dict:
        if self._zygote is None:
            environment = {**request["environment"], "HOME": str(self.folder)}
            self._zygote = subprocess.Popen(
                [sys.executable, "-W", "ignore", str(HERE / "zygote.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
                start_new_session=True,
            )
        assert self._zygote.stdin is not None and self._zygote.stdout is not None
        self._zygote.stdin.write(json.dumps(request) + "\n")
        self._zygote.stdin.flush()
        line = self._zygote.stdout.readline()
        if not line:
            self._end_zygote()
            return {"status": -9, "late": True, "seconds": 0.0, "left": ["the process that starts commands was ended"]}
        return json.loads(line)

    def _restore(self) -> None:
        """The clone as it was, for a process that has not imported it yet."""
        self._end_zygote()
        shutil.rmtree(self.clone, ignore_errors=True)
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=registry.ROOT, capture_output=True, text=True, check=True
        )
        for name in filter(None, listed.stdout.split("\0")):
            source, target = registry.ROOT / name, self.clone / name
            if name.startswith(("docs/", "tests/")) or not os.path.lexists(source):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
        self._sound = self._fingerprints()

    def _fingerprints(self) -> dict[str, tuple[int, int]]:
        """Size and time of each file of the clone."""
        found = {}
        for folder, _, names in os.walk(self.clone):
            for name in names:
                path = os.path.join(folder, name)
                status = os.lstat(path)
                found[path] = status.st_size, status.st_mtime_ns
        return found

    def _harmed(self) -> bool:
        """Whether the clone was changed; compiled modules may be added, but not foreign ones."""
        found = self._fingerprints()
        added = [Path(path) for path in found.keys() - self._sound.keys()]
        harmed = any(found.get(path) != mark for path, mark in self._sound.items()) or any(
            path.suffix != ".pyc" or PLANTED in path.read_bytes() for path in added
        )
        self._sound = found
        return harmed

    def _planted(self, place: Path) -> list[str]:
        """Files that the candidate left outside the judge's own."""
        found = []
        for root in (place / "here", place / "home", place / "tmp", self.cache):
            for path in root.rglob("*"):
                if path.is_file() and not path.is_symlink() and path.name != "candidate.py":
                    with open(path, "rb") as file:
                        if "planted" in path.name or PLANTED in file.read(1 << 16):
                            found.append(os.path.relpath(path, place))
        for root in (Path("/tmp"), Path("/dev/shm"), Path("/var/tmp")):
            for path in root.glob(f"*{self.tag}*"):
                found.append(str(path))
                path.unlink(missing_ok=True)
        try:
            self.server.accept()[0].close()
            found.append("a connection to a server")
        except BlockingIOError:
            pass
        return found


def complaints(candidate: Candidate, ended: Ended, untrusted: bool) -> list[str]:
    """What the judge owes and did not do; nothing if it stood."""
    owed = untrusted or not candidate.untrusted
    found = []
    if owed and candidate.demand == "refused" and ended.status == 0:
        found.append("got through: exit status 0")
    if owed and candidate.demand == "noticed" and ended.status == 0 and not _noticed(candidate, ended):
        found.append("not noticed: exit status 0, and no word about it")
    found += _broken(candidate, ended.errors) if owed else []
    if owed and not ended.told:
        what = f"stopped after {ended.seconds:.0f} s" if ended.late else f"ended with status {ended.status}"
        found.append(f"the judge {what}, without a verdict: {(ended.stderr.strip().splitlines() or [''])[-1][:150]}")
    alien = VERDICT.search(ended.stderr) or SERVICE.search(f"{ended.stdout}\n{ended.stderr}")
    if len(VERDICT.findall(ended.stdout)) > 1 or alien or CONTROLS.search(ended.stdout):
        found.append("what it says makes a line of the report, or moves the terminal's cursor")
    if ended.status == 0 and ended.verdict not in (None, "PASSED"):
        found.append(f"exit status 0, but {ended.verdict}")
    if owed and ended.left:
        found.append(f"processes are left: {', '.join(ended.left)}")
    if owed and ended.files:
        found.append(f"files are left or changed: {', '.join(ended.files)}")
    return found


def _broken(candidate: Candidate, errors: Sequence[str]) -> list[str]:
    """That an attack came to nothing by a mistake in it."""
    undeclared = [error for error in errors if not candidate.words or not re.search(candidate.words, error)]
    return [f"broken attack, it ends by an error of its own: {error[:300]}" for error in undeclared[:1]]


def timing_complaints(candidate: Candidate, ended: Ended, owed: float) -> list[str]:
    """What a bench owes and did not do, with a candidate that has to work for so many seconds in a call."""
    (row,) = ended.record["results"] if ended.record else [{"status": None, "ms": None, "problems": []}]
    told = row["problems"] or [""]
    found = _broken(candidate, told) if all(map(RAISED.match, told)) else []
    if ended.late or ended.status not in (0, 1, 2, 3):
        found.append(f"the bench was stopped, or ended with status {ended.status}: {ended.stderr.strip()[-300:]}")
    if (ended.status == 0) != (row["status"] == "measured"):
        found.append(f"exit status {ended.status}, and the record says {row['status']}")
    if ended.status == 1 and not row["problems"]:
        found.append("refused without a reason")
    if candidate.demand == "refused" and ended.status == 0:
        found.append(f"got through: {row['ms']} ms")
    if row["ms"] is not None and row["ms"] < 0.8e3 * owed:
        found.append(f"timed below the work it owes: {row['ms']} ms of {1e3 * owed:g}")
    if ended.left:
        found.append(f"processes are left: {', '.join(ended.left)}")
    if ended.files:
        found.append(f"files are left or changed: {', '.join(ended.files)}")
    return found


def _noticed(candidate: Candidate, ended: Ended) -> bool:
    """Whether a note or a finding has the words, or there is any where no words are demanded."""
    lines = re.findall(r"^.*(?:\[[0-9a-f]{8}\]|\bnote:).*$", ended.stdout, re.MULTILINE)
    return any(re.search(candidate.words, line) for line in lines)
