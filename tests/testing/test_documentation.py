"""docs/testing.md lists every check in its own words."""

from testing import contract_tables


def test_the_page_has_every_check_of_every_contract_as_its_docstring_says() -> None:
    text = contract_tables.PAGE.read_text(encoding="utf-8")
    assert text == contract_tables.whole(text), "run python tests/testing/contract_tables.py"


def test_no_check_is_without_a_sentence() -> None:
    tables = contract_tables.tables()
    assert tables.count("\n| ") > 90
    assert "|  |" not in tables
