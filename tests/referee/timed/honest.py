"""An honest kernel that owes OWED seconds of work a call. The source of this file is put before that of each attack."""

import os
import time

import torch

TAG = "planted"  # in the name of every file that an attack leaves; each judge of the tests has its own
PORT = 0
OWED = 0.004  # seconds of processor time
_thread_time = time.thread_time


def softmax(x):
    until = _thread_time() + OWED
    while _thread_time() < until:
        pass
    return torch.softmax(x, -1)


def calls():
    """How often this was called in this process."""
    table = globals().setdefault("_counted", [0])
    table[0] += 1
    return table[0]


def judge():
    """The process that judges: this one's parent."""
    return os.getppid()
