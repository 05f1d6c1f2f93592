"""Compile conformance: every kernel of every variant compiles for the architectures it claims, on a machine without a
GPU.

A fresh process, which interprets nothing, calls the launchers on CPU tensors: on the contract's quick cases, and on its
large sizes, whose values nobody reads. What would be launched is recorded; each distinct specialisation is compiled. No
list of signatures exists. `backends/<name>/runtime/compiling.py` makes a backend one that can do
this: backends/protocol.py, `Compiling`.

A variant fails when a kernel is refused, when it needs more shared memory than the architecture has, when it launches
nothing in one of the contract's dtypes, or when a thread spills more than SPILL_LIMIT bytes, as much as its registers
hold; a variant that has to says so: `@variant(spills=2048)`, and `@variant(dtypes=HALF)` where its instructions take no
others.
"""

import json
import multiprocessing
import os
import subprocess
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from types import ModuleType
from typing import Any, NamedTuple

import torch

from touchstone.backends.variants import attributes
from touchstone.conformance.discovery import registry
from touchstone.conformance.reporting.console import Table
from touchstone.conformance.spec.cases import plain_case, plan
from touchstone.conformance.spec.contract import DTYPES, Case, Contract

SPILL_LIMIT = 1024  # bytes per thread; it has 255 registers of 4 bytes
SECONDS = 300.0  # for one compilation; the compiler hangs at times
COLUMNS = {
    "op": "op",
    "backend": "backend",
    "variant": "variant",
    "kernel": "kernel",
    "arch": "arch",
    "specialisations": "specialisations",
    "compiled": "to machine code",
    "registers": "registers",
    "spills": "spilled bytes",
    "shared": "shared bytes",
}


def backends() -> tuple[str, ...]:
    """The backends whose kernels can be compiled without a device."""
    return tuple(
        name
        for name in registry.backends()
        if (registry.ROOT / "backends" / name / "runtime" / "compiling.py").is_file()
    )


class CompilerError(RuntimeError):
    """The compiling process ended without an answer; the message holds what it printed last."""


class Compiler:
    """A process that compiles the kernels of one backend, op by op. Close it, or use it in a `with` statement."""

    def __init__(self, backend: str):
        unset = registry.backend(backend).CPU_VARIABLES
        environment = {name: value for name, value in os.environ.items() if name not in unset}
        path = os.pathsep.join([str(registry.IMPORT_PATH), *(os.path.abspath(folder) for folder in sys.path)])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "touchstone.conformance.compiling.client", backend],
            cwd=registry.IMPORT_PATH,
            env={**environment, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout

    def check(
        self, op: str, variants: Sequence[str] | None = None, every: bool = True, processes: int = 1
    ) -> dict[str, Any]:
        """Compile the variants of `op` (all, or those named in `variants`).

        With `every`, each distinct specialisation becomes machine code for each architecture. Without, of each variant
        and kernel one of each combination of dtypes becomes machine code, for the architectures in turn and for each at
        least
        one: the largest first, then those that add most to what was compiled. And as many more pass the compiler's
        front end for the oldest architecture as it takes to have seen everything that they are specialised on.

        Returns `records`, one for each specialisation and architecture (`variants`, `case`, `kernel`, `launch`, `arch`,
        `seconds`, with machine code `registers`, `spills`, `shared`), and `findings`, one sentence each; or only
        `missing`, why the backend cannot compile here. Raises CompilerError.
        """
        request = dict(op=op, variants=variants, every=every, processes=processes)
        try:
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
            answer = self._answers.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            status = self._process.wait()
            raise CompilerError(f"the process that compiles {op} ended with status {status}; see its output")
        return json.loads(answer)

    def close(self) -> None:
        with suppress(BrokenPipeError):
            self._requests.close()
        self._answers.close()
        self._process.wait()

    def __enter__(self) -> "Compiler":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def rows(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A record for each variant, kernel and architecture: how many specialisations there are, and the greatest
    resources."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for record in records:
        for variant in record["variants"]:
            key = (variant, record["kernel"], record["arch"])
            row = found.setdefault(
                key, dict(zip(("variant", "kernel", "arch"), key, strict=True), specialisations=0, compiled=0)
            )
            row["specialisations"] += 1
            row["compiled"] += "registers" in record
            for name in ("registers", "spills", "shared"):
                if name in record:
                    row[name] = max(row.get(name, 0), record[name])
    return list(found.values())


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Of rows with their op and backend: registers and spills a thread, shared memory a block."""
    made = Table(
        "compiled; registers, spills and shared memory: the most of any specialisation", list(COLUMNS.values())
    )
    made.rows = [[str(row.get(name, "")) for name in COLUMNS] for row in rows]
    return made


class _Launched(NamedTuple):
    """A distinct specialisation for one architecture, and the variants that launch it, each with the first case."""

    launch: Any
    arch: str
    variants: dict[str, str]


# What was compiled before, by key, architecture and whether to machine code; with the launch, so that its key stays its
# own.
_Known = dict[tuple[str, str, bool], tuple[Any, dict[str, Any]]]


def _check(
    compiling: ModuleType,
    variants: dict[str, Any],
    contract: Contract,
    every: bool,
    processes: int,
    known: _Known,
    beat: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """`known` grows by what is compiled: ladders share kernels, a product is part of four ops. With `beat`, which is
    called before each, they are compiled in this process, else in forked ones.
    """
    findings: list[str] = []
    claims = {name: compiling.architectures(attributes(fn).needs) for name, fn in variants.items()}
    launched = _record(compiling, variants, claims, contract, findings)
    everything = {(each.launch.key, each.arch) for each in launched}
    chosen, seen = (everything, set[tuple[str, str]]()) if every else _chosen(launched, claims)
    compiled_at_all = chosen | seen

    wanted = [(each.launch.key, each.arch, (each.launch.key, each.arch) in chosen) for each in launched]
    fresh = [i for i, key in enumerate(wanted) if key[:2] in compiled_at_all and key not in known]

    def compile_one(task: int) -> dict[str, Any]:
        launch, arch, _ = launched[fresh[task]]
        return compiling.compile_one(launch, arch, to_machine_code=(launch.key, arch) in chosen)

    if beat is None:
        results = _in_children(compile_one, len(fresh), processes)
    else:
        results = []
        for task in range(len(fresh)):
            beat()
            results.append(compile_one(task))
    for i, compiled in zip(fresh, results, strict=True):
        known[wanted[i]] = launched[i].launch, compiled
    records = []
    refused: dict[tuple[str, str], list[_Launched]] = defaultdict(list)
    for each, key in zip(launched, wanted, strict=True):
        compiled = known[key][1] if key in known else {"seconds": 0.0}
        allowed = max(attributes(variants[variant]).spills or SPILL_LIMIT for variant in each.variants)
        if "error" in compiled:
            refused[each.launch.kernel, compiled["error"]].append(each)
        elif compiled.get("spills", 0) > allowed:
            spilt = f"spills {compiled['spills']} bytes per thread; {allowed} are allowed"
            findings.append(f"{_about(each)}\n{spilt}")
        records.append(
            {
                "variants": list(each.variants),
                "case": next(iter(each.variants.values())),
                "kernel": each.launch.kernel,
                "launch": str(each.launch),
                "arch": each.arch,
                **compiled,
            }
        )
    for (_, error), those in refused.items():
        more = f"\n(the same for {len(those) - 1} more of its specialisations)" if len(those) > 1 else ""
        findings.append(f"{_about(those[0])}\n{error}{more}")
    return {"records": records, "findings": findings}


def _about(each: _Launched) -> str:
    launchers = ", ".join(f"{variant} in {case}" for variant, case in each.variants.items())
    return f"{each.arch}: {each.launch}, launched by {launchers}"


def _record(
    compiling: ModuleType,
    variants: dict[str, Any],
    claims: dict[str, Sequence[str]],
    contract: Contract,
    findings: list[str],
) -> list[_Launched]:
    """What the variants launch in the quick cases and at the large sizes; in a dtype of which a variant takes none of
    these, the first case of level default that it takes."""
    launched: dict[tuple[str, str], _Launched] = {}
    missing = {(name, dtype) for name, fn in variants.items() for dtype in attributes(fn).dtypes or contract.dtypes}

    def call(name: str, dtype: str, label: str, arguments: dict[str, Any]) -> None:
        for arch in claims[name]:
            with compiling.recording(arch) as launches:
                try:
                    variants[name](**arguments)
                except NotImplementedError:
                    continue
                except Exception as error:
                    raised = f"{name} raised {type(error).__name__}"
                    findings.append(f"{raised} while its launches were recorded in {label}: {error}")
                    missing.discard((name, dtype))
                    return
            for launch in launches:
                missing.discard((name, dtype))
                first = _Launched(launch, arch, {})
                launched.setdefault((launch.key, arch), first).variants.setdefault(name, label)

    for case in plan(contract, "quick").cases:
        arguments = contract.build(case).arguments
        for name in variants:
            call(name, case.dtype, case.id, arguments)
    for dtype, label, arguments in _large(contract):
        for name in variants:
            call(name, dtype, label, arguments)
    for case in plan(contract, "default").cases if missing else ():
        for name in variants:
            if (name, case.dtype) in missing:
                call(name, case.dtype, case.id, contract.build(case).arguments)
    findings += [f"{name} launches nothing in {dtype}, in no case of level default" for name, dtype in sorted(missing)]
    return list(launched.values())


def _large(contract: Contract) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(dtype, label, arguments) at the sizes where speed matters, with values that are never read or written."""
    for dtype in contract.dtypes:
        plain = plain_case(contract, dtype, next(iter(contract.values)))
        for size in contract.large:
            case = Case(plain.op, dtype, tuple(size.items()), "any values", plain.layouts, plain.params)
            tensors = {
                name: torch.empty(contract.shape(operand.axes, size), dtype=operand.dtype or DTYPES[dtype])
                for name, operand in contract.operands.items()
            }
            yield dtype, case.id, {**tensors, **case.param}


_Keys = set[tuple[str, str]]


def _chosen(launched: Sequence[_Launched], claims: dict[str, Sequence[str]]) -> tuple[_Keys, _Keys]:
    """(key, arch) of the specialisations that stand for the others of their variant and kernel: those that become
    machine code, and those that pass the front end besides.
    """
    groups: dict[tuple[str, str], dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for launch, arch, variants in launched:
        for variant in variants:
            groups[variant, launch.kernel][arch].append(launch)
    chosen: _Keys = set()
    seen: _Keys = set()
    for (variant, _), launches in groups.items():
        archs = [arch for arch in claims[variant] if arch in launches]
        types = list(dict.fromkeys(launch.types for arch in archs for launch in launches[arch]))
        known: set = set()
        for turn in range(max(len(types), len(archs))):
            arch, of = archs[turn % len(archs)], types[turn % len(types)]
            those = [launch for launch in launches[arch] if launch.types == of] or launches[arch]
            best = max(those, key=lambda launch: (bool(turn) and len(launch.features - known), launch.weight))
            known |= best.features
            chosen.add((best.key, arch))
        left = set().union(*(launch.features for launch in launches[archs[0]])) - known
        while left:
            best = max(launches[archs[0]], key=lambda launch: len(launch.features & left))
            left -= best.features
            seen.add((best.key, archs[0]))
    return chosen, seen


class _Busy(NamedTuple):
    task: int
    process: Any
    until: float


def _in_children(
    work: Callable[[int], dict[str, Any]], count: int, processes: int, seconds: float = SECONDS
) -> list[dict[str, Any]]:
    """`work(0)` to `work(count - 1)` in forked children. A child that crashes or hangs gives a record with `error`."""
    context = multiprocessing.get_context("fork")
    results: list[dict[str, Any]] = [{} for _ in range(count)]
    waiting = iter(range(count))
    busy: dict[Any, _Busy] = {}

    def next_task(connection: Any = None, process: Any = None) -> None:
        index = next(waiting, None)
        if index is None:
            if process is not None:
                connection.send(None)
                process.join()
            return
        if process is None:
            connection, other = context.Pipe()
            process = context.Process(target=_serve, args=(other, connection, work), daemon=True)
            process.start()
            other.close()
        connection.send(index)
        busy[connection] = _Busy(index, process, time.monotonic() + seconds)

    for _ in range(processes):
        next_task()
    while busy:
        ready = wait(list(busy), max(0.0, min(task.until for task in busy.values()) - time.monotonic()))
        expired = [
            connection
            for connection, task in busy.items()
            if connection not in ready and task.until <= time.monotonic()
        ]
        for connection in [*ready, *expired]:
            index, process, _ = busy.pop(connection)
            if connection in expired:
                process.kill()
            try:
                results[index] = connection.recv()
                next_task(connection, process)
            except EOFError:
                process.join()
                crash = f"the compiler crashed (exit status {process.exitcode})"
                hang = f"no answer in {seconds:g} s"
                results[index] = {"error": hang if connection in expired else crash, "seconds": 0.0}
                next_task()
    return results


def _serve(connection: Connection, parents: Connection, work: Callable[[int], dict[str, Any]]) -> None:
    parents.close()
    while (index := connection.recv()) is not None:
        connection.send(work(index))


@contextmanager
def _answers() -> Iterator[Any]:
    """The process's standard output for answers only: whatever else is printed goes to standard error."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        yield answers


def _answer(
    compiling: ModuleType, backend: str, request: dict[str, Any], known: _Known, beat: Callable[[], None] | None = None
) -> dict[str, Any]:
    op, names = request["op"], request["variants"]
    try:
        variants = {name: fn for name, fn in registry.variants(backend, op).items() if names is None or name in names}
        return _check(compiling, variants, registry.contract(op), request["every"], request["processes"], known, beat)
    except Exception:
        return {"records": [], "findings": [traceback.format_exc()]}


class _Worker:
    """A forked child that compiles op after op, so that a compiler sees once what kernels of several ops share."""

    def __init__(self, compiling: ModuleType, backend: str):
        context = multiprocessing.get_context("fork")
        self._connection, other = context.Pipe()
        self._process = context.Process(
            target=self._serve, args=(other, self._connection, compiling, backend), daemon=True
        )
        self._process.start()
        other.close()

    @staticmethod
    def _serve(connection: Connection, parents: Connection, compiling: ModuleType, backend: str) -> None:
        parents.close()
        known: _Known = {}
        while (request := connection.recv()) is not None:
            connection.send(_answer(compiling, backend, request, known, beat=lambda: connection.send(None)))

    def answer(self, request: dict[str, Any], seconds: float = SECONDS) -> dict[str, Any] | None:
        """None where it crashed, or was silent for so long and was ended: it is of no more use."""
        with suppress(EOFError, OSError):
            self._connection.send(request)
            while self._connection.poll(seconds):
                if (answer := self._connection.recv()) is not None:
                    return answer
        self._process.kill()
        self._process.join()
        return None

    def close(self) -> None:
        with suppress(OSError):
            self._connection.send(None)
        self._process.join()


def main(backend: str) -> None:
    torch.set_num_threads(1)  # the children are forked
    with _answers() as answers:
        compiling, reason = None, ""
        known: _Known = {}
        worker: _Worker | None = None
        try:
            compiling = registry.backend_part(backend, "compiling")
        except ImportError as error:
            reason = f"{type(error).__name__}: {error}"
        for line in sys.stdin:
            request = json.loads(line)
            answer: dict[str, Any] | None = {"missing": reason}
            if compiling is not None:
                answer = None
                if request["processes"] == 1:
                    worker = worker or _Worker(compiling, backend)
                    if (answer := worker.answer(request)) is None:
                        worker = None
                if answer is None:  # several processes, or one that did not survive: which launch does it, they tell
                    answer = _answer(compiling, backend, request, known)
            print(json.dumps(answer), file=answers, flush=True)
        if worker is not None:
            worker.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
