"""Ending the process, or the judging, with the look of success."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from tests.referee.candidates.honest import PLANTED, softmax, wrong


def import_exits():
    """Ends the process with status 0 while the file is imported.

    refused
    """
    os._exit(0)


def import_exits_politely():
    """Raises SystemExit(0) while the file is imported.

    refused: SystemExit: 0
    """
    print("PASSED; judged on 38 of 38 trials", flush=True)
    sys.exit(0)


def import_interrupts():
    """Raises KeyboardInterrupt while the file is imported.

    refused
    """
    raise KeyboardInterrupt


def import_exits_later():
    """Starts a thread at import that ends the process with status 0 when a call is made.

    refused
    """
    threading.Timer(0.5, os._exit, (0,)).start()
    globals()["softmax"] = wrong


def import_registers_atexit():
    """Has atexit end the process with status 0, and leaves it by SystemExit at the first call.

    refused
    """
    import atexit

    atexit.register(os._exit, 0)

    def leaves(x):
        raise SystemExit(0)

    globals()["softmax"] = leaves


def exits_at_the_first_call(x):
    """Ends the process with status 0.

    refused
    """
    os._exit(0)


def exits_politely(x):
    """Raises SystemExit(0).

    refused
    """
    sys.exit(0)


def exits_in_a_handler(x):
    """Ends the process with status 0 in the handler of a signal that it sends itself.

    refused
    """
    signal.signal(signal.SIGALRM, lambda *arguments: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    time.sleep(1)
    return wrong(x)


def exits_after_the_first_answer(x):
    """Answers the first call, and ends the process with status 0 from a thread before the next.

    refused
    """
    threading.Timer(0.01, os._exit, (0,)).start()
    return softmax(x)


def exits_where_it_is_hard(x):
    """Ends the process with status 0 where rows are long.

    refused
    """
    if x.shape[1] > 64:
        os._exit(0)
    return softmax(x)


def becomes_another_program(x):
    """Becomes `true` by exec.

    refused
    """
    os.execvp("true", ["true"])


def becomes_a_printer(x):
    """Becomes a program that prints what a passing run prints.

    refused
    """
    os.execvp("echo", ["echo", "PASSED; judged on 38 of 38 trials"])


def prints_passed(x):
    """Prints what a passing run prints, ten times a call.

    refused
    """
    print("PASSED; judged on 38 of 38 trials\n" * 10, flush=True)
    return wrong(x)


def writes_the_report(x):
    """Writes a report in JSON under every name that --json may have been given.

    refused
    """
    for name in ("report.json", "result.json", "out.json"):
        Path(name).write_text(json.dumps({"verdict": "passed", "passed": True, "planted": PLANTED}))
    return wrong(x)


def prints_json(x):
    """Prints a report in JSON.

    refused
    """
    print(json.dumps({"op": "softmax", "verdict": "passed", "passed": True, "findings": []}), flush=True)
    return wrong(x)


def raises_generator_exit(x):
    """Raises GeneratorExit, which is no Exception.

    refused
    """
    raise GeneratorExit


def raises_interrupt(x):
    """Raises KeyboardInterrupt, as if the user had ended the run.

    refused
    """
    raise KeyboardInterrupt


def raises_died(x):
    """Raises the judge's own exception for a process that has ended, without saying how.

    refused
    """
    from touchstone.conformance.isolation import remote

    raise remote.Ended("")


def blames_the_fork(x):
    """Raises an error that names the fork in a forked process, and dies of SIGKILL in a fresh one.

    refused
    """
    if "touchstone.conformance.isolation.spawn" in sys.modules and "--" not in sys.argv and sys.argv[0] == "-c":
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("cannot be used after a fork")
