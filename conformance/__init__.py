"""The judge: says which kernels are right, and how far each is from its error budget.

from conformance import check
report = check("softmax", my_softmax, device="cpu", level="quick")
print(report)
"""

from pathlib import Path

import backends
import reference

_root = Path(__file__).resolve().parent.parent
for _sibling in (backends, reference):
    _found = Path(_sibling.__file__ or next(iter(_sibling.__path__))).resolve()
    if _root not in _found.parents:
        raise ImportError(
            f"{_sibling.__name__!r} is imported from {_found}, not from {_root}: another folder of that name comes first on "
            f"the path. Put {_root} first in PYTHONPATH, or run from there"
        )

from conformance.check import check  # noqa: E402
from conformance.opfile import load_op  # noqa: E402
from conformance.report import Report  # noqa: E402

__all__ = ["Report", "check", "load_op"]
