"""Judging one trial, and what a fresh process receives that makes the calls of one subject."""

import dataclasses
from pathlib import Path
from types import ModuleType

import cloudpickle

from touchstone.conformance.discovery import launching, registry
from touchstone.conformance.discovery.opfile import load_op
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.isolation import travel
from touchstone.conformance.isolation.remote import Died, Ended
from touchstone.conformance.judging import judge, requirements
from touchstone.conformance.judging.executor import Executor, ending_text
from touchstone.conformance.judging.judgement import Judgement, Outcome
from touchstone.conformance.judging.trials import Trial
from touchstone.conformance.spec.checks import Check


def receive(op_file: Path | None, way: tuple, packed: bytes) -> tuple[Subject, list[Trial]]:
    """Op, subject and trials of a request, with backends and function ready for the subject's device."""
    if op_file is not None:
        load_op(op_file)
    subject, trials = cloudpickle.loads(packed)
    backends = prepare(subject.device)
    with launching.answering(subject.arch, subject.asked):
        fn = travel.arrived(way)
    for backend in backends:
        backend.adopt(fn, subject.device)
    return dataclasses.replace(subject, fn=fn), trials


def prepare(device: str) -> list[ModuleType]:
    """Set up every backend that can be for kernels that are imported from here on; all of them."""
    backends = [registry.backend(name) for name in registry.backends()]
    for backend in backends:
        if backend.why_not(device) is None:
            backend.prepare(device)
    return backends


def outcome_of(subject: Subject, trial: Trial, here: bool = False, executor: Executor | None = None) -> Outcome:
    """`judge.run`; what the kernel raises to end the process is held against it. `here`: Ctrl-C ends the run."""
    try:
        return judge.run(subject, trial, executor=executor)
    except (Exception, Died):
        raise
    except BaseException as error:
        if here and isinstance(error, KeyboardInterrupt):
            raise
        judgement = Judgement(subject, trial, executor=executor)
        what = str(error) if isinstance(error, Ended) else ending_text(error)
        judgement.find(Check.CRASH, f"{what} would have ended the process")
        requirements.settle(judgement, alone=False)
        return judgement.outcome
