"""The times of a candidate that passed, beside the baselines': `bench`, asked as anybody asks it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from touchstone.conformance.reporting import record

SECONDS = 600.0  # for a candidate


def timed(op: str, file: Path, function: str, device: str, shapes: str, folder: Path) -> list[dict[str, Any]] | str:
    """Rows of a record's `results` (docs/records.md), or why there are none."""
    written = folder / "bench.json"
    kernel = ["--kernel", f"{file}:{function}", "--device", device]
    what = ["--shapes", shapes, "--first", "--json", str(written)]
    command = [sys.executable, "-m", "touchstone", "bench", op, *kernel, *what]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        results: list[dict[str, Any]] = record.read(written)["results"]
        return results
    except subprocess.TimeoutExpired:
        return f"not timed within {SECONDS:g} s"
    except (OSError, ValueError, KeyError):
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return f"not timed: {last}"
