"""A kernel of Numba's on a GPU, with a device function of the file that is named: prints what was compiled, and what it
gave. tests/numba/test_kept.py runs this file."""

import importlib.util
import json
import sys

import numpy as np
import torch

from touchstone.backends import numba as backend

backend.prepare("cuda")

from numba import cuda  # noqa: E402 - as prepare wants it
from numba.cuda import dispatcher  # noqa: E402

from touchstone.backends.numba.runtime.launching import launch  # noqa: E402

spec = importlib.util.spec_from_file_location("helper", sys.argv[1])
helper = importlib.util.module_from_spec(spec)
spec.loader.exec_module(helper)
compiled = []
stock = dispatcher.compile_cuda


def counted(*arguments, **options):
    if arguments[0].__name__ in ("kernel", "rounded", "debugged"):
        compiled.append(arguments[0].__name__)
    return stock(*arguments, **options)


dispatcher.compile_cuda = counted


@cuda.jit
def kernel(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = helper.changed(x[i])


@cuda.jit
def rounded(x, y):  # bfloat16 to float32: numba-cuda links C++ of its own
    i = cuda.grid(1)
    if i < x.size:
        y[i] = np.float32(x[i])


@cuda.jit(debug=True, opt=False)
def debugged(x, y):
    y[cuda.grid(1)] = x[0]


x, y = torch.arange(4.0, device="cuda"), torch.zeros(4, device="cuda")
for _ in range(2):
    launch(kernel, 1, 32, x, y)
found = y.tolist()
launch(rounded, 1, 32, x.bfloat16(), y)
assert y.tolist() == x.tolist()
y.zero_()
launch(kernel, 1, 32, x[::2], y[1:3])
launch(debugged, 1, 4, x, y)
print(json.dumps({"compiled": compiled, "found": found, "then": y.tolist()}))
