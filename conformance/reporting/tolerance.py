"""Failures that are expected: they are told and do not decide, and one that does not come is a failure itself."""

from collections.abc import Sequence

from touchstone.conformance.judging.judgement import FAILED, PASSED, Outcome
from touchstone.conformance.spec.contract import Case
from touchstone.conformance.spec.known import Rule


class Tolerance:
    """What the rules of one kernel expected, and what came of it so far."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._judged = [0] * len(rules)
        self._failed = [0] * len(rules)

    @property
    def counts(self) -> list[tuple[int, int]]:
        """Of each rule: the trials that were judged, and those of them that failed."""
        return list(zip(self._judged, self._failed, strict=True))

    def add(self, counts: Sequence[tuple[int, int]]) -> None:
        """Count what another process judged by the same rules."""
        for number, (judged, failed) in enumerate(counts):
            self._judged[number] += judged
            self._failed[number] += failed

    def settled(self, case: Case, outcome: Outcome) -> Outcome:
        """The outcome of a trial on `case`, expected failures turned into notes."""
        for number, rule in enumerate(self._rules):
            if not outcome.judged or not rule.where(case):
                continue
            self._judged[number] += 1
            hits = [f for f in outcome.findings if f.fails() and str(f.check).startswith(rule.check or "")]
            self._failed[number] += bool(hits)
            for finding in hits:
                finding.severity, finding.message = "note", f"expected ({rule.reason}): {finding.message}"
        if outcome.status == FAILED and not any(finding.fails() for finding in outcome.findings):
            outcome.status = PASSED
        return outcome

    def surprises(self) -> list[str]:
        """The rules of which no trial failed though some were judged, a sentence each."""
        return [
            f"expected to fail ({rule.reason}), and passed in all {judged} trials"
            for rule, (judged, failed) in zip(self._rules, self.counts, strict=True)
            if judged and not failed
        ]
