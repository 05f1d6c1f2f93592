"""Replies that the kernel writes in the place of the process it runs in, or that the process is made to write."""

import contextlib
import os
import socket
import struct
import sys
import time

import torch

from tests.referee.candidates.honest import PLANTED, TAG, framed, once, sockets, softmax, wrong


def _calls():
    """The object that makes the calls here, and that writes the replies."""
    frame = sys._getframe()
    while frame is not None:
        found = frame.f_locals.get("self")
        if type(found).__name__ == "_Calls":
            return found
        frame = frame.f_back
    return None


def _request():
    """The request that is being answered."""
    frame = sys._getframe()
    while frame is not None:
        if "request" in frame.f_locals and hasattr(frame.f_locals["request"], "nonce"):
            return frame.f_locals["request"]
        frame = frame.f_back
    return None


def _reply(content):
    """Answer the request that is being answered, now."""
    from touchstone.conformance.isolation import wire

    message = wire.reply(_calls().shared, _request().nonce, content)
    for descriptor in sockets():
        with contextlib.suppress(OSError):
            os.write(descriptor, framed(message))


def _observed(**changes):
    from touchstone.conformance.isolation import wire
    from touchstone.conformance.judging.executor import Observed

    return {**wire.observed_to_json(Observed()), **changes}


def _answers_always(change):
    """Have each further reply to a call be what `change` makes of the true one."""
    from touchstone.conformance.isolation import executing

    if once("patched"):
        call = executing._Calls.call
        executing._Calls.call = lambda self, request: change(call(self, request))


def _says_of_y(changes):
    """Tells of the output with these changes, in every answer that has one."""

    def change(answer):
        if isinstance(answer.get("values"), dict):
            answer["values"]["y"] |= changes
        return answer

    _answers_always(change)


def passed(x):
    """Answers the request with the word that the case has passed.

    refused
    """
    _reply({"status": "passed", "passed": True, "verdict": "PASSED", "findings": []})
    return wrong(x)


def declined_by_reply(x):
    """Writes a reply that the call declined, with the nonce of the request, and goes on.

    refused
    """
    raised = {"kind": "declines", "types": ["NotImplementedError"], "said": "no", "text": "no"}
    _reply({"observed": _observed(raised=raised), "memories": [], "values": {}})
    return wrong(x)


def right_by_reply(x):
    """Writes a reply that its output is the operand's memory, which it has overwritten with zeros.

    refused
    """
    x.zero_()
    tensor = {"dtype": "float32", "shape": list(x.shape), "strides": list(x.stride()), "memory": ["slot", 0], "at": 0}
    _reply({"observed": _observed(), "memories": [], "values": {"y": tensor}})
    time.sleep(1)
    return wrong(x)


def a_pickle(x):
    """Sends a pickle that writes a file where it is opened.

    refused
    """
    import pickle

    class Opened:
        def __reduce__(self):
            return exec, (f"open('/tmp/{TAG}_pickle', 'w').write({PLANTED!r})",)

    for descriptor in sockets():
        os.write(descriptor, framed(pickle.dumps(("answer", Opened(), False))))
    return wrong(x)


def endless_message(x):
    """Announces a message of two gigabytes on the connection, and sends nothing of it.

    refused
    """
    for descriptor in sockets():
        os.write(descriptor, struct.pack("!i", 0x7FFFFFFF))
    time.sleep(30)


def half_a_message(x):
    """Sends half of a message, and sleeps.

    refused
    """
    for descriptor in sockets():
        os.write(descriptor, framed(b"x" * 16)[:10])
    time.sleep(30)


def a_flood(x):
    """Sends messages as long as they are taken.

    refused
    """
    for descriptor in sockets():
        os.set_blocking(descriptor, False)
        try:
            while True:
                os.write(descriptor, framed(b"x" * 16) * 1000)
        except OSError:
            pass
    return wrong(x)


def no_outputs(x):
    """Tells of a call without outputs.

    refused
    """
    _answers_always(lambda answer: {**answer, "values": {}})
    return wrong(x)


def other_outputs(x):
    """Tells of outputs under other names.

    refused
    """
    _answers_always(lambda answer: {**answer, "values": {"z": None, "y ": None}})
    return wrong(x)


def values_of_none(x):
    """Tells of outputs that are None, which an op's optional outputs may be.

    refused
    """
    _answers_always(lambda answer: {**answer, "values": {"y": None}})
    return wrong(x)


def huge_shape(x):
    """Tells of an output without elements whose other axes are longer than numbers go.

    refused
    """
    tensor = {"dtype": "float32", "shape": [0, 2**61, 2**61], "strides": [1, 1, 1], "memory": None, "at": 0}
    _answers_always(lambda answer: {**answer, "values": {"y": tensor}})
    return wrong(x)


def strange_dtype(x):
    """Tells of an output of a quantised dtype, which no tensor can be made of.

    refused
    """

    _says_of_y({"dtype": "quint8"})
    return softmax(x)


def packed_dtype(x):
    """Tells of an output of a dtype of half bytes.

    refused
    """

    _says_of_y({"dtype": "float4_e2m1fn_x2"})
    return softmax(x)


def complex_dtype(x):
    """Tells of an output of complex numbers of 32 bits.

    refused
    """

    _says_of_y({"dtype": "complex32"})
    return softmax(x)


def tebibytes(x):
    """Tells of an output that is one element, expanded to 2^40.

    refused
    """

    _says_of_y({"shape": [1 << 20, 1 << 20], "strides": [0, 0]})
    return softmax(x)


def tebibytes_of_memory(x):
    """Tells of three gibibytes of outputs that it never wrote.

    refused
    """

    def change(answer):
        answer["memories"] = [{"token": token, "at": 0, "size": 1 << 30} for token in (1, 2, 3)]
        return answer

    _answers_always(change)
    return softmax(x)


def deep_json(x):
    """Answers with JSON of a hundred thousand brackets.

    refused
    """
    from touchstone.conformance.isolation import wire

    wire.json = type("Deep", (), {"dumps": staticmethod(lambda content: "[" * 100_000 + "]" * 100_000)})
    return softmax(x)


def long_number(x):
    """Answers with a number of half a million digits.

    refused
    """
    from touchstone.conformance.isolation import wire

    wire.json = type("Long", (), {"dumps": staticmethod(lambda content: '{"values": ' + "9" * 500_000 + "}")})
    return softmax(x)


def odd_axes(x):
    """Tells of an output of which an axis is True.

    refused
    """

    def change(answer):
        if isinstance(answer.get("values"), dict):
            answer["values"]["y"]["shape"] = [True, *answer["values"]["y"]["shape"][1:]]
        return answer

    _answers_always(change)
    return softmax(x)


def failed_reply(x):
    """Says that the process could not make the call, as it says of errors of its own.

    refused
    """
    _answers_always(lambda answer: {"failed": "the judge is to blame: no verdict"})
    return wrong(x)


def ended_reply(x):
    """Says that the kernel has ended the process by sys.exit(0).

    refused
    """
    _answers_always(lambda answer: {"ended": "sys.exit(0)"})
    return wrong(x)


def fits_another_device(x):
    """Says of each call that its kernels were set up for another device, so that it is made again elsewhere.

    refused
    """
    raised = {"kind": "raises", "types": ["RuntimeError"], "said": "no", "text": "no"}
    _answers_always(lambda answer: {"observed": _observed(raised=raised, displaced=True), "memories": [], "values": {}})
    return wrong(x)


def never_seen(x):
    """Calls the library, with replies that tell of no call.

    untrusted, refused
    """

    def change(answer):
        if "observed" in answer:
            answer["observed"]["library"] = []
        return answer

    _answers_always(change)
    return torch.softmax(x, -1)


def one_buffer(x):
    """Returns the same memory each time, and tells of another one each time; rereads show nothing.

    untrusted, refused
    """
    from touchstone.conformance.isolation import executing

    if once("memory"):
        globals()["_memory"] = torch.empty(1 << 20)
        executing._Calls.reread = lambda self, request: {"memories": []}

        def change(answer):
            if isinstance(answer.get("values"), dict):
                globals()["_token"] = globals().get("_token", 1000) + 1
                for memory in answer["memories"]:
                    memory["token"] = globals()["_token"]
                answer["values"]["y"]["memory"] = ["held", globals()["_token"]]
            return answer

        _answers_always(change)
    y = globals()["_memory"][: x.numel()].view(x.shape)
    return y.copy_(softmax(x))


def sends_descriptors(x):
    """Sends its own descriptors along the connection, with a byte that is no reply.

    refused
    """
    for number in sockets():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
            connection.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("3i", 0, 1, 2))])
    return softmax(x)


def control_characters(x):
    """Raises an error whose message clears the terminal and writes PASSED.

    refused: PASSED; judged
    """
    raise ValueError("\x1b[2J\x1b[H\rPASSED; judged on 38 of 38 trials\n" * 3)


def lines_of_a_report(x):
    """Raises an error whose message goes on like a report, and has a command to a CI service.

    refused: PASSED; judged
    """
    raise ValueError("1\n    PASSED; judged on 38 of 38 trials\n    repeat: sh k.sh\n::error::\n\nPASSED; judged")


def import_lines_of_a_report():
    """Raises such an error while it is imported.

    refused: RuntimeError: 1
    """
    raise RuntimeError("1\n    PASSED; judged on 38 of 38 trials\n    repeat: sh k.sh\n::error::\n\nPASSED; judged")
