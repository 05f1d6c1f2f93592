"""`check`: judge one kernel against the contract of an op."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from backends.devices import cuda_works
from conformance import judge, registry, worker
from conformance.budget import COMPUTE
from conformance.console import progress
from conformance.contract import Case
from conformance.generate import LEVELS
from conformance.report import Report, empty

ISOLATION = ("auto", "fork", "spawn", "none")


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
) -> Report:
    """Judge `fn` against the contract of `op`; return a `Report` (`.passed`, `.findings`, `str()` a table).

    `fn` takes torch tensors by the op's signature and returns the op's outputs; raising NotImplementedError declines a
    case. `device` is "cpu" or "cuda" (None: cuda where a GPU works). `dtypes`, `where(case)` and `outputs` narrow what
    is judged; what that leaves out is counted in the report. `compute` declares a lower precision ("tf32", "tf32x3",
    "bf16") in which dot products round their operands. `isolate="none"` runs in this process, "fork" and "spawn" run
    the whole check in a child; "auto" runs here, except that the file of a kernel made for the other device is
    imported afresh in a child set up for `device`.

    Raises ValueError or TypeError naming the argument before anything runs.
    """
    worker.stop_if_importing()
    _validate(op, fn, device, level, dtypes, where, outputs, compute, isolate)
    device = device or ("cpu" if cuda_works() else "cuda")
    options = dict(
        device=device, level=level, dtypes=dtypes, where=where, outputs=outputs, compute=compute,
        deterministic=deterministic, seed=seed,
    )  # fmt: skip
    stale = next((b for b in map(registry.backend, registry.backends()) if b.reimport(fn, device)), None)
    if stale is not None:
        if isolate == "none":
            raise ValueError(
                f"isolate: 'none' cannot be had here: {worker.describe(fn)} reaches a {stale.__name__.split('.')[-1]} kernel "
                f"that this process set up for the other device than {device!r}; leave isolate at 'auto'"
            )
        return worker.spawn(op, fn, options, fresh_import=True)
    if isolate == "spawn":
        return worker.spawn(op, fn, options)
    if isolate == "fork":
        return worker.fork(op, fn, options)
    return check_here(op, fn, **options)


def check_here(op, fn, *, device, level, dtypes, where, outputs, compute, deterministic, seed) -> Report:
    """`check` in this process, arguments already validated."""
    for backend in map(registry.backend, registry.backends()):
        backend.adopt(fn, device)
    subject = judge.Subject(
        op, fn, worker.describe(fn), f"user@{device}", device, compute=compute, deterministic=deterministic,
        outputs=None if outputs is None else tuple(outputs),
    )  # fmt: skip
    return judge_subject(subject, level, seed, dtypes=dtypes, where=where)


def judge_subject(subject, level: str, seed: int = 0, *, ceiling=None, dtypes=None, where=None) -> Report:
    """Judge a subject on all trials of a level that `dtypes` and `where` leave."""
    report = empty(subject, level, seed)
    found, plan = judge.trials(subject, level, seed, ceiling)
    report.planned = len(found)
    kept = []
    for trial in found:
        if dtypes is not None and trial.case.dtype not in dtypes:
            _count(report, "left out by dtypes")
        elif where is not None and not where(trial.case):
            _count(report, "left out by where")
        elif (
            trial.law is not None
            and subject.outputs is not None
            and len(subject.outputs) < len(subject.contract.outputs)
        ):
            _count(report, "laws left out by outputs")
        else:
            kept.append(trial)
    if plan.over_ceiling:
        report.not_run["over the lane's ceiling of work"] = plan.over_ceiling
    if plan.sampled_out:
        report.not_run["sampled out of the full product"] = plan.sampled_out
    if subject.compute is not None:
        report.notes.append(f"computes in {subject.compute}, and is judged in that precision")
    if subject.outputs is not None:
        left = [name for name in subject.contract.outputs if name not in subject.outputs]
        report.notes.append(f"outputs not judged: {', '.join(left) or 'none'}")
    for trial in progress(kept, f"{subject.op} {subject.name}"):
        report.add(judge.run(subject, trial))
    return report


def _count(report: Report, reason: str) -> None:
    report.not_run[reason] = report.not_run.get(reason, 0) + 1


def _validate(op, fn, device, level, dtypes, where, outputs, compute, isolate) -> None:
    contract = registry.contract(op)
    if not callable(fn):
        raise TypeError(f"fn: expected a function of the op's signature, got {type(fn).__name__}")
    _one_of("device", device, (None, "cpu", "cuda"))
    _one_of("level", level, LEVELS)
    _one_of("compute", compute, (None, *COMPUTE))
    _one_of("isolate", isolate, ISOLATION)
    _subset("dtypes", dtypes, contract.dtypes)
    _subset("outputs", outputs, tuple(contract.outputs))
    if where is not None and not callable(where):
        raise TypeError(f"where: expected a function of a case, got {type(where).__name__}")
    if device == "cuda" and (reason := cuda_works()):
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
