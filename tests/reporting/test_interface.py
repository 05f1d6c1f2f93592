"""What `describe OP` says of an op: its call, operands, options and outputs, and on what it is judged."""

import pytest

from touchstone.conformance.cli import main
from touchstone.conformance.discovery import registry
from touchstone.conformance.reporting.interface import described


def test_shapes_and_dtypes_are_told():
    lines = described(registry.contract("attention_decode")).splitlines()
    assert lines[:8] == [
        "attention_decode, called as fn(q, k, v, lengths, scale=None)",
        "  q: (B, Hq, Sq, D), T",
        "  k: (B, Hkv, Sk, D), T",
        "  v: (B, Hkv, Sk, D), T",
        "  lengths: (B), int32",
        "  scale = None, 0.21, -0.3 or 0.0",
        "  -> o: (B, Hq, Sq, D), T",
        "  -> lse: (B, Hq, Sq), float32",
    ]
    assert "T: float32, float16 or bfloat16" in lines
    assert "Query head h reads key head h // (Hq / Hkv)." in " ".join(lines)


def test_what_an_option_makes_of_a_shape_is_told():
    lines = described(registry.contract("cross_entropy_backward")).splitlines()
    assert "  dloss: (), float32; (rows), float32 where reduction='none'" in lines
    assert "  target: (rows), int64 or int32" in lines
    assert "  lse: (rows), float32, or None" in lines


def test_a_value_that_follows_from_the_operands_is_told_as_that():
    assert "  max_q = what follows from the operands" in described(registry.contract("attention_varlen"))


def test_layouts_are_told():
    assert "layouts of a, b: contiguous, " in described(registry.contract("dot"))


@pytest.mark.parametrize("op", registry.ops())
def test_every_operand_and_output_of_every_op_is_told(op):
    contract = registry.contract(op)
    text = described(contract)
    for name in contract.operands:
        assert f"\n  {name}: (" in text
    for name in contract.outputs:
        assert f"\n  -> {name}: (" in text


def test_the_command_tells_an_op(capsys):
    assert main(["describe", "softmax"]) == 0
    assert capsys.readouterr().out.startswith("softmax, called as fn(x")


def test_a_name_that_no_op_has_is_refused(capsys):
    assert main(["describe", "soft"]) == 2
    assert "did you mean 'softmax'?" in capsys.readouterr().err


def test_inputs_do_not_go_with_an_op(capsys):
    assert main(["describe", "softmax", "--inputs", "f.py:g"]) == 2
    assert "--inputs: goes with FILE.py:FUNCTION" in capsys.readouterr().err
