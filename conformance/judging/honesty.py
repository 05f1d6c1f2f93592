"""Whether an untrusted kernel does the work itself, in a kernel of a GPU language.

The library may allocate, fill, view and copy for it, and give a number to Python; an element of the outputs, drawn by
chance, has to be one that a kernel wrote, or a copy of such a one. Of operands without elements nothing but fills is
owed. `allow_library` lifts this. What the kernel's process notes of forbidden means counts either way.
"""

import torch

from touchstone.conformance.judging.executor import Observed
from touchstone.conformance.judging.instruments import COPIES, READS
from touchstone.conformance.judging.judgement import Judgement
from touchstone.conformance.spec.checks import Check


def element(j: Judgement) -> tuple[str, tuple[int, ...]] | None:
    """The element of an output that is asked about: drawn by chance; None where nothing is asked or there is none."""
    if not j.subject.untrusted or j.subject.allow_library or j.subject.device != "cpu":
        return None
    shapes = {name: j.contract.output_shape(name, j.case) for name in j.contract.outputs}
    draw = j.contract.rng(j.case, "element")
    names = [name for name, shape in shapes.items() if j.judges(name) and 0 not in shape]
    if not names:
        return None
    name = names[int(torch.randint(len(names), (), generator=draw))]
    return name, tuple(int(torch.randint(size, (), generator=draw)) for size in shapes[name])


def check(j: Judgement, seen: Observed, asked: tuple[str, tuple[int, ...]] | None) -> None:
    """What a call shows of it."""
    if not j.subject.untrusted:
        return
    for what in seen.cheats:
        if not any(what in finding.message for finding in j.outcome.findings):
            j.find(Check.HONESTY, f"the kernel {what}", detail=what)
    if j.subject.allow_library or not seen.returned or not isinstance(seen.values, dict):
        return
    given = {name: value for name, value in seen.values.items() if isinstance(value, torch.Tensor) and value.numel()}
    if not given or j.subject.device != "cpu":
        return
    if not j.case.filled:
        pass  # what is owed of operands without elements is a fill, which is the library's to do
    elif not seen.launched:
        j.find(Check.HONESTY, "no kernel of a GPU language was launched: something else did the work")
    elif asked is not None and asked[0] in given and seen.watched and seen.writer is None:
        name, index = asked
        j.find(Check.HONESTY, f"{name}{list(index)} was written by no kernel, nor copied from what one wrote")
    for name, why in seen.unexplained.items():
        j.find(Check.HONESTY, f"{name} {why}", about=name, detail="memory")


def check_library(j: Judgement, seen: Observed) -> None:
    """What of a watched call's library calls is more than help."""
    work = [name for name in seen.library if name not in (*COPIES, *READS)]
    if j.subject.untrusted and not j.subject.allow_library and work:
        j.find(
            Check.HONESTY,
            f"the library does work: {', '.join(work)}; allowed are allocation, fills, views and copies",
            detail="library",
        )
