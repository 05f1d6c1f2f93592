"""A plugin for pytest: each call of a variant on a GPU comes after others with operands that lie alike, elsewhere and
with NaN in the place of numbers since, so that what is judged is a call that is replayed.

    pytest -p tests.programs.replaying touchstone/conformance/suite/test_kernels.py --device=cuda --quick

Each process writes at its end, as JSON, how many of the calls were replayed, and why others were not, by variant: to
standard error, or into the folder that REPLAYED names.
"""

import atexit
import json
import os
import sys
from collections import Counter, defaultdict
from functools import wraps

import torch
from torch.utils._python_dispatch import _disable_current_modes

from touchstone.backends import replay

seen = defaultdict(Counter)  # by variant: what became of its calls
_replayed, _run = replay.replayed, replay._Replay.run
_names, _primed = [], []  # the variants that are called, and whose calls are primed


def elsewhere(tensor):
    """A copy that lies alike: the same strides, the same address modulo ALIGNMENT."""
    if not isinstance(tensor, torch.Tensor) or not tensor.is_cuda or not tensor.numel():
        return tensor
    begin, end = replay._range(tensor)
    if end - begin > 1 << 28:
        return None
    room = torch.empty(end - begin + 2 * replay.ALIGNMENT, dtype=torch.uint8, device=tensor.device)
    room = room[(begin - room.data_ptr()) % replay.ALIGNMENT :][: end - begin]
    made = room.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
    whole = tensor.as_strided(((end - begin) // tensor.element_size(),), (1,), tensor.storage_offset())
    room.view(tensor.dtype).copy_(whole)
    return made


def replayed(launcher):
    called = _replayed(launcher)
    name = f"{launcher.__module__.removeprefix('touchstone.backends.')}:{launcher.__name__}"

    @wraps(launcher)
    def call(*args, **kwargs):
        if replay.is_recording():  # another variant, which calls this one
            return called(*args, **kwargs)
        with _disable_current_modes():  # the judge's own, which would keep calls from being replayed
            return unwatched(*args, **kwargs)

    def unwatched(*args, **kwargs):
        if replay._key(args, kwargs, [], []) is None:
            return called(*args, **kwargs)
        others = [elsewhere(each) for each in args], {key: elsewhere(each) for key, each in kwargs.items()}
        flat = [*others[0], *others[1].values()]
        if all((a is None) == (b is None) for a, b in zip(flat, [*args, *kwargs.values()], strict=True)):
            _primed.append(name)
            for _ in range(replay.TRIES + 1):
                called(*others[0], **others[1])
            _primed.pop()
            for each in flat:
                if isinstance(each, torch.Tensor) and each.is_floating_point():
                    each.fill_(torch.nan)
        seen[name]["calls"] += 1
        _names.append(name)
        try:
            return called(*args, **kwargs)
        finally:
            _names.pop()

    return call


def run(self, *args):
    if _names:
        seen[_names[-1]]["replayed"] += 1
    return _run(self, *args)


def replay_of(self, result, original=replay.Tape.replay):
    made = original(self, result)
    if made is None:
        why = "no launch" if self.reason is None else self.reason
        seen["recordings"][why] += 1
        seen[(_primed or _names)[-1]]["not recorded: " + why] += 1
    return made


@atexit.register
def tell():
    if seen:
        text = json.dumps(seen, indent=1)
        if folder := os.environ.get("REPLAYED"):
            with open(f"{folder}/{os.getpid()}.json", "w") as file:
                file.write(text)
        else:
            print(text, file=sys.stderr)


replay.replayed, replay._Replay.run, replay.Tape.replay = replayed, run, replay_of
