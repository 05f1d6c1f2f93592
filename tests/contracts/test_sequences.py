"""Properties of ops on packed sequences that show what an earlier call has left in memory."""

import pytest
import torch

from touchstone.conformance.discovery import registry
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.judging import judge
from touchstone.conformance.judging.judgement import FAILED, PASSED
from touchstone.conformance.judging.trials import PropertyTrial
from touchstone.conformance.spec.cases import plain_case
from touchstone.reference._packing import sequences
from touchstone.reference.attention_varlen import torch_attention_varlen
from touchstone.reference.attention_varlen_backward import torch_attention_varlen_backward

OPS = {
    "attention_varlen": (torch_attention_varlen, ("rows", "heads")),
    "attention_varlen_backward": (torch_attention_varlen_backward, ("rows", "keys", "keys")),
}


def of_op(op, keeps):
    """The op, whose outputs lie in memory that is kept from call to call where it `keeps`: it writes what the sequences
    with rows and keys have there, and nothing else."""
    right, along = OPS[op]
    memory = {}

    def fn(*operands, **params):
        exact = right(*[x.double() if x.is_floating_point() else x for x in operands], **params)
        dtypes = [torch.float32 if one == "heads" else operands[0].dtype for one in along]
        answers = [answer.to(dtype) for answer, dtype in zip(exact, dtypes, strict=True)]
        if not keeps:
            return tuple(answers)
        for number, answer in enumerate(answers):
            kept = memory.setdefault((number, answer.shape, answer.dtype), answer.clone())
            for rows, keys in sequences(operands[-2], operands[-1]):
                if rows.start < rows.stop and keys.start < keys.stop:
                    at = keys if along[number] == "keys" else (slice(None), rows) if along[number] == "heads" else rows
                    kept[at] = answer[at]
        return tuple(memory[number, answer.shape, answer.dtype].clone() for number, answer in enumerate(answers))

    return fn


@pytest.mark.parametrize(
    ("op", "name"),
    [
        *((op, "the last sequence is left out") for op in OPS),
        ("attention_varlen_backward", "order of sequences does not matter"),  # one sequence has keys and no rows
    ],
)
def test_what_an_earlier_call_left_shows_where_sequences_lie_otherwise(op, name):
    contract = registry.contract(op)
    prop = next(prop for prop in contract.properties if prop.name == name)
    case = plain_case(contract, "float32", prop.values)
    for keeps, status in ((False, PASSED), (True, FAILED)):
        subject = Subject(op, of_op(op, keeps), "fn", "user@cpu", "cpu", diagnosed=False)
        outcome = judge.run(subject, PropertyTrial(case, prop))
        assert outcome.status == status, outcome.findings
        assert not keeps or {finding.check for finding in outcome.findings} == {f"property: {name}"}
