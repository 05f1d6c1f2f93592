"""Hints that say less than others of the same kernel, which are left out beside those: a kernel that was found to read
another row's mask has no second cause that would be seen in the sizes of what fails."""

import re
from collections.abc import Sequence

from touchstone.backends import overflow
from touchstone.conformance.judging import altered, causes, diagnosis, left_out
from touchstone.conformance.judging.judgement import Finding
from touchstone.conformance.spec.checks import Check

SURE = re.compile(  # what a call was compared with, or what was seen in it
    r"equals the reference, but |\bas if |\ba race: |\bwrong wherever |\bis kept "
    rf"|{left_out.TOLD.pattern}|{re.escape(overflow.WRAPS)}|{re.escape(overflow.OF_ACCESS)}|{re.escape(causes.OUTSIDE)}"
)
LESSER = re.compile(  # what several causes give, or what sizes alone tell
    rf"{re.escape(diagnosis.NAN)}|right with \w+ \d+(?: and \d+)*, wrong with .*|no further off than .*"
)


def drop(failures: Sequence[Finding]) -> None:
    """Where the cause of some wrong values is known, leave out of the hints beside the others what says less."""
    values = [finding for finding in failures if finding.check == Check.VALUES]
    if not any(map(is_sure, values)):
        return
    for finding in values:
        if finding.diagnosis and not is_sure(finding):
            finding.diagnosis = "\n".join(map(_without_lesser, finding.diagnosis.splitlines()))


def is_sure(finding: Finding) -> bool:
    """Whether a finding names a cause that was tried, or seen."""
    told = finding.diagnosis or ""
    return altered.NOT_ELSEWHERE not in told and SURE.search(f"{finding.message}\n{told}") is not None


def _without_lesser(line: str) -> str:
    return "; ".join(part for part in line.split("; ") if not LESSER.fullmatch(part))
