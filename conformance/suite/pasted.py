"""Ids of the suite's items, pasted back into a command: which op, backend, variant, device and level they are of.

An id alone then finds its item, without the options of the run that printed it.
"""

import argparse
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.selection import UsageError
from touchstone.conformance.discovery.subject import Subject, not_called
from touchstone.conformance.judging.trials import trials_of
from touchstone.conformance.spec.cases import LEVELS

UNTYPED = re.compile(r"[^\w.:=+@/-]+", re.ASCII)  # what a shell, or pytest itself, may take for something else in an id
USER = "user"  # in place of a backend, in the target of a kernel of a user's own
ID = re.compile(r"(?P<op>\w+)-(?P<backend>\w+)@(?P<device>cpu|cuda)-(?P<variant>\w+)-(?P<trial>.+)")
COMPILED = re.compile(r"(?P<op>\w+)-(?P<backend>\w+)-compiles")
NAMED = re.compile(r"::test_(?:kernel|compile|time)\[(.+)\]$")


def item_id(subject: Subject, trial_id: str) -> str:
    """The id of an item of test_kernels.py."""
    return UNTYPED.sub("_", f"{subject.op}-{subject.target}-{subject.name}-{trial_id}")


@dataclass(frozen=True)
class Pasted:
    """What an id says."""

    op: str
    backend: str
    device: str | None = None
    variant: str | None = None
    trial: str | None = None


def found(arguments: Iterable[str], keyword: str) -> list[Pasted]:
    """The ids among a command's arguments, and the one that -k may be."""
    texts = [match[1] for argument in arguments if (match := NAMED.search(argument))]
    matches = [ID.fullmatch(text) or COMPILED.fullmatch(text) for text in (*texts, keyword.strip())]
    return [Pasted(**match.groupdict()) for match in matches if match is not None and match["op"] in registry.ops()]


def complete(option: argparse.Namespace, pasted: Sequence[Pasted]) -> None:
    """Set the options that were not given to what the ids say. Raises UsageError where no one run has all of them."""
    devices = sorted({one.device for one in pasted if one.device})
    if len(devices) > 1:
        raise UsageError(f"the ids are of {' and '.join(devices)}: one process runs one device; give them one by one")
    option.op = option.op or ",".join(dict.fromkeys(one.op for one in pasted))
    if devices and option.device == "auto":
        option.device = devices[0]
    if option.kernel is None and all(one.backend in registry.backends() for one in pasted):
        option.backend = option.backend or ",".join(dict.fromkeys(one.backend for one in pasted))
        variants = dict.fromkeys(one.variant for one in pasted)
        option.variant = option.variant or (None if None in variants else ",".join(map(str, variants)))
    elif option.kernel is None:
        raise UsageError("an id of a kernel of your own needs --kernel=file.py:function, as the run that printed it")
    option.level = option.level or _level(pasted)


def _level(pasted: Sequence[Pasted]) -> str | None:
    """The first level that has the trials of all ids; None where they are of no trial."""
    trials = {(one.op, one.backend != USER, one.device, one.trial) for one in pasted if one.trial is not None}
    for level in LEVELS if trials else ():
        if all(trial in _trials(op, own, str(device), level) for op, own, device, trial in trials):
            return level
    if len(trials) > 1:
        raise UsageError("no level has all of these ids: give them one by one")
    return None


def _trials(op: str, own: bool, device: str, level: str) -> set[str]:
    subject = Subject(op, not_called, "any", f"any@{device}", device, own=own)
    return {UNTYPED.sub("_", trial.id) for trial in trials_of(subject, level)[0]}
