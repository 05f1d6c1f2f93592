"""A run: what is known already is not judged again, and of identical candidates one is judged."""

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from touchstone.conformance.batch.attempt import Judged
from touchstone.conformance.batch.candidates import Candidate, Settings, each_once
from touchstone.conformance.batch.results import Brief, Results
from touchstone.conformance.reporting.record import Record

# what judges: candidates in, each with what came of it, and None from time to time
Judging = Callable[[Sequence[Candidate]], Generator[tuple[Candidate, Judged] | None, None, None]]


def run(
    candidates: Sequence[Candidate],
    settings: Settings,
    judging: Judging,
    results: Results,
    base: Record,
    tell: Callable[[Sequence[Brief], int], None],
) -> list[Brief]:
    """Judge what `results` does not have; the result of each candidate, in the order in which they came.

    `base` is the record that each line begins as. `tell(briefs, known)` is called as results come, and from time to
    time: `known` of them were there before. At Ctrl-C what has been written stays.
    """
    briefs: list[Brief] = []
    alike: dict[str, list[Candidate]] = {}
    for key, same in each_once(candidates, settings):
        known = [found for each in same if (found := results.briefs.get((each.id, key)))]
        briefs += known
        left = [each for each in same if (each.id, key) not in results.briefs]
        if left and (record := results.of_key(key)) is not None:
            briefs += [results.add(repeated(record, each)) for each in left]
        elif left:
            alike[key] = left
    before = len(briefs)
    tell(briefs, before)
    of_candidate = {same[0].id: key for key, same in alike.items()}
    with contextlib.closing(judging([same[0] for same in alike.values()])) as answers:
        for answer in answers:
            if answer is not None:
                candidate, judged = answer
                key = of_candidate[candidate.id]
                record = record_of(candidate, key, judged, base)
                briefs.append(results.add(record))
                briefs += [results.add(repeated(record, each)) for each in alike[key][1:]]
            tell(briefs, before)
    return briefs


def record_of(candidate: Candidate, key: str, judged: Judged, base: Record) -> dict[str, Any]:
    """The record of a candidate, as docs/records.md describes it."""
    about = {
        "id": candidate.id,
        "key": key,
        "language": candidate.language,
        "seconds": round(judged.seconds, 3),
        "same_as": None,
    }
    made = replace(
        base,
        kind="judge",
        seed=judged.seed,
        reports=[judged.report] if judged.report is not None else [],
        status=judged.status,
        reason=judged.reason,
        entries={"candidate": about, "results": judged.results},
    )
    return {**made.to_dict(), **(judged.about or {})}


def repeated(record: Mapping[str, Any], candidate: Candidate) -> dict[str, Any]:
    """The result of an identical candidate, under the id of this one."""
    about = record["candidate"]
    changed = {"id": candidate.id, "language": candidate.language, "same_as": about["same_as"] or about["id"]}
    return {**record, "candidate": {**about, **changed}}
