"""Compile conformance makes no item where there is nothing to compile."""


def pytest_collection_modifyitems(config, items):
    """Where there is nothing to compile, there is no item that says so."""
    empty = [
        item for item in items if getattr(item, "callspec", None) and item.callspec.params.get("compiled", "") is None
    ]
    if empty:
        items[:] = [item for item in items if item not in empty]
        config.hook.pytest_deselected(items=empty)
