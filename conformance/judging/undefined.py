"""What a kernel's language leaves undefined although GPUs agree on it: a masked load without `other`, in Triton.

A user's kernel is judged with what GPUs give; where it is right only with that, it gets a note that names the line. A
strict subject is judged with what shows its use (NaN), and once more with what GPUs give. Which places are undefined,
the backends say (`undefined` of the protocol).
"""

from touchstone.conformance.judging.call import COMPARED_WITH_FAULTS, trouble_on
from touchstone.conformance.judging.judgement import Judgement
from touchstone.conformance.judging.trials import CaseTrial
from touchstone.conformance.spec.checks import Check
from touchstone.conformance.spec.contract import Inputs

SINGLED_OUT = 8  # places at most that are tried one by one
NAMED = 4  # places at most that a failure names


def call_otherwise(j: Judgement, inputs: Inputs) -> None:
    """Another call where something undefined was met: conspicuous, of a user's kernel; as on GPUs, of a strict one."""
    known = j.subject.compared
    met = {place: what for place, what in j.undefined.items() if not known[f"undefined: {place}"]}
    if not met:
        return
    if j.subject.strict:
        _, found = trouble_on(j, inputs, conspicuous=())
        if found is not None:
            j.find(Check.PORTABILITY, f"wrong with what GPUs give where {_listed(met)}: {found.message}")
        return
    _, found = trouble_on(j, inputs, conspicuous=tuple(met))
    if found is None:
        return
    guilty = {}
    for place in list(met)[:SINGLED_OUT] if len(met) > 1 else ():
        _, alone = trouble_on(j, inputs, conspicuous=(place,))
        if alone is not None:
            guilty[place] = alone.message
    for place, message in (guilty or dict.fromkeys(met, found.message)).items():
        known[f"undefined: {place}"] += 1
        j.find(
            Check.PORTABILITY,
            f"{place}: {met[place]}; the answer is right only with that, else {message.partition(';')[0]}",
            severity="note",
            detail=place,
        )


def explain(j: Judgement) -> None:
    """Add to the first failure what undefined things it depends on: those of the first few failures are told that are
    others, or none, once GPUs' values are exchanged for conspicuous ones, or these for GPUs'."""
    met, known = dict(j.undefined), j.subject.compared
    failures = [found for found in j.outcome.findings if found.fails() and found.check in (Check.VALUES, Check.RAISED)]
    if not met or not failures or not j.subject.diagnosed or not isinstance(j.trial, CaseTrial):
        return
    known["undefined"] += 1
    if known["undefined"] > COMPARED_WITH_FAULTS:
        return
    inputs = j.contract.build(j.case, j.executor.device)
    _, found = trouble_on(j, inputs, conspicuous=() if j.subject.strict else tuple(met))
    first = failures[0]
    if found is not None and found.message == first.message:
        return
    lines = [f"undefined: {place}: {what}" for place, what in list(met.items())[:NAMED]]
    if found is None:
        lines.append(f"{'with what GPUs give' if j.subject.strict else 'with another value'} there the answer is right")
    first.diagnosis = "\n".join([first.diagnosis, *lines] if first.diagnosis else lines)


def _listed(met: dict[str, str]) -> str:
    return "; ".join(f"{place} has {what}" for place, what in met.items())
