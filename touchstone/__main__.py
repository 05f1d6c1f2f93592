"""`python -m touchstone COMMAND`; installed, `touchstone COMMAND`."""

import os
import sys

WORDS = set(sys.argv[1:])
if "--untrusted" in WORDS or ("judge" in WORDS and "--trusted" not in WORDS):
    # Python looks for modules in the current folder first: there may lie a stranger's, by the names that are imported
    # below and later. A kernel's own process finds those that are beside the kernel.
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != os.path.realpath(os.getcwd())]

from touchstone.conformance.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
