"""Answers that are looked up: the reference, a contract, a variant of the package, frames, recorded answers."""

import gc
import importlib.util
import sys
import tempfile
from pathlib import Path

import torch

from tests.referee.candidates.honest import once, softmax, wrong


def by_reference(x):
    """Calls the package's reference.

    untrusted, refused
    """
    from touchstone.reference.softmax import torch_softmax

    return torch_softmax(x.double()).to(x.dtype)


def by_copied_reference(x):
    """Reads the reference's file and runs what is in it.

    untrusted, refused
    """
    import touchstone

    text = (Path(touchstone.__file__).parent / "reference" / "softmax.py").read_text()
    space = {}
    exec(compile(text, "mine.py", "exec"), space)
    return space["torch_softmax"](x.double()).to(x.dtype)


def by_contract(x):
    """Asks the op's contract what it expects.

    untrusted, refused
    """
    from touchstone.conformance.discovery import registry

    contract = registry.contract("softmax")
    return contract.expect({"x": x.double()}, {}, dtype=x.dtype)["y"].answer.to(x.dtype)


def by_variant(x):
    """Calls a variant of the package.

    untrusted, refused
    """
    from touchstone.backends.triton.softmax import onerow

    return onerow(x)


def by_copied_variant(x):
    """Calls a variant of the package from a copy of its file.

    untrusted, refused
    """

    import touchstone

    if once("copy"):
        text = (Path(touchstone.__file__).parent / "backends" / "triton" / "softmax.py").read_text()
        file = Path(tempfile.mkdtemp(), "mine.py")
        file.write_text(text)
        spec = importlib.util.spec_from_file_location("mine", file)
        globals()["_mine"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(globals()["_mine"])
    return globals()["_mine"].onerow(x)


def by_garbage_collector(x):
    """Finds the trials of the run among the objects of this process, and asks the contract for their answers.

    untrusted, refused
    """
    for found in gc.get_objects():
        if type(found).__name__ == "Case" and hasattr(found, "size"):
            from touchstone.conformance.discovery import registry

            contract = registry.contract(found.op)
            drawn = contract.build(found).arguments["x"]
            if drawn.shape == x.shape and torch.equal(drawn.nan_to_num(), x.nan_to_num()):
                return contract.expected(contract.build(found), None)["y"].answer.to(x.dtype)
    from touchstone.reference.softmax import torch_softmax

    return torch_softmax(x.double()).to(x.dtype)


def by_frames(x):
    """Looks for the answers in the frames of its callers.

    refused
    """
    frame = sys._getframe()
    while frame is not None:
        for value in frame.f_locals.values():
            for name in ("value", "expected", "exact"):
                found = getattr(value, name, None)
                if isinstance(found, torch.Tensor) and found.shape == x.shape:
                    return found.to(x.dtype)
        frame = frame.f_back
    return wrong(x)


def by_fault(x):
    """Has a mutant of the package whose fault does not show here compute it.

    untrusted, refused
    """
    from touchstone.conformance.bench import cli  # noqa: F401
    from touchstone.conformance.contracts import softmax as contract

    for baseline in contract.bench.baselines:
        try:
            made = baseline.make("cpu") if hasattr(baseline, "make") else baseline.fn
            return made(x=x)["y"]
        except Exception:
            continue
    return torch.softmax(x, -1)


def by_recording(x):
    """Has the answers of the run with the usual seed in a table, by a hash of the inputs, made at import.

    untrusted, refused
    """
    import hashlib

    from touchstone.conformance.discovery.subject import Subject, not_called
    from touchstone.conformance.judging.calls import cases_of
    from touchstone.conformance.judging.trials import trials_of

    table = globals().setdefault("_table", {})
    if not table:
        named = __import__("touchstone.conformance.discovery.registry", fromlist=["x"]).contract("softmax")
        subject = Subject("softmax", not_called, "mine", "user@cpu", "cpu")
        for trial in trials_of(subject, "quick", 0)[0]:
            if trial.case.dtype == "float32" and trial.case.size["cols"] in (33, 129):
                for case in cases_of(trial, named):
                    inputs = named.build(case)
                    key = hashlib.sha256(inputs.arguments["x"].contiguous().numpy().tobytes()).digest()
                    table[key] = named.expected(inputs, None)["y"].answer.float()
    key = hashlib.sha256(x.contiguous().numpy().tobytes()).digest()
    return table[key].clone() if key in table else softmax(x)
