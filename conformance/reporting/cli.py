"""`python -m touchstone list` and `doctor`: what there is, and what of it runs on this machine."""

import argparse
from typing import Any

from touchstone.backends.gpus import GPUS
from touchstone.conformance.discovery import best, registry
from touchstone.conformance.discovery import options as shared
from touchstone.conformance.discovery.selection import UsageError
from touchstone.conformance.isolation.sandbox import outside
from touchstone.conformance.reporting.console import Table, show
from touchstone.conformance.reporting.provenance import versions
from touchstone.conformance.reporting.status import Status
from touchstone.conformance.spec import narrowing
from touchstone.conformance.spec.contract import Case
from touchstone.conformance.spec.words import expected_one_of

LISTED = 100  # columns of the list of ladders, which has no end, where there is no terminal


def add(commands: Any) -> None:
    """Add the commands to the parser of `python -m touchstone`."""
    about = "list the ops, the backends and the variants of every ladder"
    listing = commands.add_parser("list", help=about, description=f"{about.capitalize()}.")
    shared.add(listing.add_argument, "op", help="ops to list (default: all)")
    listing.add_argument("--markdown", action="store_true", help="print the table as the README has it")
    listing.add_argument(
        "--for",
        metavar="CASE",
        help='with one op: which variant `best` takes for a call, and why: "rows=4096 cols=8192 dtype=bfloat16", '
        "parameters and layouts by their names too",
    )
    shared.add(
        listing.add_argument,
        "--arch",
        help="with --for: the GPU on which the call would be made (default: this machine's, else none: the CPU)",
    )
    shared.add(listing.add_argument, "--json")
    listing.set_defaults(run=run_list)

    about = "show versions, devices, which targets run here and why others do not"
    doctor = commands.add_parser("doctor", help=about, description=f"{about.capitalize()}.")
    shared.add(doctor.add_argument, "--json")
    doctor.set_defaults(run=run_doctor)


def run_list(options: argparse.Namespace) -> Status:
    """Ops by backends; variants are read without a device, from the ladder each file's docstring lists."""
    case = _case(options)
    present = [name for name in registry.backends() if registry.kernel_ops(name)]
    table = Table("ops and their ladders", ["op", *present])
    record = {}
    for op in options.op or registry.ops():
        registry.contract(op)
        ladders = {name: registry.ladder(name, op) for name in present}
        table.rows.append([op, *(" ".join(ladders[name]) or "-" for name in present)])
        record[op] = ladders
    if case is not None:
        table = _chosen(options, case)
    if options.markdown:
        print(table.markdown())
    else:
        show(table, width=LISTED)
    options.recording.entries["ladders"] = record
    return Status.PASSED


def _case(options: argparse.Namespace) -> Case | None:
    """The call that --for describes. Raises UsageError."""
    text = vars(options)["for"]
    if text is None:
        if options.arch is not None:
            raise UsageError("--arch: goes with --for")
        return None
    if len(options.op) != 1:
        raise UsageError("--for: goes with the name of one op, whose sizes it gives")
    if options.arch is not None and options.arch not in GPUS:
        raise UsageError(f"--arch: {expected_one_of(options.arch, GPUS)}")
    contract = registry.contract(options.op[0])
    try:
        return narrowing.case_of(text, contract)
    except (ValueError, TypeError) as error:
        raise UsageError(f"--for: {error}") from None


def _chosen(options: argparse.Namespace, case: Case) -> Table:
    """What `best` takes for the call, in each backend that has the op."""
    arch = options.arch or best.this_arch()
    text = " ".join(vars(options)["for"].split())
    table = Table(f"best of {case.op} for {text} on {arch or 'the CPU'}", ["backend", "variant", "why"])
    record = options.recording.entries.setdefault("best", {})
    for name in registry.backends():
        if case.op in registry.kernel_ops(name):
            choice = best.explain(case, name, arch)
            passed = [f"{variant} declines: {reason}" for variant, reason in choice.declined.items()]
            table.rows.append([name, choice.variant or "-", "; ".join([choice.why, *passed])])
            record[name] = {"variant": choice.variant, "why": choice.why, "declined": choice.declined}
    return table


def run_doctor(options: argparse.Namespace) -> Status:
    """Nothing fails where a library is missing: the table says so."""
    record: dict[str, Any] = {"targets": {}, "checks": []}
    options.recording.entries = record
    show(Table("versions", ["package", "version"], [list(item) for item in versions().items()]))
    targets = Table("targets", ["target", "runs here", "why not, and what to do"])
    for name in registry.backends():
        for device in ("cpu", "cuda"):
            reason = registry.backend(name).why_not(device)
            if reason is None and not registry.kernel_ops(name):
                reason = "the library works, but there are no kernels in this backend yet"
            targets.rows.append([f"{name}@{device}", "no" if reason else "yes", reason or ""])
            record["targets"][f"{name}@{device}"] = reason
    show(targets)
    notes = Table("backends", ["backend", "what", "value", "note"])
    for name in registry.backends():
        for what, value, note in registry.backend(name).doctor():
            notes.rows.append([name, what, value, note])
            record["checks"].append({"backend": name, "what": what, "value": value, "note": note})
    show(notes)
    record["containment"] = outside.lacking()
    containment = Table("containment of untrusted kernels", ["lacking here (each explained in docs/threat-model.md)"])
    containment.rows = [[words] for words in record["containment"]] or [["nothing"]]
    show(containment)
    return Status.PASSED
