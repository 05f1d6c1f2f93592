"""Programs and data that the tests run or compile."""

from pathlib import Path

PROGRAMS = Path(__file__).parent
