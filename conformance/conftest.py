"""The table of compile conformance at the end of a run: what test_compile.py's items carry to the controller."""

from conformance.console import Table
from conformance.plugin import COMPILED

COLUMNS = {
    "op": "op", "backend": "backend", "rung": "rung", "kernel": "kernel", "arch": "arch", "specialisations": "specialisations",
    "compiled": "to machine code", "registers": "registers", "spills": "spilled bytes", "shared": "shared bytes",
}  # fmt: skip


def table(rows):
    """Registers and spills a thread, shared memory a block: the most of any specialisation."""
    made = Table(
        "compiled; registers, spills and shared memory: the most of any specialisation", list(COLUMNS.values())
    )
    made.rows = [[str(row.get(name, "")) for name in COLUMNS] for row in rows]
    return made


def pytest_collection_modifyitems(config, items):
    """Where there is nothing to compile, there is no item that says so."""
    empty = [
        item for item in items if getattr(item, "callspec", None) and item.callspec.params.get("compiled", "") is None
    ]
    if empty:
        items[:] = [item for item in items if item not in empty]
        config.hook.pytest_deselected(items=empty)


def pytest_terminal_summary(terminalreporter):
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    properties = [
        getattr(report, "user_properties", ()) for report in reports if getattr(report, "when", None) == "call"
    ]
    rows = [row for found in properties for key, value in found if key == COMPILED for row in value]
    if rows:
        terminalreporter.section("Compiled")
        terminalreporter.write_line(table(rows).plain())
