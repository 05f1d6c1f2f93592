"""One self-contained HTML page from the records that `--json` writes: `python -m touchstone report`."""
