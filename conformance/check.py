"""`check`: judge one kernel against the contract of an op."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from touchstone.backends.devices import cuda_unavailable
from touchstone.conformance.discovery import arrays as array_libraries
from touchstone.conformance.discovery import importing as worker
from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.findings.kept import keep_report
from touchstone.conformance.isolation.limits import Limits
from touchstone.conformance.isolation.runner import MODES
from touchstone.conformance.reporting.report import Report
from touchstone.conformance.reporting.session import judge_subject
from touchstone.conformance.spec.budget import COMPUTE
from touchstone.conformance.spec.cases import LEVELS
from touchstone.conformance.spec.contract import DTYPES, Case


def check(
    op: str,
    fn: Callable[..., Any],
    *,
    device: str | None = None,
    level: str = "default",
    dtypes: Sequence[str] | None = None,
    where: Callable[[Case], bool] | None = None,
    outputs: Sequence[str] | None = None,
    compute: str | None = None,
    deterministic: bool = True,
    isolate: str = "auto",
    seed: int = 0,
    arrays: str = "torch",
    timeout: float = 60.0,
) -> Report:
    """Judge `fn` against the contract of `op`; return a `Report` (`.passed`, `.findings`, `str()` a table).

    `fn` takes torch tensors by the op's signature and returns the op's outputs; raising NotImplementedError declines a
    case. `device` is "cpu" or "cuda" (None: cuda where a GPU works). `dtypes`, `where(case)` and `outputs` narrow what
    is judged; what that leaves out is counted in the report. `compute` declares a lower precision ("tf32", "tf32x3",
    "bf16") in which dot products round their operands. With
    `arrays="numpy"` or "cupy" `fn` takes and returns the arrays of that library, views of the tensors' memory.

    A crash, a hang (`timeout` seconds a trial) or a memory blow-up is a finding. `isolate` says where the kernel runs:
    in a forked child ("fork", the CPU's default: closures and stateful objects work), in a fresh process ("spawn",
    CUDA's
    default: the function is imported there by file and name, else sent by value), or in this process ("none"), where a
    debugger works and a crash ends the run. The file of a kernel made for the other device is imported afresh in a
    process set up for `device`.

    Raises ValueError or TypeError naming the argument before anything runs, and `Interrupted` at Ctrl-C.
    """
    worker.stop_if_importing()
    _one_of("arrays", arrays, array_libraries.libraries())
    device = array_libraries.device_of(arrays, device)
    _validate(op, fn, device, level, dtypes, where, outputs, compute)
    device = device or ("cpu" if cuda_unavailable() else "cuda")
    limits = isolation_limits(device, isolate, timeout)
    judged = {name: DTYPES[name] for name in dtypes or registry.contract(op).dtypes}
    if reason := array_libraries.lacks(arrays, judged):
        raise ValueError(reason)
    backends = [registry.backend(name) for name in registry.backends()]
    stale = next((backend for backend in backends if backend.reimport(fn, device)), None)
    if stale is None:
        for backend in backends:
            backend.adopt(fn, device)
    elif isolate == "none":
        raise ValueError(
            f"isolate: 'none' is not available here: {worker.describe(fn)} reaches a "
            f"{stale.__name__.split('.')[-1]} kernel "
            f"that this process set up for the other device than {device!r}; leave isolate at 'auto'"
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
    )
    report = judge_subject(
        subject,
        level,
        seed,
        dtypes=dtypes,
        where=where,
        isolate="spawn" if stale else isolate,
        limits=limits,
        fresh_import=stale is not None,
    )
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


def _validate(op, fn, device, level, dtypes, where, outputs, compute) -> None:
    contract = registry.contract(op)
    if not callable(fn):
        raise TypeError(f"fn: expected a function of the op's signature, got {type(fn).__name__}")
    _one_of("device", device, (None, "cpu", "cuda"))
    _one_of("level", level, LEVELS)
    _one_of("compute", compute, (None, *COMPUTE))
    _subset("dtypes", dtypes, contract.dtypes)
    _subset("outputs", outputs, tuple(contract.outputs))
    if where is not None and not callable(where):
        raise TypeError(f"where: expected a function of a case, got {type(where).__name__}")
    if device == "cuda" and (reason := cuda_unavailable()):
        raise ValueError(f"device: 'cuda' cannot be used here: {reason}; pass device='cpu'")


def _one_of(name: str, value, options: tuple) -> None:
    if value not in options:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, options))}, got {value!r}")


def _subset(name: str, values, options: Sequence[str]) -> None:
    if values is None:
        return
    if isinstance(values, str) or not isinstance(values, Collection) or not values:
        raise ValueError(f"{name}: expected a non-empty sequence out of {', '.join(options)}, got {values!r}")
    for value in values:
        if value not in options:
            raise ValueError(f"{name}: {value!r} is not one of {', '.join(options)}")
