"""The peers of an op that can run here, and the bench declaration of its contract's file."""

import importlib.util
import sys
from collections.abc import Sequence

from touchstone.conformance.discovery import registry
from touchstone.conformance.spec.baselines import Bench, Peer

NOTHING = Bench()


def declared(op: str) -> Bench:
    """The `bench` of the contract's file; what a file without one gets: no peers."""
    registry.contract(op)
    return getattr(sys.modules.get(f"touchstone.conformance.contracts.{op}"), "bench", NOTHING)


def runnable(peers: Sequence[Peer], device: str, dtype: str, compiling: bool) -> tuple[list[Peer], dict[str, str]]:
    """The peers that can run on `device` in `dtype`, and why the others cannot."""
    found, left = [], {}
    for peer in peers:
        if device not in peer.devices:
            left[peer.name] = f"does not run on {device}"
        elif peer.dtypes is not None and dtype not in peer.dtypes:
            left[peer.name] = f"does not take {dtype}"
        elif peer.needs is not None and importlib.util.find_spec(peer.needs) is None:
            left[peer.name] = f"{peer.needs} is not installed"
        elif peer.compiles and not compiling:
            left[peer.name] = "compiles for seconds; --peers asks for it"
        else:
            found.append(peer)
    return found, left
