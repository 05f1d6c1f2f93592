"""`python -m touchstone COMMAND`; installed, `touchstone COMMAND`."""

import sys

from touchstone.conformance.cli import main

if __name__ == "__main__":
    sys.exit(main())
