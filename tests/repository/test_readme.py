"""The README says what is there."""

from touchstone.conformance.cli import main
from touchstone.conformance.discovery import registry


def test_the_support_table_is_the_one_that_list_prints(capsys):
    assert main(["list", "--markdown"]) == 0
    table = capsys.readouterr().out.strip()
    assert len(table.splitlines()) == len(registry.ops()) + 2
    assert table in (registry.ROOT / "README.md").read_text(), "run: python -m touchstone list --markdown"


def test_the_table_of_verdicts_is_the_one_that_report_prints_of_the_kept_records(capsys):
    assert main(["report", "--markdown"]) == 0
    table = capsys.readouterr().out.partition("\n\n")[0].strip()
    assert len(table.splitlines()) == len(registry.ops()) + 2
    assert table in (registry.ROOT / "README.md").read_text(), "run: python -m touchstone report --markdown"
