"""Compile conformance: every kernel of every variant compiles for the architectures it claims, on a machine without a
GPU.

A fresh process, which interprets nothing, calls the launchers on CPU tensors: on the contract's quick cases, and on its
large sizes, whose values nobody reads. What would be launched is recorded; each distinct specialisation is compiled;
above level quick, from the cases of level default too, as far as they show something new. No list of signatures exists.
`backends/<name>/runtime/compiling.py` makes a backend one that can do this: backends/protocol.py, `Compiling`.

A variant fails when a kernel is refused, when it needs more shared memory than the architecture has, when it launches
nothing in one of the contract's dtypes, or when a thread spills more than SPILL_LIMIT bytes, as much as its registers
hold; a variant that has to says so: `@variant(spills=2048)`, and `@variant(dtypes=HALF)` where its instructions take no
others.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from touchstone.conformance.discovery import registry
from touchstone.conformance.isolation.processes import Death
from touchstone.conformance.isolation.spawn import spawn, to_compile
from touchstone.conformance.reporting.console import Table

END_SECONDS = 60.0  # for a process that is asked nothing further, to put away what its compilers left
COLUMNS = {
    "op": "op",
    "backend": "backend",
    "variant": "variant",
    "kernel": "kernel",
    "arch": "arch",
    "specialisations": "versions",
    "compiled": "to machine code",
    "registers": "registers",
    "spills": "spilled bytes",
    "shared": "shared bytes",
}


def backends() -> tuple[str, ...]:
    """The backends whose kernels can be compiled without a device."""
    folder = registry.ROOT / "backends"
    return tuple(name for name in registry.backends() if (folder / name / "runtime" / "compiling.py").is_file())


class CompilerError(RuntimeError):
    """The compiling process ended without an answer; the message holds what it printed last."""


class Compiler:
    """A process that compiles the kernels of one backend, op by op. Close it, or use it in a `with` statement."""

    def __init__(self, backend: str):
        self._backend = backend
        self._child = spawn("touchstone.conformance.compiling.server", to_compile(backend))

    def check(
        self,
        op: str,
        variants: Sequence[str] | None = None,
        every: bool = True,
        processes: int = 1,
        divide: bool = False,
    ) -> dict[str, Any]:
        """Compile the variants of `op` (all, or those named in `variants`).

        With `every`, each distinct specialisation becomes machine code for each architecture. Without, of each variant
        and kernel one of each combination of dtypes becomes machine code, for the architectures in turn and for each at
        least one: the largest first, then those that add most to what was compiled. And as many more pass the
        compiler's front end for the oldest architecture as it takes to have seen everything that they are specialised
        on. With `divide`, each variant of a ladder of several is compiled in its share of the dtypes, for one
        architecture, and one combination of dtypes.

        Returns `records`, one for each specialisation and architecture (`variants`, `case`, `kernel`, `launch`, `arch`,
        `seconds`, with machine code `registers`, `spills`, `shared`), and `findings`, one sentence each; or only
        `missing`, why the backend cannot compile here. Raises CompilerError.
        """
        request = dict(backend=self._backend, op=op, variants=variants, every=every, processes=processes, divide=divide)
        try:
            answer = self._child.ask(request)
        except BaseException:
            self._child.close()
            raise
        if isinstance(answer, Death):
            raise CompilerError(f"the process that compiles {op} ended with status {self._child.code}; see its output")
        return answer

    def close(self) -> None:
        self._child.close(END_SECONDS)

    def __enter__(self) -> "Compiler":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def rows(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A record for each variant, kernel and architecture: how many specialisations there are, and the greatest
    resources."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for record in records:
        for variant in record["variants"]:
            key = (variant, record["kernel"], record["arch"])
            row = found.setdefault(
                key, dict(zip(("variant", "kernel", "arch"), key, strict=True), specialisations=0, compiled=0)
            )
            row["specialisations"] += 1
            row["compiled"] += "registers" in record
            for name in ("registers", "spills", "shared"):
                if name in record:
                    row[name] = max(row.get(name, 0), record[name])
    return list(found.values())


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Of rows with their op and backend: registers and spills a thread, shared memory a block."""
    made = Table(
        "compiled; registers, spills and shared memory: the most of any specialisation", list(COLUMNS.values())
    )
    made.rows = [[str(row.get(name, "")) for name in COLUMNS] for row in rows]
    return made
