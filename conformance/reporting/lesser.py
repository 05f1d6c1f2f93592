"""Hints that say less than others of the same kernel, which are left out beside those: a kernel that was found to read
another row's mask has no second cause that would be seen in the sizes of what fails."""

import re
from collections.abc import Sequence

from touchstone.backends import overflow
from touchstone.conformance.judging import altered, causes, diagnosis, left_out
from touchstone.conformance.judging.judgement import Finding
from touchstone.conformance.spec.checks import Check

SURE = re.compile(  # what a call was compared with, or what was seen in it
    r"equals the reference, but |\bas if |\ba race: |\bwrong where(?:ver)? |\bis kept "
    r"|\bright (?:where|without|with \w+=)[^;]*, all else being equal"
    rf"|{left_out.TOLD.pattern}|{re.escape(overflow.WRAPS)}|{re.escape(overflow.OF_ACCESS)}|{re.escape(causes.OUTSIDE)}"
)
FAR = 1e6  # budgets by which no rounding to 16 bits is off
ROUNDED = re.compile(r"no further off than .*|the worst element is what is left of terms .*")
LESSER = re.compile(  # what several causes give, or what sizes alone tell
    rf"{re.escape(diagnosis.NAN)}|{re.escape(diagnosis.INFINITE)}|right with \w+ \d+(?: and \d+)*, wrong with .*|"
    + ROUNDED.pattern
)


def drop(failures: Sequence[Finding]) -> None:
    """Where the cause of some wrong values is known, leave out of the hints beside the others what says less; and of an
    output that is far off somewhere that its errors are no larger than roundings."""
    values = [finding for finding in failures if finding.check == Check.VALUES]
    known = any(map(is_sure, values))
    far = {finding.about for finding in values if (finding.error or 0.0) > FAR}
    for finding in values:
        if finding.diagnosis and known and not is_sure(finding):
            finding.diagnosis = _without(LESSER, finding.diagnosis)
        elif finding.diagnosis and finding.about in far:
            finding.diagnosis = _without(ROUNDED, finding.diagnosis)


def is_sure(finding: Finding) -> bool:
    """Whether a finding names a cause that was tried, or seen."""
    told = finding.diagnosis or ""
    return altered.NOT_ELSEWHERE not in told and SURE.search(f"{finding.message}\n{told}") is not None


def _without(what: re.Pattern[str], told: str) -> str:
    lines = (line.split("; ") for line in told.splitlines())
    return "\n".join("; ".join(part for part in parts if not what.fullmatch(part)) for parts in lines)
