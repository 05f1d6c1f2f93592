"""Results as tables for a terminal."""

from collections.abc import Callable, Sequence

from touchstone.conformance.bench.group import Result
from touchstone.conformance.reporting.console import Table, show
from touchstone.conformance.spec.returned import quoted

NO_NUMBER = "-"
RATES: dict[str, Callable[[Result], float | None]] = {
    "TFLOP/s": lambda r: r.tflops,
    "GB/s": lambda r: r.gbps,
    "roofline": lambda r: r.fraction,
}


def tables(results: Sequence[Result]) -> list[Table]:
    """One table for each group of results: same op, dtype, sizes and parameters."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        sizes = " ".join(f"{letter}={n}" for letter, n in result.sizes.items())
        params = "".join(f" {name}={value}" for name, value in result.params.items() if value is not None)
        mode = "" if result.mode == "fwd" else f" {result.mode}"
        groups.setdefault(f"{result.op}{mode} {result.dtype} {sizes}{params}, {result.cache}", []).append(result)
    return [_table(title, rows) for title, rows in groups.items()]


def _table(title: str, rows: Sequence[Result]) -> Table:
    baseline = next((r.name for r in rows if r.kind == "baseline" and r.ms is not None), None)
    against = [name for name in (baseline, "itself") if name and any(name in r.ratios for r in rows)]
    rates = RATES if any(r.roof is not None for r in rows) else {}  # an emulator's are no measure of a machine
    columns = ["target", "kernel", "ms", "IQR", "n", *rates, *(f"vs {name}" for name in against)]
    more: dict[str, Callable[[Result], str]] = {
        "peak MB": lambda r: _text(r.peak_bytes, 1e-6),
        "launch ms": lambda r: _text(r.host_ms),
        "registers": lambda r: _text((r.resources or {}).get("registers")),
        "spills": lambda r: _text((r.resources or {}).get("spills")),
        "shared": lambda r: _text((r.resources or {}).get("shared")),
    }
    shown = {name: cell for name, cell in more.items() if any(cell(r) != NO_NUMBER for r in rows)}
    table = Table(title, [*columns, *shown, "computes in"])
    for r in rows:
        taken = r.stats if r.ms is not None else None
        numbers = (
            [_text(taken.median), _text(taken.iqr), str(taken.count)] if taken else [r.status, NO_NUMBER, NO_NUMBER]
        )
        numbers += [_text(rate(r)) if taken and r.roof is not None else NO_NUMBER for rate in rates.values()]
        ratios = [_text(r.ratios.get(name)) for name in against]
        table.rows.append([r.target, r.name, *numbers, *ratios, *(cell(r) for cell in shown.values()), r.compute or ""])
    return table


def _text(value: float | None, scale: float = 1.0) -> str:
    if value is None:
        return NO_NUMBER
    return str(value) if isinstance(value, int) and scale == 1.0 else f"{value * scale:.3g}"


def print_results(results: Sequence[Result], left_out: dict[str, str]) -> None:
    """The tables, then what is to be said of single results, and what was not timed."""
    for table in tables(results):
        show(table)
    for result in results:
        where = f"{result.op} {result.target} {result.name} {result.dtype}"
        for problem in result.problems:
            print(f"{where} {result.status}: {quoted(problem)}")
        for note in result.notes:
            print(f"{where}: {quoted(note)}")
    for what, why in left_out.items():
        print(f"{what} left out: {quoted(why)}")
