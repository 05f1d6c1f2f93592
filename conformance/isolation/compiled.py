"""Whether the kernels of a user's function compile, which an interpreter cannot tell; in a fresh process.

There the function's file is imported anew and called, on tensors of the CPU, with the arguments of a trial's cases;
what would be launched is recorded and goes through the front end of the compiler, where names, types and shapes are
checked; the largest tiles of each kernel go through the rest of it. A launcher may well fail, since nothing is
computed: only what the language itself refuses is told.
"""

import json
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any, NamedTuple

import cloudpickle
import torch

from touchstone.backends.gpus import DEFAULT
from touchstone.conformance.discovery import importing, launching, registry
from touchstone.conformance.discovery.selection import CannotRun
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.isolation import processes
from touchstone.conformance.isolation.confined import confined_to_compile
from touchstone.conformance.isolation.processes import Child, Death
from touchstone.conformance.isolation.remote import wait_no_longer_than
from touchstone.conformance.isolation.spawn import spawn, to_compile
from touchstone.conformance.isolation.travel import file_and_name
from touchstone.conformance.judging import requirements
from touchstone.conformance.judging.judgement import Judgement, Outcome
from touchstone.conformance.judging.trials import Compiled
from touchstone.conformance.spec.checks import Check
from touchstone.conformance.spec.contract import Case, Contract
from touchstone.conformance.spec.returned import SAID, visible

SECONDS = 120.0  # for the process to start, or to go on to the next call
LONGEST = 600.0  # for all of them
NAMED = 16  # kernels at most of which it is told why they are refused
ALIVE = "alive"  # the message that an answer is still being worked on

Arguments = tuple[tuple, dict[str, Any]]  # by position, and by name


class _Answer(NamedTuple):
    refused: list[str]
    untold: str  # why it cannot be told of some launch, or there is none; "": it was, of each


def outcome(subject: Subject, trial: Compiled) -> Outcome:
    """Judge whether what the subject launches on the trial's cases compiles; declined where that cannot be told."""
    j = Judgement(subject, trial)
    fn = subject.fn
    place = (str(fn.path.resolve()), fn.name) if isinstance(fn, importing.FileFunction) else file_and_name(fn)
    if place is None:
        j.decline(f"not compiled: {importing.describe(fn)} is not found at the top level of a file")
    else:
        _ask(j, trial, place)
    requirements.settle(j, alone=False)
    return j.outcome


def _ask(j: Judgement, trial: Compiled, place: tuple[str, str]) -> None:
    calls = [_arguments(j.contract, case) for case in trial.cases]
    arch = DEFAULT if j.subject.arch == launching.NONE else j.subject.arch
    try:
        found = _answered(_process(j.subject, trial.backend), (trial.backend, place, arch, cloudpickle.dumps(calls)))
    except CannotRun as error:
        found = str(error)
    if isinstance(found, str):
        j.decline(f"not compiled: {found}")
        return
    for number, text in enumerate(found.refused):
        j.find(Check.COMPILES, text, detail=str(number or ""))
    if found.untold and j.passes:
        j.decline(f"not compiled: {found.untold}")
    else:
        j.reached("compiler")


def _process(subject: Subject, backend: str) -> Child:
    """The fresh process; that of an untrusted function is confined. Raises CannotRun."""
    if subject.untrusted:
        return confined_to_compile(subject, __name__, backend)
    return spawn(__name__, to_compile(backend))


def _answered(child: Child, request: tuple) -> _Answer | str:
    """What a process says, which is not trusted; or why it says nothing."""
    end = time.monotonic() + LONGEST
    try:
        wait_no_longer_than(child.connection.fileno())
        told = child.told(SECONDS)
        if told == ALIVE:  # it has imported what it needs, and reads
            child.connection.send_bytes(pickle.dumps(request))
        while told == ALIVE:
            told = child.told(min(SECONDS, end - time.monotonic()))
    except OSError:
        told = child.death()
    finally:
        child.close()
    if isinstance(told, Death):
        return told.message
    try:
        refused, untold = told["refused"], told["untold"]
        if all(type(text) is str for text in [*refused, untold]):
            return _Answer([visible(text[:SAID]) for text in refused[:NAMED]], visible(untold[:SAID]))
    except (KeyError, TypeError):
        pass
    return "the process gives an answer of another form"


def _arguments(contract: Contract, case: Case) -> Arguments:
    """Those of the call on a case."""
    taken: list[Arguments] = []
    contract.call(lambda *args, **named: taken.append((args, named)), contract.build(case).arguments)
    return taken[0]


def main(connection: Connection) -> None:
    """In the fresh process: answers one request."""
    torch.set_num_threads(1)
    os.dup2(2, 1)  # what a user's file prints is not for the standard output of the program that asks

    def beat() -> None:
        connection.send_bytes(json.dumps(ALIVE).encode())

    beat()
    try:
        answer = _answer(beat, *processes.request(connection))
    except Exception as error:
        answer = _Answer([], _said(error))
    connection.send_bytes(json.dumps(answer._asdict()).encode())


def _answer(beat: Callable[[], None], backend: str, place: tuple[str, str], arch: str, packed: bytes) -> _Answer:
    module: ModuleType = registry.backend_part(backend, "compiling")
    calls: Sequence[Arguments] = cloudpickle.loads(packed)
    launches, refused, untold = list[Any](), list[str | None](), "the calls launch nothing"
    with launching.answering(arch, Counter()), module.answering(arch):
        fn = importing.load(*place)
        for args, named in calls:
            beat()
            with module.recording(arch) as recorded:
                try:
                    fn(*args, **named)
                except Exception as error:
                    refused.append(module.refused_launch(error))
                    untold = _said(error)
            launches += recorded
        if launches:
            untold = ""
        asked = [(launch, module.refused) for launch in module.spread(launches)]
        for launch, stage in [*asked, *((launch, module.refused_later) for launch in module.heaviest(launches))]:
            beat()
            try:
                refused.append(stage(launch, arch))
            except Exception as error:
                untold = f"{launch}: {_said(error)}"
    return _Answer(list(dict.fromkeys(filter(None, refused))), untold)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
