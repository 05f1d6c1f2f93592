"""Answers to the judge that the kernel writes itself."""

import os
import struct
import sys
from pathlib import Path

from tests.referee.timed.honest import softmax


def _sockets():
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found.append(int(name))
        except OSError:
            pass
    return found


def _send(message):
    for each in _sockets():
        os.write(each, struct.pack("!i", len(message)) + message)


def garbage(x):
    """Bytes that are no answer.

    refused
    """
    _send(b"x" * 16)
    return softmax(x)


def endless(x):
    """The beginning of an answer that does not end.

    refused
    """
    for each in _sockets():
        os.write(each, struct.pack("!i", 16) + b"x")
    return softmax(x)


def huge(x):
    """An answer of two gigabytes.

    refused
    """
    for each in _sockets():
        os.write(each, struct.pack("!i", 2**31 - 1))
    return softmax(x)


def early(x):
    """The announcement of an answer, with the nonce that it finds in its callers, before the work.

    refused
    """
    frame = sys._getframe()
    while frame is not None:
        if "begin" in frame.f_locals and isinstance(frame.f_locals["begin"], bytes):
            _send(frame.f_locals["begin"] + struct.pack("<Q", 2))
            break
        frame = frame.f_back
    return softmax(x)


def twice(x):
    """A process that goes on beside this one, and answers as well.

    refused
    """
    os.fork()
    return softmax(x)


def every_record(x):
    """Writes a better result into every file of JSON that it finds.

    contained
    """
    for path in Path.cwd().glob("*.json*"):
        path.write_text(path.read_text().replace('"ms": ', '"ms": 0.0'))
    return softmax(x)
