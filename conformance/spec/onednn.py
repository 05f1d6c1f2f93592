"""torch's own products on the CPU, in place of oneDNN's."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def without_onednn() -> Iterator[None]:
    """Within: torch's own products, and an LSTM op by op. oneDNN computes all steps of one in one op; and its products
    of bfloat16, on CPUs with AMX, let what lies behind a row of odd length into the result: in (65, 45) @ (45, 257) a
    NaN in the last row makes the row before it NaN."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.enabled is read only once torch.testing is imported
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)
