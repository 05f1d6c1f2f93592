"""One trial of a finding judged again, alone, and what a call on it returns beside the right answer."""

from dataclasses import dataclass, replace

import torch

from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.isolation.limits import Limits
from touchstone.conformance.isolation.runner import Runner
from touchstone.conformance.judging import diagnosis
from touchstone.conformance.judging import instruments as probe
from touchstone.conformance.judging.call import output_bytes
from touchstone.conformance.judging.executor import InProcess
from touchstone.conformance.judging.judgement import Outcome
from touchstone.conformance.judging.trials import Compiled, Int64Index, InvalidCall, Trial
from touchstone.conformance.spec import compare, outputs
from touchstone.conformance.spec.budget import Expected
from touchstone.conformance.spec.checks import Check
from touchstone.conformance.spec.compare import Verdict

DEADLY = (Check.CRASH, Check.HANG, Check.MEMORY)  # whose trial can take its process along: judged again in a child
CHILD_SECONDS = 30.0


def rerun(subject: Subject, trial: Trial, check: str) -> Outcome:
    """Judge one trial, in a child where that is cheap or where `check` says that the trial can take its process
    along."""
    mode = "none" if subject.device == "cuda" and check not in DEADLY else "auto"
    subject = replace(subject, diagnosed=False)
    with Runner(subject, [trial], mode, limits=Limits(seconds=CHILD_SECONDS)) as runner:
        return runner.outcome(0)


@dataclass
class Output:
    """One output of a call beside the right answer."""

    got: torch.Tensor
    expected: Expected
    verdict: Verdict


def observable(trial: Trial) -> bool:
    """Whether `observe` can say something: the trial's case gives outputs, and the memory of their answers is there."""
    return not isinstance(trial, InvalidCall | Int64Index | Compiled)


def observe(subject: Subject, trial: Trial) -> dict[str, Output]:
    """Call the kernel on the trial's case and compare what can be compared: outputs of the right form."""
    contract, case = subject.contract, trial.case
    inputs = contract.build(case, subject.device)
    with probe.poison(probe.PATTERNS[0], subject.device, output_bytes(contract, case)):
        returned = subject.call(inputs.arguments)
    values = contract.by_name(returned, subject.outputs)
    right = contract.expected(contract.build(case), subject.compute)
    found = {}
    for name, got in {} if isinstance(values, str) else values.items():
        answer = right[name]
        if answer is None or (subject.outputs and name not in subject.outputs):
            continue
        if outputs.comparable(outputs.problems(contract, case, name, got, subject.device, inputs={})):
            bits = diagnosis.exact(contract, case, name)
            found[name] = Output(got, answer, compare.compare(got, answer, case.torch_dtype, bits))
    return found


def explain(subject: Subject, trial: Trial, seen: dict[str, Output]) -> str | None:
    """The diagnosis of what `observe` saw, and who wrote the worst element where the target knows."""
    contract, case = subject.contract, trial.case
    verdicts = {name: output.verdict for name, output in seen.items()}
    texts = diagnosis.diagnose(
        contract,
        case,
        {name: o.got for name, o in seen.items()},
        {name: o.expected for name, o in seen.items()},
        verdicts,
    )
    lines = []
    for name, verdict in verdicts.items():
        lines += [texts[name]] if name in texts else []
        if not verdict.ok and verdict.worst is not None:
            writer = diagnosis.owner(InProcess(subject), contract, case, name, verdict.worst)
            if writer:
                lines.append(f"{name}{list(verdict.worst)} was written by {writer}")
    return "\n".join(lines) or None
