"""The self-test's result in a file, and the page docs/results/selftest.md."""

from collections.abc import Sequence
from datetime import date
from typing import Any

from touchstone.backends.storage import files
from touchstone.conformance.reporting.provenance import versions
from touchstone.conformance.reporting.record import of_one_form
from touchstone.conformance.selftest import other_rules
from touchstone.conformance.selftest.results import ENOUGH, MutantResult, OpResult, holes, summary


def to_record(results: Sequence[OpResult]) -> dict[str, Any]:
    """The whole result for a file."""
    return {
        "level": results[0].level,
        "seed": results[0].seed,
        "versions": versions(),
        "mutants": sum(len(r.mutants) for r in results),
        "survivors": sum(len(r.survivors) for r in results),
        "known-good checks": sum(r.known_good_checks for r in results),
        "false alarms": sum(len(c.killed) for r in results for c in r.false_alarms),
        "ops": [result.to_dict() for result in results],
    }


def from_record(record: dict[str, Any]) -> list[OpResult]:
    """The results that `to_record` was given."""
    return [
        OpResult(
            op["op"],
            op["level"],
            op["seed"],
            [MutantResult(**one) for one in op["judged"]],
            op["families"],
            op["notes"],
            op["whole"],
        )
        for op in record["ops"]
    ]


def load(path: str) -> dict[str, Any]:
    """The record in a file. ValueError names the file and says what it is not."""
    try:
        found = files.read_json(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(found, dict) or "known-good checks" not in found:
        raise ValueError(f"{path}: no record of selftest --json")
    with of_one_form(path):
        page(found)
    return found


def page(record: dict[str, Any]) -> str:
    """The page docs/results/selftest.md from a record."""
    results = from_record(record)
    level, stops = record["level"], ENOUGH.get(record["level"])
    mutants = [one for result in results for one in result.mutants]
    checks, alarms = record["known-good checks"], record["false alarms"]
    killed = sum(bool(one.killed) for one in mutants)
    left = "is left after its first kill" if stops == 1 else f"is left after {stops} kills"
    found = holes(results)
    return "\n".join(
        [
            "# The self-test: what the judge catches, and its false positives",
            "",
            ", ".join(f"{name} {version}" for name, version in record["versions"].items())
            + f"; {date.today()}, seed {record['seed']}.",
            "",
            "```",
            f"python -m touchstone selftest --level {level} --json selftest.json",
            "python -m touchstone selftest --page selftest.json > docs/results/selftest.md",
            "```",
            "",
            f"**{killed:,} of {len(mutants):,} mutants are killed, "
            f"{sum(len(one.killed) > 1 for one in mutants):,} of them by two trials or more; "
            f"{sum(len(result.known_good) for result in results)} known-good kernels give {alarms or 'no'} false "
            f"alarms in {checks:,} checks.**",
            *([f"A mutant in a backend's language {left}."] if stops else []),
            '"Redundant" are families without which every mutant would still be killed: with every pair of values of '
            "any two axes,",
            'most are; "-" where mutants were left after one kill.',
            "",
            "```",
            summary(results).plain(),
            "```",
            "",
            *(["Gaps:", "", "```", *found, "```"] if found else ["It found no gaps."]),
            "",
            *(_compared(record, results) if "comparison" in record else []),
        ]
    )


def _compared(record: dict[str, Any], results: Sequence[OpResult]) -> list[str]:
    compared = {op: [other_rules.RuleResult(**one) for one in found] for op, found in record["comparison"].items()}
    return [
        "The mutants in torch under the rules of other projects (conformance/selftest/other_rules.py), `--compare`: "
        "caught of",
        "those to which the rule applies.",
        "",
        "```",
        other_rules.table(compared, results).plain(),
        "```",
        "",
    ]
