"""Findings that have one root cause, shown once with a count."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from touchstone.conformance.judging import left_out
from touchstone.conformance.judging.judgement import Finding
from touchstone.conformance.spec.checks import Check
from touchstone.conformance.spec.compare import LEAN
from touchstone.conformance.spec.returned import quoted

LINE = re.compile(r"[\w.-]+\.\w+:\d+")  # file and line, the best name of a cause
NUMBERS = re.compile(r"0x[0-9a-f]+|[-+]?\d[\d.]*(?:e[-+]?\d+)?|\b(?:nan|inf)\b")
FAMILY = re.compile(r"(?:float32|float16|bfloat16)-[^-]+-(\w+)")  # of values, in the name of a case
CALL = re.compile(r"^call \d+ of \d+[^:]*: ")  # of a trial of many calls
MUTANT = re.compile(r"\(mutant (\w+)\)")
DTYPE = re.compile(r"\b(?:float32|float16|bfloat16)\b")
WHY = (  # of a diagnosis that names a cause, the more telling before the others
    re.compile(r"equals the reference, but |\bas if |\bwrong wherever |\ba race: |" + left_out.TOLD.pattern),
    re.compile(r"\b(?:first|earlier|another|further|each|every \d+th) calls?\b|\bup to call \d|\bis kept from "),
    re.compile(r"\bon which its answer |\bis as with a |\bwrong where "),
)


@dataclass(frozen=True)
class Group:
    """Findings alike. The example that is shown is the first whose diagnosis names a cause, or one that names fewer of
    the same mutants; or the first of all."""

    findings: Sequence[Finding]

    @property
    def example(self) -> Finding:
        first = min(self.findings, key=_told)
        named = _mutants(first)
        fewer = [found for found in self.findings if set() < _mutants(found) < named]
        return min(fewer, key=lambda found: len(_mutants(found)), default=first)

    @property
    def id(self) -> str:
        """Eight hexadecimal digits that follow from the root cause alone: the same for other kernels and later runs."""
        return hashlib.sha256(repr(_cause(self.example)).encode()).hexdigest()[:8]

    def text(self, command: str | None = None) -> str:
        """The example, how many trials have the like of it, and the `command` that repeats it."""
        found, count = self.example, len(self.findings)
        times = f"{count} trials: " if count > 1 else ""
        lines = [f"{times}[{found.id}] {found.check}: {quoted(found.message)}", f"    in {found.case}{self._others()}"]
        lines += [f"    {line}" for line in (found.diagnosis or "").splitlines()]
        return "\n".join([*lines, f"    repeat: {command}"] if command else lines)

    def _others(self) -> str:
        """How many other trials there are, by dtype, and their families of values."""
        example = self.example
        others = [finding.case for finding in self.findings if finding is not example]
        if not others:
            return ""
        dtypes = Counter(match[0] for case in others if (match := DTYPE.search(case)))
        families = dict.fromkeys(match[1] for case in others if (match := FAMILY.match(case)))
        counts = ", ".join(f"{count} {dtype}" for dtype, count in dtypes.items())
        return f", and {len(others)} more findings: {counts}" + (f" ({', '.join(families)})" if families else "")


def _told(finding: Finding) -> int:
    """How little a diagnosis tells of the cause."""
    return next((rank for rank, why in enumerate(WHY) if why.search(finding.diagnosis or "")), len(WHY))


def names_a_cause(finding: Finding) -> bool:
    return _told(finding) < len(WHY)


def _mutants(finding: Finding) -> set[str]:
    """Those that give what a kernel gives, by name."""
    return set(MUTANT.findall(finding.diagnosis or ""))


def grouped(findings: Iterable[Finding]) -> list[Group]:
    """The findings by root cause: the largest groups first, then as they were found. Errors that lean one way come
    last: of what is wrong by more elsewhere they are a consequence."""
    groups: dict[tuple, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(_cause(finding), []).append(finding)
    return sorted(map(Group, groups.values()), key=lambda group: (_leans(group.findings[0]), -len(group.findings)))


def _cause(finding: Finding) -> tuple:
    """What findings of one cause have in common: the check, what it is about, and the line that raised or ended the
    process, whatever was asked of it there; where there is none, what was asked and the words of the message without
    numbers."""
    asked = finding.requirement if finding.fails() else None
    check, required = str(finding.check), asked and str(asked)
    alike = finding.severity, check, finding.about, finding.raised, finding.passes_as
    if finding.check == Check.VALUES or finding.error is not None:
        return *alike, required, _kind_of_wrong(finding)
    line = LINE.search(finding.message)
    if line is not None and finding.raised is not None:
        return *alike, line[0], _words(finding.message[line.end() :])[:40]
    if line is not None and finding.check in (Check.CRASH, Check.HANG, Check.MEMORY):
        return *alike, line[0], _words(finding.message)
    return *alike, required, _words(finding.message)


def _words(message: str) -> str:
    """A message without what differs from case to case."""
    return NUMBERS.sub("#", DTYPE.sub("#", CALL.sub("", message)))


def _kind_of_wrong(finding: Finding) -> str:
    """NaN, an infinity, or a number in place of the answer; or errors that lean one way."""
    if _leans(finding):
        return "lean"
    got = re.search(r"got (-?\w+)", finding.message)
    return got[1].lstrip("-") if got and got[1].lstrip("-") in ("nan", "inf") else "number"


def _leans(finding: Finding) -> bool:
    return LEAN in finding.message
