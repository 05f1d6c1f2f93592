"""`python -m touchstone selftest`: judge the judge, by mutants that must fail and known-good kernels that must pass."""

import argparse
from typing import Any

from touchstone.conformance.discovery import options as shared
from touchstone.conformance.discovery import registry
from touchstone.conformance.reporting.console import show
from touchstone.conformance.reporting.status import Status


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
    selftest.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="processes that judge, an op each, or above level quick a part of one (default: one per core)",
    )
    selftest.add_argument(
        "--sample",
        type=int,
        default=1,
        metavar="N",
        help="judge one in N of the mutants and of the known-good kernels of each op (default: 1, all of them)",
    )
    selftest.add_argument(
        "--known-good", action="store_true", help="judge the known-good kernels alone: are there false alarms?"
    )
    selftest.add_argument(
        "--compare", action="store_true", help="also evaluate the mutants with other projects' tolerances"
    )
    selftest.add_argument(
        "--matrix", action="store_true", help="print every mutant by the families of cases that kill it"
    )
    selftest.add_argument(
        "--page", metavar="FILE.json", help="only print the page of a result that --json wrote, as Markdown"
    )
    shared.add(selftest.add_argument, "--json")
    selftest.set_defaults(run=run)


def run(options: argparse.Namespace) -> Status:
    """The command. Exit status 1 where a mutant survives or a known-good kernel fails."""
    from touchstone.conformance.selftest import other_rules, record, results
    from touchstone.conformance.selftest import run as selftest

    if options.page:
        print(record.page(record.load(options.page)), end="")
        return Status.PASSED
    ops = options.op or (options.named.split(",") if options.named else list(registry.ops()))
    for op in ops:
        registry.contract(op)
    shared.level(options.level)
    shared.positive("--jobs", options.jobs)
    shared.positive("--sample", options.sample)
    options.recording.concerns("cpu", options.level, options.seed or 0)
    found = selftest.run(
        ops, options.level, options.seed or 0, options.jobs, sample=options.sample, known_good=options.known_good
    )
    if options.matrix or len(found) == 1:
        for result in found:
            show(result.matrix())
    show(results.summary(found))
    if options.sample > 1:
        print(f"one in {options.sample} of the mutants and known-good kernels: --sample")
    for line in results.holes(found):
        print(line)
    options.recording.entries = record.to_record(found)
    options.recording.write()  # before the comparison, which takes minutes
    if options.compare:
        compared = other_rules.run(ops, options.jobs)
        show(other_rules.table(compared, found))
        compared_by_op = {op: [vars(one) for one in rules] for op, rules in compared.items()}
        options.recording.entries["comparison"] = compared_by_op
    return Status.PASSED if results.passed(found) else Status.FAILED
