"""`touchstone tune`: time the configurations of a variant on this GPU, judged first, and pin the fastest in its
table."""

from typing import Any

from touchstone.backends.variants import attributes
from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.selection import Selection, UsageError
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import judge
from touchstone.conformance.judging.judgement import FAILED
from touchstone.conformance.judging.trials import CaseTrial, InvalidCall, PropertyTrial, trials_of
from touchstone.conformance.reporting.console import progress
from touchstone.conformance.spec.cases import plain_case
from touchstone.conformance.spec.contract import Case


def tune(chosen: Selection, write: bool = True) -> list[dict[str, Any]]:
    """Tune every selected variant that declares a `space` at its contract's large sizes; return one record each."""
    work = []
    for backend, subject in chosen.subjects():
        if attributes(subject.fn).space:
            contract = subject.contract
            work += [(backend, subject, dtype, dict(size)) for dtype in contract.dtypes for size in contract.large]
    if not work:
        raise UsageError(
            f"nothing to tune: no selected variant of {', '.join(chosen.ops)} declares a space of configurations"
        )
    records = []
    for backend, subject, dtype, size in progress(work, "tune"):
        record = _tune_one(backend, subject, dtype, size, write)
        if record:
            records.append(record)
    return records


def _tune_one(backend: str, subject: Subject, dtype: str, size: dict[str, Any], write: bool) -> dict[str, Any] | None:
    module = registry.backend(backend)
    contract = subject.contract
    plain = plain_case(contract, dtype, next(iter(contract.values)))
    arguments = contract.build(
        Case(plain.op, dtype, tuple(size.items()), plain.values, plain.layouts, plain.params), subject.device
    ).arguments
    quick = [
        trial
        for trial in trials_of(subject, "quick")[0]
        if trial.case.dtype == dtype and not isinstance(trial, PropertyTrial | InvalidCall)
    ]

    def verified() -> bool:
        return all(judge.run(subject, CaseTrial(trial.case)).status != FAILED for trial in quick)

    best = module.tune(subject.fn, arguments, verified, write=write)
    if best is None:
        return None
    return {"op": subject.op, "variant": subject.name, "dtype": dtype, "sizes": size, **best}
