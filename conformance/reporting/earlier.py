"""Records that were written in earlier words and without the kinds of trials: brought to the present form when read.

A target (`triton@cpu`) was a lane, a variant a rung, a property a law, a baseline a peer, a known-good kernel a
control.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from touchstone.conformance.judging.trials import Kind

KEYS = {
    "lane": "target",
    "lanes": "targets",
    "rung": "variant",
    "rungs": "variants",
    "law": "property",
    "laws": "properties",
    "peers": "baselines",
    "controls": "known-good",
    "control checks": "known-good checks",
    "faults": "mutants",
}
KINDS = {"rung": "variant", "peer": "baseline", "control": "known-good"}
INDEPENDENT = re.compile(r"\b(rows|samples)([ _])apart\b")
_NAMES = json.loads(Path(__file__).with_name("earlier.json").read_text())
VARIANTS = {tuple(key.split()): now for key, now in _NAMES["variants"].items()}  # (backend, op, name then): name now
CEILINGS = _NAMES["ceilings"]
NOT_TOUCHED = ("command", "versions", "machine", "source", "samples_ms")


def converted(record: Any) -> Any:
    """`record`, as JSON has it, in the present words; one that is in them already is returned as it is."""
    return _any(record, "")


def variant(backend: str, op: str, name: str) -> str:
    """What a variant is called now."""
    plain, again, rest = name.partition(" (again)")
    return VARIANTS.get((backend, op, plain), plain) + again + rest


def _any(value: Any, key: str) -> Any:
    if isinstance(value, Mapping):
        return _object(value)
    if isinstance(value, list):
        return [_any(each, key) for each in value]
    return _text(value, key) if isinstance(value, str) else value


def _object(value: Mapping[str, Any]) -> dict[str, Any]:
    made = {
        KEYS.get(name, _text(name, "")): each if name in NOT_TOUCHED else _any(each, name)
        for name, each in value.items()
    }
    if isinstance(made.get("ceilings"), Mapping):
        made["ceilings"] = {CEILINGS.get(name, name): each for name, each in value["ceilings"].items()}
    source = made.get("source")
    where = str(made.get("target") or made.get("backend") or "").partition("@")[0]
    for field in ("variant", "name"):
        if isinstance(made.get(field), str) and isinstance(made.get("op"), str):
            made[field] = variant(where, made["op"], made[field])
    if isinstance(source, Mapping) and "variant" in source and isinstance(made.get("op"), str):
        made["source"] = {**source, "variant": variant(str(source.get("backend")), made["op"], source["variant"])}
    if "kind" not in made and isinstance(made.get("trial"), str):
        made["kind"] = kind(made["trial"]).value
    return made


def kind(trial: str) -> Kind:
    """What a trial of an earlier record is, by its id: those of other kinds than cases begin with their kind."""
    first = trial.partition("-")[0]
    return Kind(first) if first in set(Kind) else Kind.CASE


def _text(value: str, key: str) -> str:
    if key == "kind":
        return KINDS.get(value, value)
    if value.startswith("peer@"):
        return "baseline" + value.removeprefix("peer")
    if key == "columns":
        return {"lane": "target", "rung": "variant", "controls": "known-good"}.get(value, value)
    if value == "controls accused":
        return "known-good rejected"
    value = re.sub(r"^law(?=[ :-])", "property", re.sub(r"^huge-", "int64_index-", value))
    left_out = re.match(r"(\w+)@\w+ (\w+) (\w+)$", value)
    if left_out:
        return value[: left_out.start(3)] + variant(left_out[1], left_out[2], left_out[3])
    return INDEPENDENT.sub(r"\1\2are\2independent", value)
