"""pytest's options and the parametrisation of the conformance test live in conformance/plugin.py."""

pytest_plugins = ["conformance.plugin"]
