"""pytest's options --backend, --op, --device and the rest, and what judges kernels as pytest items.

In a clone the root conftest.py loads this; elsewhere `pytest -p touchstone.pytest --kernel FILE.py:FUNCTION --op OP`
does, which collects the suite. Installing Touchstone adds nothing to pytest by itself.
"""

pytest_plugins = ["touchstone.conformance.suite.plugin", "touchstone.conformance.suite.benchmarks"]
