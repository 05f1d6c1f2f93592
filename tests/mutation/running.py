"""Running mutants, several at a time, each in a copy of the clone: killed, by which test, or survived."""

import json
import queue
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutation.coverage import Coverage, Known
from tests.mutation.hanging import LIMITS
from tests.mutation.operators import Mutant
from tests.mutation.trees import Tree

KILLED, TIMED_OUT, SURVIVED = "killed", "timed out", "survived"
STARTING = 60.0  # seconds for pytest to start, beside a busy machine
HANGS = re.compile(r"Timeout \(\d+:\d\d:\d\d(\.\d+)?\)!\n")  # what faulthandler says
SLOWER = 5.0  # times as long as it took alone, after which a test hangs


@dataclass(frozen=True)
class Result:
    """What became of one mutant."""

    id: str
    verdict: str
    by: str  # the test that failed, or what pytest said last
    tests: int  # that it was run with
    seconds: float


def run(
    mutants: Sequence[Mutant | None],
    coverage: Coverage,
    trees: Sequence[Tree],
    level: str,
    seconds: float,
    told: Callable[[Mutant | None, Result], None],
    until: float,
    like: Sequence[Mutant] = (),
) -> None:
    """Run each mutant in one of the `trees` and tell its result; None stands for a control: the tests of one of `like`
    on the code as it is. No mutant is begun after `until` (of time.monotonic)."""
    waiting: queue.SimpleQueue[tuple[int, Mutant | None]] = queue.SimpleQueue()
    for numbered in enumerate(mutants):
        waiting.put(numbered)
    lock = threading.Lock()
    errors: list[Exception] = []

    def work(tree: Tree) -> None:
        try:
            while time.monotonic() < until and not errors:
                try:
                    number, mutant = waiting.get_nowait()
                except queue.Empty:
                    return
                result = judge(mutant, mutant or like[number % len(like)], coverage, tree, level, seconds)
                with lock:
                    told(mutant, result)
        except Exception as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(tree,)) for tree in trees]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]


def judge(mutant: Mutant | None, like: Mutant, coverage: Coverage, tree: Tree, level: str, seconds: float) -> Result:
    """One mutant, or with None the code as it is, by the tests that could notice `like`."""
    tests = coverage.tests_for(like, seconds)
    text = (tree.root / like.path).read_text()
    begun = time.monotonic()
    with tree.changed(like.path, text if mutant is None else mutant.applied(text)):
        status, said = _tested(tests, tree, level, compiles=like.path.startswith("backends/"))
    took = round(time.monotonic() - begun, 1)
    name = f"control: {like.id}" if mutant is None else like.id
    if status is None:
        return Result(name, TIMED_OUT, _running(said), len(tests), took)
    if status == 5:
        raise RuntimeError(f"no test ran for {name}:\n{said[-2000:]}")
    return Result(name, SURVIVED if status == 0 else KILLED, _failed(said), len(tests), took)


def _tested(tests: Sequence[Known], tree: Tree, level: str, compiles: bool) -> tuple[int | None, str]:
    listed = tree.folder / "tests"
    listed.write_text("\n".join(test.id for test in tests))
    limit = STARTING + SLOWER * sum(test.seconds for test in tests)
    arguments = ["-x", "-v", "--tb=line", f"--level={level}", "-p", "tests.mutation.hanging", f"@{listed}"]
    (tree.folder / "limits").write_text(json.dumps({test.id: STARTING / 4 + SLOWER * test.seconds for test in tests}))
    variables = {LIMITS: str(tree.folder / "limits")}
    status, said = tree.pytest(arguments, limit, variables, caches_kept=not compiles)
    return (None if HANGS.search(said) else status), said


def _failed(said: str) -> str:
    """The test that failed; else the last line that says why there was none."""
    lines = [line for line in said.splitlines() if line.strip()]
    for line in lines:
        if line.startswith(("FAILED ", "ERROR ")):
            return line.partition(" - ")[0]
    return lines[-1][:200] if lines else ""


def _running(said: str) -> str:
    """The test that was running when the time was over."""
    lines = [line for line in said.splitlines() if "::" in line]
    return lines[-1].split(" ")[0] if lines else ""


def kept(path: Path) -> dict[str, Result]:
    """The results of a run that was interrupted, by mutant."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {result.id: result for result in (Result(**json.loads(line)) for line in lines)}


def keep(path: Path, result: Result) -> None:
    with open(path, "a") as file:
        file.write(json.dumps(asdict(result)) + "\n")
