"""Candidates as tests write them: kernels in plain torch, judged on a few small cases."""

import json
from importlib.util import find_spec
from pathlib import Path

from touchstone.conformance.reporting.record import SCHEMA

NARROW = {"sizes": {"cols": 33}, "dtypes": ["float32"]}
RIGHT = "import torch\n\n\ndef softmax(x):\n    return torch.softmax(x.float(), -1).to(x.dtype).contiguous()\n"
WRONG = RIGHT.replace("-1", "0")


def numbered(source: str, number: int) -> str:
    """The same with a comment of its own: no two are identical."""
    return f"# candidate {number}\n{source}"


def line(source: str, **fields) -> dict:
    """Of softmax, narrowed."""
    return {"op": "softmax", "source": source, **NARROW, **fields}


def listing(folder: Path, lines: list, name: str = "candidates.jsonl") -> Path:
    """A file of JSON Lines; a text is a line as it is."""
    path = folder / name
    path.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in lines))
    return path


def valid(record: dict) -> None:
    """Fails unless a record satisfies the schema, where jsonschema is there to say so."""
    if find_spec("jsonschema"):
        import jsonschema

        schema = json.loads(SCHEMA.read_text())
        jsonschema.validate(record, schema, format_checker=jsonschema.FormatChecker())
