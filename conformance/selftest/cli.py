"""`python -m touchstone selftest`: judge the judge, by mutants that must fail and known-good kernels that must pass."""

import argparse
from typing import Any

from touchstone.conformance.discovery import options as shared
from touchstone.conformance.discovery import registry
from touchstone.conformance.reporting.console import show, write_json
from touchstone.conformance.reporting.provenance import provenance


def add(commands: Any) -> None:
    """Add the command to the parser of `python -m touchstone`."""
    selftest = commands.add_parser(
        "selftest",
        help="test the judge: mutants that must fail, known-good kernels that must pass",
        description="Test the judge: every mutant must fail and every known-good kernel must pass. Exit status 1: one "
        "did not.",
    )
    shared.add(selftest.add_argument, "op")
    shared.add(selftest.add_argument, "--op", dest="named", help="the same, as for pytest")
    shared.add(selftest.add_argument, "--level", default="quick", help="how many cases (default: quick)")
    shared.add(selftest.add_argument, "--seed")
    selftest.add_argument("--jobs", type=int, metavar="N", help="ops judged at a time (default: one per core)")
    selftest.add_argument(
        "--compare", action="store_true", help="also evaluate the mutants with other projects' tolerances"
    )
    selftest.add_argument(
        "--matrix", action="store_true", help="print every mutant by the families of cases that kill it"
    )
    shared.add(selftest.add_argument, "--json")
    selftest.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """The command. Exit status 1 where a mutant survives or a known-good kernel fails."""
    from touchstone.conformance.selftest import other_rules
    from touchstone.conformance.selftest import run as selftest

    ops = options.op or (options.named.split(",") if options.named else list(registry.ops()))
    for op in ops:
        registry.contract(op)
    shared.level(options.level)
    shared.positive("--jobs", options.jobs)
    results = selftest.run(ops, options.level, options.seed, options.jobs)
    if options.matrix or len(results) == 1:
        for result in results:
            show(result.matrix())
    show(selftest.summary(results))
    for line in selftest.holes(results):
        print(line)
    record = {**provenance("cpu"), **selftest.record(results)}
    if options.json:
        write_json(options.json, record)  # before the comparison, which takes minutes
    if options.compare:
        compared = other_rules.run(ops, options.jobs)
        show(other_rules.table(compared, results))
        record["comparison"] = {op: [vars(one) for one in found] for op, found in compared.items()}
        if options.json:
            write_json(options.json, record)
    return 0 if selftest.passed(results) else 1
