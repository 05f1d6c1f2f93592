"""The options that commands and pytest share: name, default and help of each, and the selection that they make."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from touchstone.backends.gpus import DEFAULT
from touchstone.conformance.discovery import arrays, derivation, launching, registry, selection
from touchstone.conformance.discovery.selection import Selection, UsageError
from touchstone.conformance.spec import narrowing
from touchstone.conformance.spec.cases import LEVELS, plan
from touchstone.conformance.spec.checks import Requirement
from touchstone.conformance.spec.narrowing import Narrowing
from touchstone.conformance.spec.words import expected_one_of, not_one_of

NAMES = "NAME[,NAME]"
LISTS = ("--op", "--backend", "--variant", "--dtypes", "--require")  # options that take several values at once

STRICT = "with --kernel: what its language leaves undefined, though GPUs agree on it, fails instead of being noted"
KNOWN_ALONE = "--known goes with --kernel: a file of what is known of your kernels"

SHARED: dict[str, dict[str, Any]] = {
    "op": dict(nargs="*", metavar="OP", help="ops (default: all)"),
    "--op": dict(metavar=NAMES, help="ops (default: all)"),
    "--backend": dict(metavar=NAMES, help="backends (default: every one that runs here)"),
    "--variant": dict(
        metavar=NAMES,
        help="variants (default: all); best is the one that the measurements of this architecture choose for each call",
    ),
    "--device": dict(
        default="auto", metavar="auto|cpu|cuda", help="where kernels run (default: auto, cuda where a GPU works)"
    ),
    "--kernel": dict(metavar="FILE.py:FUNCTION", help="a function of your own with the op's signature"),
    "--arrays": dict(
        default=arrays.TENSORS,
        metavar="LIBRARY",
        help=f"with --kernel: the arrays it takes and returns: one of {', '.join(arrays.libraries())} (default: torch)",
    ),
    "--op-file": dict(metavar="FILE.py", help="with --kernel: an op of your own, its reference and contract"),
    "--reference": dict(
        metavar="FILE.py:FUNCTION",
        help="with --kernel and --inputs: judge by what this function of torch computes (docs/any-function.md)",
    ),
    "--inputs": dict(metavar="FILE.py:FUNCTION", help="with --reference: a function that returns example inputs"),
    "--kernelbench": dict(
        metavar="FILE.py",
        help="with --kernel=FILE.py:CLASS: judge that module by the Model of a KernelBench problem file",
    ),
    "--level": dict(default="default", metavar="|".join(LEVELS), help="how many cases (default: default)"),
    "--quick": dict(dest="level", action="store_const", const="quick", help="short for --level quick"),
    "--thorough": dict(dest="level", action="store_const", const="thorough", help="short for --level thorough"),
    "--seed": dict(type=int, metavar="N", help="seed of the inputs (default: 0; drawn anew with --untrusted)"),
    "--require": dict(
        metavar=NAMES,
        help=f"with --kernel: the requirements that decide, out of {', '.join(Requirement)} (default: all)",
    ),
    "--arch": dict(
        metavar="|".join(launching.ARCHITECTURES),
        help="with --kernel on the CPU: the GPU as which CUDA calls of the launcher are answered (default: "
        f"{DEFAULT}; {launching.NONE}: they are not)",
    ),
    "--strict": dict(action="store_true", help=STRICT),
    "--strict-kernels": dict(action="store_true", help=f"{STRICT} (pytest has a --strict of its own)"),
    "--dtypes": dict(metavar=NAMES, help="judge only the cases of these dtypes"),
    "--sizes": dict(metavar="NAME=N[,N]", help='judge only the cases of these sizes: "Sq=64,128 D=64"'),
    "--where": dict(
        metavar="CONDITION",
        help="judge only the cases for which this Python expression over sizes, parameters, layouts, dtype and values "
        'holds: "D in (64, 128) and causal and contiguous"',
    ),
    "--divide": dict(
        action="store_true",
        help="divide the cases of each op among the variants of a backend, so that each case runs about once",
    ),
    "--turns": dict(
        type=int,
        default=1,
        metavar="N",
        help="judge one in N variants of each ladder, others at each commit, and every one that the last commit or the "
        "working tree changes (default: all)",
    ),
    "--known": dict(
        metavar="FILE.toml",
        help="with --kernel: cases to skip and failures to expect (docs/ci.md); one that does not come fails",
    ),
    "--json": dict(metavar="FILE|-", help="write the result to FILE as JSON, or with - to standard output"),
}


def add(add_argument: Callable[..., Any], *names: str, **changes: Any) -> None:
    """Add shared options by `add_argument`, argparse's or pytest's; `changes` replace what the table says of them."""
    for name in names:
        add_argument(name, **{**SHARED[name], **changes})


def positive(name: str, value: float | None) -> None:
    """Raise UsageError unless `value`, where it was given, is above 0."""
    if value is not None and not value > 0:
        raise UsageError(f"{name}: expected a positive number, got {value}")


def files(options: argparse.Namespace) -> None:
    """Raise UsageError where a file is to be written into a folder that is not there: before the work, not after."""
    for name in ("json", "csv", "picture"):
        file(f"--{name}", getattr(options, name, None))


def file(option: str, path: str | None) -> None:
    """Raise UsageError unless a file can be written at `path`, where one was given."""
    if path is not None and (not path or Path(path).is_dir()):
        raise UsageError(f"{option}: expected the name of a file, got {path!r}, which is a folder or empty")
    if path and not Path(path).parent.is_dir():
        raise UsageError(f"{option}: there is no folder {Path(path).parent}")


def level(name: str) -> None:
    """Raise UsageError unless `name` is a level."""
    if name not in LEVELS:
        raise UsageError(f"--level: {expected_one_of(name, LEVELS)}")


def contradictions(arguments: Sequence[str]) -> None:
    """Raise UsageError where an option of the table is given twice with different values, or two levels are."""
    given: dict[str, dict[str, str]] = {}  # what is set -> value -> as it was typed
    for option, value, typed in _typed(arguments):
        about = SHARED[option]
        what = f"--{about['dest']}" if "const" in about else option
        given.setdefault(what, {}).setdefault(about.get("const", value), typed)
    for what, values in given.items():
        if len(values) > 1:
            way = f"give them together: {what}={','.join(values)}" if what in LISTS else "give one of the two"
            raise UsageError(f"{' and '.join(list(values.values())[:2])}: {way}")


def _typed(arguments: Sequence[str]) -> list[tuple[str, str, str]]:
    """(option, value, as it was typed) of the options of the table among a command's arguments."""
    found, left = [], iter(arguments)
    for argument in left:
        if argument == "--":
            break
        option, equals, value = argument.partition("=")
        about = SHARED.get(option) if option.startswith("--") else None
        if about is not None and "action" in about:
            found.append((option, "", option))
        elif about is not None:
            value = value if equals else next(left, "")
            found.append((option, value, f"{option}={value}"))
    return found


def derived(options: argparse.Namespace, level: str) -> None:
    """Derive the op that --reference or --kernelbench means, as an op file and a kernel that the other options name.

    Raises UsageError.
    """
    given = [name for name in ("reference", "kernelbench", "op_file") if getattr(options, name) is not None]
    if options.inputs is not None and options.reference is None:
        raise UsageError("--inputs: goes with --reference=FILE.py:FUNCTION")
    if not {"reference", "kernelbench"} & set(given):
        return
    typed = [f"--{name.replace('_', '-')}" for name in given]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(typed)}: give one of them; each says what is computed")
    if options.op:
        raise UsageError(f"{typed[0]}: goes without the name of an op; the function says what is computed")
    if options.kernel is None:
        raise UsageError(f"{typed[0]}: needs --kernel=FILE.py:NAME, the kernel that is judged")
    how: dict[str, Any] = {"level": level}
    if options.dtypes is not None:
        how["dtypes"] = [name.strip() for name in options.dtypes.split(",")]
    try:
        selection.kernel_of(options.kernel)
        if options.reference is not None:
            made = derivation.load_files(options.reference, options.inputs, **how)
        else:
            made = derivation.load_problem(options.kernelbench, **how)
            options.kernel = derivation.kernel_file(options.kernel, options.kernelbench)
    except (ValueError, TypeError) as error:
        text = str(error)
        named = text.startswith(("--", "dtypes:"))
        raise UsageError(f"{'' if named else f'{typed[0]}: '}{'--' * text.startswith('dtypes:')}{text}") from error
    options.op_file = str(made)


def select(options: argparse.Namespace, level: str, device: str | None = None, on_gpu: str | None = None) -> Selection:
    """The selection that a command's options ask for; options that the command lacks have their defaults."""
    return selection.select(
        options.backend,
        device or options.device,
        ",".join(options.op) if options.op else None,
        options.variant,
        level,
        getattr(options, "kernel", None),
        getattr(options, "seed", None) or 0,
        library=getattr(options, "arrays", arrays.TENSORS),
        op_file=getattr(options, "op_file", None),
        require=getattr(options, "require", None),
        arch=getattr(options, "arch", None),
        strict=getattr(options, "strict", False),
        op_option="op",
        on_gpu=on_gpu,
    )


def narrowed(options: argparse.Namespace, chosen: Selection) -> dict[str, Narrowing]:
    """By op: what of its cases --dtypes, --sizes and --where leave.

    Raises UsageError for a name or a size that the op has not, and where they leave no case of it.
    """
    return {op: _narrowing(options, op, chosen) for op in chosen.ops}


def _narrowing(options: argparse.Namespace, op: str, chosen: Selection) -> Narrowing:
    contract, given = registry.contract(op), {}
    dtypes, sizes, where = None, None, None
    if options.dtypes is not None:
        given["--dtypes"] = options.dtypes
        dtypes = [name.strip() for name in options.dtypes.split(",") if name.strip()]
        for name in dtypes or [""]:
            if name not in contract.dtypes:
                raise UsageError(f"--dtypes: {not_one_of(name, contract.dtypes)}")
    if options.sizes is not None:
        given["--sizes"] = options.sizes
        try:
            sizes = narrowing.parse_sizes(options.sizes, contract)
        except (ValueError, TypeError) as error:
            raise UsageError(f"--sizes: {error}") from None
        if missing := narrowing.absent(sizes, contract, chosen.level):
            raise UsageError(f"--sizes: {missing}")
    if options.where is not None:
        given["--where"] = options.where
        try:
            where = narrowing.condition(options.where, contract)
        except ValueError as error:
            raise UsageError(f"--where: {error}") from None
    made = Narrowing(dtypes, where, sizes)
    if given:
        cases = plan(contract, chosen.level, chosen.seed).cases
        try:
            some = any(made.leaves_out(case) is None for case in cases)
        except ValueError as error:
            raise UsageError(f"--where: {error}") from None
        if not some:
            typed = " and ".join(f"{option}={value!r}" for option, value in given.items())
            raise UsageError(f"{typed} leave{'s' * (len(given) == 1)} none of the {len(cases)} cases of {op}")
    return made


def prepare(chosen: Selection, apart: bool = False) -> None:
    """Set this process up for the selection's device, as `Selection.prepare`; raises UsageError where it is set up for
    the other one."""
    try:
        chosen.prepare(apart)
    except RuntimeError as error:
        raise UsageError(str(error)) from error


def require_imports(chosen: Selection) -> None:
    """Raises UsageError naming the kernel files of the selection that do not import."""
    if broken := selection.import_check(chosen):
        raise UsageError("kernel files that do not import:\n" + "\n".join(broken))
