"""elementwise(a, b, *, function): y = a + b or a·b of two tensors of one shape, whatever its rank."""

import torch

from touchstone.conformance.contracts import _baselines as common
from touchstone.conformance.contracts._laws import of_one_memory
from touchstone.conformance.contracts._pointwise import ANY_RANK, of_shapes, overflowing, pointwise, special_of_each
from touchstone.conformance.spec import rounding
from touchstone.conformance.spec.baselines import Bench
from touchstone.conformance.spec.contract import Also, Draw, Invalid, Property, beyond_largest
from touchstone.reference.elementwise import torch_elementwise


def _no_error(inputs, params):
    """One operation, and its result is rounded anyway: also where it is computed in the operands' own dtype."""
    return [torch.zeros(inputs["a"].shape, dtype=torch.float64)]


def _beyond_largest(draw: Draw):
    """Two summands of one sign, which takes turns."""
    sign = draw.integers(draw.shape("a"), 0, 2) * 2 - 1
    return {name: sign * draw.of_largest(name, 0.75, 1.0) for name in "ab"}


def _operands_commute(call, arguments, outputs, case):
    swapped = call(**{**arguments, "a": arguments["b"], "b": arguments["a"]})[0]
    return None if torch.equal(swapped, outputs[0]) else "the answer changed when a and b changed places"


def _rounded_once(call, arguments, outputs, case):
    return rounding.told(outputs[0], arguments["a"].double() + arguments["b"].double(), "a + b")


contract = pointwise(
    torch_elementwise,
    ["a", "b"],
    axes=ANY_RANK,
    params={"function": ("add", "mul")},
    error=_no_error,
    also=of_shapes(ANY_RANK, "a", "b")
    | special_of_each(ANY_RANK, {"function": ("add", "mul")})
    | {"overflowing_product": Also({"trailing": (3, 33)}, "overflowing", {"function": "mul"}, dtype="float16")}
    | beyond_largest({"trailing": (3, 33)}, _beyond_largest),
    exact={"integers": ["y"]},
    values={"overflowing": overflowing},
    invalid=[
        Invalid("b would have to be broadcast", lambda a: {**a, "b": a["b"][:1]}, ValueError, r"\bb\b"),
        Invalid("b has another rank", lambda a: {**a, "b": a["b"][None]}, ValueError, r"\bb\b"),
        Invalid("unknown function", lambda a: {**a, "function": "sub"}, ValueError, r"\bfunction\b.*sub"),
    ],
    properties=[
        Property("a and b change places", _operands_commute),
        Property("a + b is rounded once", _rounded_once),
        of_one_memory("a", "b"),
    ],
)


def _torch(a, b, function):
    return {"y": a + b if function == "add" else a * b}


bench = Bench(
    baselines=[
        *common.torch_baselines(_torch),
        common.on_arrays("CuPy", "cupy", lambda cupy, a, b, **_: cupy.add(a, b), "y"),
    ]
)
