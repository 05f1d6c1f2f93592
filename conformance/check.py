"""`check`: judge one kernel against the contract of an op."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from touchstone.backends.devices import cuda_unavailable
from touchstone.backends.gpus import DEFAULT
from touchstone.conformance.discovery import arrays as array_libraries
from touchstone.conformance.discovery import derivation, launching, registry
from touchstone.conformance.discovery import importing as worker
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.findings.kept import keep_report
from touchstone.conformance.isolation.limits import Limits
from touchstone.conformance.isolation.runner import MODES
from touchstone.conformance.reporting.report import Report
from touchstone.conformance.reporting.session import Interrupted, judge_subject
from touchstone.conformance.spec.budget import COMPUTE
from touchstone.conformance.spec.cases import LEVELS
from touchstone.conformance.spec.checks import Requirement
from touchstone.conformance.spec.contract import DTYPES, Case
from touchstone.conformance.spec.known import Known
from touchstone.conformance.spec.known import read as read_known
from touchstone.conformance.spec.narrowing import Narrowing, absent, sizes_of
from touchstone.conformance.spec.words import expected_one_of, not_one_of


def check(
    op: str,
    fn: Callable[..., Any],
    *,
    device: str | None = None,
    level: str = "default",
    dtypes: Sequence[str] | None = None,
    where: Callable[[Case], bool] | None = None,
    sizes: Mapping[str, Any] | None = None,
    outputs: Sequence[str] | None = None,
    compute: str | None = None,
    deterministic: bool = True,
    isolate: str = "auto",
    seed: int | None = None,
    arrays: str = "torch",
    timeout: float = 60.0,
    require: Sequence[str] | None = None,
    strict: bool = False,
    arch: str | None = None,
    coverage: float | None = None,
    untrusted: bool = False,
    allow_library: bool = False,
    known: str | Path | None = None,
) -> Report:
    """Judge `fn` against the contract of `op`; return a `Report` (`.passed`, `.findings`, `str()` a table).

    `fn` takes torch tensors by the op's signature and returns the op's outputs; raising NotImplementedError declines a
    case. `device` is "cpu" or "cuda" (None: cuda where a GPU works). `dtypes`, `where(case)`,
    `sizes` ({"Sq": [64, 128], "D": 64}) and `outputs` narrow what is judged; what that leaves out is counted in the
    report. `compute` declares a lower precision ("tf32", "tf32x3", "bf16") in which dot products round their operands.
    With `arrays="numpy"` or "cupy" `fn` takes and returns the arrays of that library, views of the tensors' memory.

    `require` names the requirements that decide ("values", "layouts", "special", "empty", "offsets", "determinism",
    "contract"; None: all); the report says of each whether it holds. What a kernel's language leaves undefined though
    GPUs agree on it (a masked load without `other` in Triton) gives a note, and with `strict` fails.

    Where less than the share `coverage` (0 to 1; None: 0, and 1 of an untrusted kernel) of the trials that call it is
    judged, since it declines the others or they cannot be run here, the verdict is "partial", which is not passed.

    `known` is a TOML file (conformance/spec/known.py) of cases to skip and of failures to expect: these do not decide,
    and one that does not come fails.

    On the CPU, what `fn` asks of CUDA (`torch.cuda`, `device="cuda"`, `is_cuda`, Triton's driver) is answered as a GPU
    of `arch` would ("sm_80", ...; None: "sm_90"; "none": nothing is answered). Tensors stay on the CPU.

    `untrusted`: the kernel's author may want a verdict that it does not deserve. What it does beside computing is then
    held against it: work that the library does, or anything but a kernel of a GPU language (`allow_library` lifts
    that), answers out of this package, threads, processes. Sizes of its own are added to the level's, and `seed` (None:
    0) is drawn by chance once the function is loaded.

    A crash, a hang (`timeout` seconds a trial) or a memory blow-up is a finding. `isolate` says where the kernel runs:
    in a forked child ("fork", the CPU's default and an untrusted kernel's: closures and stateful objects work), in a
    fresh process ("spawn", CUDA's default: the function is imported there by file and name, else sent by value), or
    in this process ("none"), where a debugger works and a crash ends the run. The file of a kernel made for the other
    device is imported afresh in a process set up for `device`.

    Raises ValueError or TypeError naming the argument before anything runs, also where the signature of `fn` does not
    fit, and `Interrupted` at Ctrl-C.
    """
    worker.stop_if_importing()
    _one_of("arrays", arrays, array_libraries.libraries())
    device = array_libraries.device_of(arrays, device)
    _validate(op, fn, device, level, dtypes, where, outputs, compute)
    _subset("require", require, tuple(map(str, Requirement)))
    coverage = float(untrusted) if coverage is None else coverage
    _share("coverage", coverage)
    rules = Known() if known is None else read_known(known, registry.contract(op))
    skip = {rule.reason: rule.where for rule in rules.skip}
    narrowing = Narrowing(dtypes, where, _sizes(sizes, op, level), skip or None)
    _one_of("arch", arch, (None, *launching.ARCHITECTURES))
    device = device or ("cpu" if cuda_unavailable() else "cuda")
    if device == "cuda" and arch is not None:
        raise ValueError(f"arch: {arch!r} goes with device 'cpu'; on a GPU, that GPU answers")
    limits = isolation_limits(device, isolate, timeout)
    _validate_trust(untrusted, allow_library, device, isolate)
    judged = {name: DTYPES[name] for name in dtypes or registry.contract(op).dtypes}
    if reason := array_libraries.lacks(arrays, judged):
        raise ValueError(reason)
    backends = [registry.backend(name) for name in registry.backends()]
    in_file = isinstance(fn, worker.FileFunction)  # whose process sets its kernels up
    stale = None if in_file else next((backend for backend in backends if backend.reimport(fn, device)), None)
    if in_file:
        pass
    elif stale is None:
        for backend in backends:
            backend.adopt(fn, device)
    elif isolate == "none" or untrusted:
        what, instead = (
            ("untrusted: not", "judge its file, as by --kernel")
            if untrusted
            else ("isolate: 'none' is not", "leave isolate at 'auto'")
        )
        raise ValueError(
            f"{what} available here: {worker.describe(fn)} reaches a {stale.__name__.split('.')[-1]} kernel "
            f"that this process set up for the other device than {device!r}; {instead}"
        )
    subject = Subject(
        op,
        fn,
        worker.describe(fn),
        f"user@{device}",
        device,
        compute=compute,
        deterministic=deterministic,
        outputs=None if outputs is None else tuple(outputs),
        arrays=arrays,
        strict=strict,
        arch=(arch or DEFAULT) if device == "cpu" else launching.NONE,
        untrusted=untrusted,
        allow_library=allow_library,
    )
    try:
        report = judge_subject(
            subject,
            level,
            seed,
            narrowing=narrowing,
            isolate="spawn" if stale else isolate,
            limits=limits,
            fresh_import=stale is not None,
            expected=rules.expected,
        )
    except Interrupted as interrupted:
        interrupted.report.require = tuple(require or ())
        raise
    report.require, report.least_coverage = tuple(require or ()), coverage
    report.notes += derivation.notes(op)
    report.determined, report.selftest = derivation.determined(op), derivation.strength(op)
    keep_report(subject, report)
    return report


def assert_correct(op: str, fn: Callable[..., Any], **options: Any) -> Report:
    """`check(op, fn, **options)` for a test: raise an AssertionError with a short message unless `fn` passes.

    Returns the report of a kernel that passed. The options and the errors before anything runs are those of `check`.
    """
    __tracebackhide__ = True
    return check(op, fn, **options).raise_for_failure()


def isolation_limits(device: str, isolate: str, timeout: float) -> Limits:
    """The limits that `timeout` means. ValueError names `isolate` or `timeout` where it is not available."""
    _one_of("isolate", isolate, MODES)
    if isolate == "fork" and device == "cuda":
        raise ValueError(
            "isolate: 'fork' does not work with device 'cuda' (CUDA cannot be used in a forked child); use 'spawn'"
        )
    try:
        return Limits(seconds=timeout)
    except ValueError:
        raise ValueError(f"timeout: expected a positive number of seconds, got {timeout!r}") from None


def _validate_trust(untrusted: bool, allow_library: bool, device: str, isolate: str) -> None:
    if allow_library and not untrusted:
        raise ValueError("allow_library: goes with untrusted=True; else the library may be called")
    if untrusted and isolate not in ("auto", "fork"):
        raise ValueError(f"untrusted: such a kernel runs in a forked child; got isolate={isolate!r}")


def _validate(op, fn, device, level, dtypes, where, outputs, compute) -> None:
    contract = registry.contract(op)
    if not callable(fn):
        raise TypeError(f"fn: expected a function of the op's signature, got {type(fn).__name__}")
    _one_of("device", device, (None, "cpu", "cuda"))
    _one_of("level", level, LEVELS)
    _one_of("compute", compute, (None, *COMPUTE))
    _subset("dtypes", dtypes, contract.dtypes)
    _subset("outputs", outputs, tuple(contract.outputs))
    if not isinstance(fn, worker.FileFunction) and (misfit := contract.misfit(fn)):
        raise TypeError(f"fn: {misfit}")
    if where is not None and not callable(where):
        raise TypeError(f"where: expected a function of a case, got {type(where).__name__}")
    if device == "cuda" and (reason := cuda_unavailable()):
        raise ValueError(f"device: 'cuda' cannot be used here: {reason}; pass device='cpu'")


def _sizes(sizes: Mapping[str, Any] | None, op: str, level: str) -> dict[str, list[Any]] | None:
    """The sizes that are asked for, each axis with a list; TypeError or ValueError for what the op has not."""
    if sizes is None:
        return None
    contract = registry.contract(op)
    try:
        found = sizes_of(sizes, contract)
    except (TypeError, ValueError) as error:
        raise type(error)(f"sizes: {error}") from None
    if missing := absent(found, contract, level):
        raise ValueError(f"sizes: {missing}")
    return found


def _share(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{name}: expected a share from 0 to 1, got {value!r}")


def _one_of(name: str, value, options: tuple) -> None:
    if value not in options:
        raise ValueError(f"{name}: {expected_one_of(value, options, repr)}")


def _subset(name: str, values, options: Sequence[str]) -> None:
    if values is None:
        return
    if isinstance(values, str) or not isinstance(values, Collection) or not values:
        raise ValueError(f"{name}: expected a non-empty sequence out of {', '.join(options)}, got {values!r}")
    for value in values:
        if value not in options:
            raise ValueError(f"{name}: {not_one_of(value, options)}")
