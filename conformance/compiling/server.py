"""The process that compiles: it answers what `Compiler.check` asks, op by op (conformance/compiling/client.py)."""

import os
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch

from touchstone.backends import NotRun
from touchstone.backends.protocol import Compiling
from touchstone.backends.variants import attributes
from touchstone.conformance.compiling.plan import Launched, about, chosen, record
from touchstone.conformance.discovery import registry
from touchstone.conformance.isolation.fork import fork
from touchstone.conformance.isolation.processes import Child, Death, alive, serve
from touchstone.conformance.spec.checks import Check
from touchstone.conformance.spec.contract import Contract
from touchstone.conformance.spec.sharing import homes

SPILL_LIMIT = 1024  # bytes per thread; it has 255 registers of 4 bytes
MOST = 1  # specialisation of a kernel where variants share the work: compiling is most of the time
SECONDS = 300.0  # for one compilation; the compiler hangs at times

# What was compiled before, by key, architecture and whether to machine code; with the launch, so that its key stays its
# own.
Known = dict[tuple[str, str, bool], tuple[Any, dict[str, Any]]]


def check(
    compiling: Compiling,
    variants: dict[str, Any],
    contract: Contract,
    every: bool,
    processes: int,
    known: Known,
    beat: Callable[[], None] | None = None,
    divide: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """`known` grows by what is compiled: ladders share kernels, a product is part of four ops. With `beat`, which is
    called before each, they are compiled in this process, else in forked ones. With `divide`, a whole ladder, its
    variants share the dtypes and the architectures.
    """
    findings: list[str] = []
    ladder = divide or variants
    claims = {name: compiling.architectures(attributes(fn).needs) for name, fn in ladder.items()}
    takes = {name: attributes(fn).dtypes or contract.dtypes for name, fn in ladder.items()}
    dtypes: Mapping[str, Sequence[str]] = takes
    if divide and len(ladder) > 1:
        dtypes = homes(contract.dtypes, takes)
        claims = {name: (archs[turn % len(archs)],) for turn, (name, archs) in enumerate(claims.items())}
    claims = {name: claims[name] for name in variants}
    launched = record(compiling, variants, claims, contract, findings, dtypes, every)
    everything = {(each.launch.key, each.arch) for each in launched}
    built, seen = (everything, set[tuple[str, str]]()) if every else chosen(launched, claims, MOST if divide else None)
    compiled_at_all = built | seen

    wanted = [(each.launch.key, each.arch, (each.launch.key, each.arch) in built) for each in launched]
    fresh = [i for i, key in enumerate(wanted) if key[:2] in compiled_at_all and key not in known]

    def compile_one(task: int) -> dict[str, Any]:
        launch, arch, *_ = launched[fresh[task]]
        return dict(compiling.compile_one(launch, arch, to_machine_code=(launch.key, arch) in built))

    if beat is None:
        results = in_children(compile_one, len(fresh), processes)
    else:
        results = []
        for task in range(len(fresh)):
            beat()
            results.append(compile_one(task))
    for i, compiled in zip(fresh, results, strict=True):
        known[wanted[i]] = launched[i].launch, compiled
    records = []
    refused: dict[tuple[str, str], list[Launched]] = defaultdict(list)
    for each, key in zip(launched, wanted, strict=True):
        compiled = known[key][1] if key in known else {"seconds": 0.0}
        allowed = max(attributes(variants[variant]).spills or SPILL_LIMIT for variant in each.variants)
        if "error" in compiled:
            refused[each.launch.kernel, compiled["error"]].append(each)
        elif each.usual and compiled.get("spills", 0) > allowed:
            spilt = f"spills {compiled['spills']} bytes per thread; {allowed} are allowed"
            findings.append(f"{about(each)}\n{spilt}")
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
        findings.append(f"{about(those[0])}\n{error}{more}")
    return {"records": records, "findings": findings}


class _Busy(NamedTuple):
    task: int
    child: Child
    until: float


def in_children(
    work: Callable[[int], dict[str, Any]], count: int, processes: int, seconds: float = SECONDS
) -> list[dict[str, Any]]:
    """`work(0)` to `work(count - 1)` in forked children, so many at a time.

    What raises, crashes its child or hangs gives a record with `error`.
    """
    results: list[dict[str, Any]] = [{} for _ in range(count)]
    waiting = iter(range(count))
    busy: dict[Connection, _Busy] = {}

    def next_task(child: Child | None = None) -> None:
        task = next(waiting, None)
        if task is None:
            if child is not None:
                child.close()
            return
        child = child or fork(lambda connection: serve(connection, work))
        with suppress(OSError):  # it has died: then there is no answer either
            child.send(task)
        busy[child.connection] = _Busy(task, child, time.monotonic() + seconds)

    try:
        for _ in range(processes):
            next_task()
        while busy:
            wait(list(busy), max(0.0, min(one.until for one in busy.values()) - time.monotonic()))
            for connection, (task, child, until) in list(busy.items()):
                if time.monotonic() < until and not connection.poll(0):
                    continue
                results[task] = _result(child, seconds)
                del busy[connection]
                if child.code is not None:
                    child.close()
                next_task(child if child.code is None else None)
    finally:
        for one in busy.values():
            one.child.close()
    return results


def _result(child: Child, seconds: float) -> dict[str, Any]:
    """The answer of a child that has given one or has run out of its `seconds`."""
    try:
        answer = child.answer(0.0)
    except NotRun:
        raise
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "seconds": 0.0}
    if not isinstance(answer, Death):
        return answer
    crash = f"the compiler crashed (exit status {child.code})"
    return {"error": f"no answer in {seconds:g} s" if answer.check is Check.HANG else crash, "seconds": 0.0}


def answer(
    compiling: Compiling, request: dict[str, Any], known: Known, beat: Callable[[], None] | None = None
) -> dict[str, Any]:
    """What `Compiler.check` returns."""
    backend, op, names = request["backend"], request["op"], request["variants"]
    try:
        ladder = registry.variants(backend, op)
        variants = {name: fn for name, fn in ladder.items() if names is None or name in names}
        how = request["every"], request["processes"], known, beat, ladder if request["divide"] else None
        return check(compiling, variants, registry.contract(op), *how)
    except NotRun as error:
        return {"missing": str(error)}
    except Exception:
        return {"records": [], "findings": [traceback.format_exc()]}


class Server:
    """Answers requests. What one process is to compile a forked child does, op after op, so that a compiler sees once
    what kernels of several ops share.
    """

    def __init__(self, seconds: float = SECONDS):
        self._seconds = seconds  # that the child may be silent for
        self._known: Known = {}
        self._worker: Child | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        compiling, reason = compiling_module(request["backend"])
        if compiling is None:
            return {"missing": reason}
        if request["processes"] == 1:
            self._worker = self._worker or _worker(compiling)
            found = self._worker.ask(request, self._seconds)
            if not isinstance(found, Death):
                return found
            self.close()
        # several processes, or one that did not survive: which launch does it, they tell
        return answer(compiling, request, self._known)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


@cache
def compiling_module(backend: str) -> tuple[Compiling | None, str]:
    """The module that compiles for a backend, or None and why there is none."""
    try:
        module: Any = registry.backend_part(backend, "compiling")
    except ImportError as error:
        return None, f"{type(error).__name__}: {error}"
    return module, ""


def _worker(compiling: Compiling) -> Child:
    known: Known = {}

    def body(connection: Connection) -> None:
        serve(connection, lambda request: answer(compiling, request, known, beat=lambda: alive(connection)))

    return fork(body)


def main(connection: Connection) -> None:
    torch.set_num_threads(1)  # the children are forked
    os.dup2(2, 1)  # what compilers print is not for the standard output of the program that asks
    server = Server()
    serve(connection, server.answer)
    server.close()
