"""pytest's options --backend, --op, --device and the rest, and what judges kernels as pytest items.

In a clone the root conftest.py loads this; elsewhere `pytest -p touchstone.pytest --pyargs
touchstone.conformance.suite` does. Installing Touchstone adds nothing to pytest by itself.
"""

pytest_plugins = ["touchstone.conformance.suite.plugin", "touchstone.conformance.suite.benchmarks"]
