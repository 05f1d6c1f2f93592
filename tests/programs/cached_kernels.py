"""Right kernels in CUDA C and Numba CUDA, judged on a few cases on the CPU; prints verdict and reasons as JSON.

python cached_kernels.py cupy [numba ...]
"""

import json
import sys

from touchstone.conformance.check import check
from touchstone.conformance.discovery import registry

SMALL = {(3, 33), (1, 1)}


def main() -> None:
    for language in sys.argv[1:]:
        registry.backend(language).prepare("cpu")
        fn = registry.variants(language, "softmax")["warp"]
        few = lambda case: tuple(case.size.values()) in SMALL  # noqa: E731
        report = check("softmax", fn, device="cpu", level="quick", where=few, dtypes=["float32"])
        reasons = sorted({reason for reason in (report.lacking, *(o.reason for o in report.outcomes)) if reason})
        findings = [f"{finding.check}: {finding.message}" for finding in report.findings]
        print(json.dumps({"verdict": report.verdict, "reasons": reasons, "findings": findings}))


if __name__ == "__main__":
    main()
