"""`python -m touchstone COMMAND`; installed, `touchstone COMMAND`."""

import contextlib
import os
import sys

WORDS = set(sys.argv[1:])
if "--untrusted" in WORDS or ("judge" in WORDS and "--trusted" not in WORDS):
    # Python looks for modules in the current folder first: there may lie a stranger's, by the names that are imported
    # below and later. A kernel's own process finds those that are beside the kernel.
    with contextlib.suppress(OSError):  # where the folder was removed, nothing is found in it
        HERE = os.path.realpath(os.getcwd())
        sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != HERE]

from touchstone.conformance.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
