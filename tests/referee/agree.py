"""Whether verdicts agree: of several runs of `judge`, of single runs of `check`, and with what each candidate owes.

`python -m tests.referee.agree FOLDER RESULTS.jsonl ...` takes the folder that tests/referee/many.py wrote and what
`judge --seed 0 --timeout 10` made of its listings, on one machine or on a cluster. Each result is compared with those
of the same candidate, every tenth (--every) with that of `check` with the same settings, and all with expected.json
where it is there. A fault that shows in one of its dtypes has been found.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.referee.many import ALL
from touchstone.conformance.batch.attempt import prepare
from touchstone.conformance.cli import main as touchstone
from touchstone.conformance.judging.judgement import FAILED, PARTIAL, PASSED
from touchstone.conformance.reporting.status import Status

LISTINGS = {"kernels.jsonl": ["--untrusted"], "planted.jsonl": []}
SETTINGS = ["--device=cpu", "--quick", "--seed=0", "--timeout=10"]
Found = dict[str, dict[str, str]]  # id -> file of results -> verdict


def results(paths: Sequence[Path]) -> Found:
    found: Found = defaultdict(dict)
    for path in paths:
        for line in path.read_text().splitlines():
            record = json.loads(line)
            found[record["candidate"]["id"]][path.name] = record["verdict"]
    return found


def single(line: Mapping[str, Any], options: Sequence[str]) -> str:
    """The verdict of `check`, in a fork of this process. A file that does not import is no wrong usage of `judge`."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        file, record = Path(folder, "candidate.py"), Path(folder, "record.json")
        file.write_text(line["source"])
        sizes = " ".join(f"{axis}={_listed(size)}" for axis, size in line.get("sizes", {}).items())
        words = ["check", line["op"], f"--kernel={file}:kernel", f"--dtypes={','.join(line['dtypes'])}"]
        words += [*SETTINGS, *options, f"--json={record}", *([f"--sizes={sizes}"] if sizes else [])]
        child = os.fork()
        if child == 0:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for number in (1, 2):
                os.dup2(nowhere, number)
            os._exit(touchstone(words))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return FAILED if status == Status.USAGE else str(json.loads(record.read_text())["verdict"])


def _listed(size: Any) -> str:
    return ",".join(map(str, size)) if isinstance(size, list) else str(size)


def owed(found: Found, expected: Mapping[str, str]) -> Iterator[str]:
    """The candidates that came to another end than they owe. A fault may be told of in any of its dtypes; a right
    kernel that declines some layouts is partial, where it is confined."""
    seen: dict[str, set[str]] = defaultdict(set)
    for name, verdicts in found.items():
        if expected.get(name) == FAILED:
            fault = name.rpartition("/")[0] if name.rpartition("/")[2] in ALL else name
            seen[fault] |= set(verdicts.values())
        elif name in expected and not set(verdicts.values()) <= {PASSED, PARTIAL}:
            yield f"{name}: owes passed, and is {', '.join(sorted(set(verdicts.values())))}"
    for fault, verdicts in seen.items():
        if verdicts == {PASSED}:
            yield f"{fault}: owes to fail, and passes"


def main(arguments: Sequence[str]) -> int:
    asked = argparse.ArgumentParser(prog="python -m tests.referee.agree", description=__doc__)
    asked.add_argument("folder", type=Path)
    asked.add_argument("results", type=Path, nargs="+")
    asked.add_argument("--every", type=int, default=10, help="of which one is judged by `check` too; 0: none")
    given = asked.parse_args(arguments)
    found, wrong, checked = results(given.results), [], 0
    if given.every:
        prepare("cpu")
    for listing, options in LISTINGS.items():
        lines = [json.loads(text) for text in (given.folder / listing).read_text().splitlines()]
        here = [line for line in lines if line["id"] in found]
        for line in here[:: given.every] if given.every else []:
            if line.get("deterministic", True):  # which `check` takes in Python alone
                found[line["id"]]["check"] = single(line, options)
                checked += 1
    wrong += [f"{name}: {verdicts}" for name, verdicts in found.items() if len(set(verdicts.values())) > 1]
    expected = given.folder / "expected.json"
    if expected.is_file():
        wrong += owed(found, json.loads(expected.read_text()))
    twice = sum(len(set(verdicts) - {"check"}) > 1 for verdicts in found.values())
    print(*wrong, sep="\n")
    print(f"{len(found)} candidates, {twice} in several results, {checked} by check; {len(wrong)} differ")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
