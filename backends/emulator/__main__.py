"""`python -m touchstone.backends.emulator`: the command `emulate` where the judge is not at hand."""

import sys

from touchstone.backends.emulator.command import main

if __name__ == "__main__":
    sys.exit(main())
