"""The side of what is timed: a process that makes the calls which the judge asks for, while the judge holds the clock.

A request prepares calls, each on operands of its own in the shared memory; a second message lets them begin, and tells
their seeds, where they have one: nothing may follow from it before the clock runs. The answer says where the outputs of
each call lie, or what went wrong. The judge stops this process and reads them there: what is told here of hooks, types
and shapes can only add findings.
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch

from touchstone.conformance.bench.contestant import bound
from touchstone.conformance.bench.hooks import Hooks
from touchstone.conformance.bench.inputs import SEED
from touchstone.conformance.discovery.subject import Subject
from touchstone.conformance.isolation import executing, processes, wire
from touchstone.conformance.isolation.sandbox import kernel as linux
from touchstone.conformance.isolation.shared import Shared
from touchstone.conformance.judging import instruments as probe
from touchstone.conformance.judging.executor import ending_text, error_text, reached
from touchstone.conformance.spec import outputs as output_rules
from touchstone.conformance.spec.baselines import Baseline
from touchstone.conformance.spec.contract import Case, Contract
from touchstone.conformance.spec.returned import said

NOTHING = "nothing"  # the name of what returns outputs that are there already
LATER = -1 << 70  # in the place of a seed that is told when the calls begin
WORD = 8  # bytes of a number in the message that lets them begin
Calls = Callable[[Mapping[str, Any]], Callable[[], Any]]  # arguments -> a call that reads their memory


@dataclass(frozen=True)
class Prepare:
    """A request for calls of `name`, one on each of `arguments`, with TensorAt in the place of tensors, and perhaps
    LATER in that of the seed. `alone`: from here on the process is to start no other."""

    nonce: int
    name: str
    slots: tuple[wire.Slot, ...]
    arguments: tuple[Mapping[str, Any], ...]
    alone: bool = False


def serve_kernel(connection: Connection, shared: Shared, subject: Subject, contract: Contract, case: Case) -> None:
    """Answer requests for calls of `subject`, until the judge hangs up."""
    found = executing.introduced(connection, shared, lambda: executing.opened(subject))
    if found is None:
        return
    backends = reached(found.fn, found.device)
    served = _Served(connection, shared, contract, case, found.outputs)
    served.emulated = bool(backends) and found.device == "cpu"
    with torch.no_grad(), found.calling():
        served.until_the_end(lambda name: lambda arguments: bound(contract, found, arguments))


def serve_baselines(
    connection: Connection, shared: Shared, baselines: Sequence[Baseline], contract: Contract, case: Case
) -> None:
    """Answer requests for calls of baselines and of `NOTHING`, until the judge hangs up."""
    connection.send_bytes(wire.reply(shared, 0, {"ready": True}))
    makers: dict[str, Calls] = {baseline.name: baseline.make for baseline in baselines}
    makers[NOTHING] = lambda arguments: _ready_made(contract, case)
    with torch.no_grad():
        _Served(connection, shared, contract, case, None).until_the_end(makers.__getitem__)


def _ready_made(contract: Contract, case: Case) -> Callable[[], Any]:
    made = {
        name: torch.empty(contract.output_shape(name, case), dtype=contract.output_dtype(name, case))
        for name in contract.outputs
    }
    return lambda: made


class _Call:
    """A call made ready, and told its seed where that came later."""

    def __init__(self, maker: Calls, arguments: dict[str, Any]) -> None:
        self._arguments, self.make = arguments, maker(arguments)

    def seeded(self, seed: int) -> Callable[[], Any]:
        """The call with this seed."""
        made = self.make
        if type(made) is not partial:  # it reads its arguments when it is made
            self._arguments[SEED] = seed
            return made
        args = (seed if _is_later(each) else each for each in made.args)
        named = {name: seed if _is_later(each) else each for name, each in made.keywords.items()}
        return partial(made.func, *args, **named)


def _with_seeds(calls: Sequence[_Call], seeds: Sequence[int]) -> Iterator[Callable[[], Any]]:
    return map(_Call.seeded, calls, seeds) if seeds else (call.make for call in calls)


def _is_later(value: Any) -> bool:
    return type(value) is int and value == LATER


class _Served:
    """Requests and their answers."""

    def __init__(
        self, connection: Connection, shared: Shared, contract: Contract, case: Case, outputs: Sequence[str] | None
    ) -> None:
        self.connection, self.shared, self.emulated = connection, shared, False
        self.contract, self.case, self.outputs = contract, case, outputs
        self._alone = False
        self._bound: dict[str, tuple[Any, list[_Call]]] = {}  # by name: for which operands, and the calls

    def until_the_end(self, maker: Callable[[str], Calls]) -> None:
        hooks, state = Hooks(), probe.State(random=False)
        returned: list[Any] = []  # by the last calls; it stays until the judge has read it
        while True:
            try:
                request = processes.request(self.connection)
            except (EOFError, OSError):
                return
            found = [*hooks.changes(), *state.changes()[0]]
            answer: dict[str, Any] = {"changed": found, "wrong": self._wrong(returned), "emulated": self.emulated}
            returned.clear()
            calls: list[_Call] = []
            if request.alone and not self._alone:
                linux.stay_alone()
                self._alone = True
            try:
                calls = self._calls(request, maker)
            except Exception as error:
                answer |= {"raised": error_text(error)}
            processes.flush()
            self.connection.send_bytes(wire.reply(self.shared, request.nonce, answer))
            if not calls:
                continue
            try:
                begin = self.connection.recv_bytes()
            except (EOFError, OSError):
                return
            nonce, *seeds = (int.from_bytes(begin[at : at + WORD], "little") for at in range(0, len(begin), WORD))
            answer = self._made(calls, seeds, returned)
            self.connection.send_bytes(wire.reply(self.shared, nonce, answer))

    def _calls(self, request: Prepare, maker: Callable[[str], Calls]) -> list[_Call]:
        """The calls asked for; those of the last request for them, where it was about the same memory."""
        asked = request.slots, request.arguments
        if not request.arguments:
            return []
        if self._bound.get(request.name, (None, None))[0] != asked:
            self._bound[request.name] = asked, [_Call(maker(request.name), each) for each in self._arguments(request)]
        return self._bound[request.name][1]

    def _arguments(self, request: Prepare) -> list[dict[str, Any]]:
        buffers = [self.shared.bytes(slot.offset, slot.size) for slot in request.slots]
        return [
            {n: v.over(buffers[v.slot]) if isinstance(v, wire.TensorAt) else v for n, v in each.items()}
            for each in request.arguments
        ]

    def _made(self, calls: Sequence[_Call], seeds: Sequence[int], returned: list[Any]) -> dict[str, Any]:
        """Make the calls, all of them, then say where their outputs are: this is what the clock measures."""
        gc.disable()
        try:
            for call in _with_seeds(calls, seeds):
                returned.append(call())
            return {"outputs": [self._addresses(each) for each in returned]}
        except NotImplementedError as declined:
            return {"declined": said(declined)}
        except Exception as error:
            return {"raised": error_text(error)}
        except BaseException as error:
            return {"ended": ending_text(error)}
        finally:
            gc.enable()

    def _addresses(self, returned: Any) -> list[int]:
        """Where the outputs are, in the contract's order; 0 for what is no tensor."""
        if type(returned) is dict:  # a baseline's
            returned = [returned.get(name) for name in self.contract.outputs]
        values = returned if type(returned) in (tuple, list) else (returned,)
        return [value.data_ptr() if type(value) is torch.Tensor else 0 for value in values]

    def _wrong(self, returned: Sequence[Any]) -> str | None:
        """What is wrong with the last outputs beside their values; None where nothing is, or they are a baseline's."""
        for each in returned:
            values = {} if type(each) is dict else self.contract.by_name(each, self.outputs)
            if isinstance(values, str):
                return values
            for name, value in values.items():
                if value is not None and (
                    found := output_rules.problems(self.contract, self.case, name, value, "cpu", {})
                ):
                    return found[0].message
        return None
