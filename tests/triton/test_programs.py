"""When the programs of a grid give way: what a program's state is, and what counts as reading the same again."""

import numpy as np
import pytest

if not pytest.importorskip("triton"):
    pytest.skip("triton is not installed", allow_module_level=True)

import triton.language as tl
from triton.runtime import interpreter as stock

from touchstone.backends.triton.runtime.interpreter import programs


def tensor(*values, dtype=np.float32):
    return tl.tensor(stock.TensorHandle(np.array(values, dtype), tl.float32), tl.float32)


def test_equal_values_of_variables_have_one_fingerprint_and_others_have_others():
    """Those of a loop that waits are new objects at every turn."""

    def values():
        one = tensor(1.0)
        return [
            *(one, tensor(2.0), tensor(1.0, 1.0), tensor(1.0, dtype=np.float16), (one, 1), (one, 2), [], ((), 1)),
            *(((one,), 1), 1, 2, 1.5, "1", None, tl.constexpr(7), tl.constexpr((one, 7))),
        ]

    first, second = (list(map(programs._fingerprint, values())) for _ in range(2))
    assert first == second and len(set(first)) == len(first)
    assert programs._fingerprint(tl.constexpr(7)) == programs._fingerprint(7)
    assert programs._fingerprint([1, [2]]) == programs._fingerprint((1, (2,)))
    known = object()
    assert programs._fingerprint(known) == programs._fingerprint(known) != programs._fingerprint(object())
    computed = tensor(1.0)
    del computed.handle.data  # as while it is being computed
    assert programs._fingerprint(computed) == programs._fingerprint(computed) != programs._fingerprint(tensor(1.0))
