"""docs/serving.md has the fields of a request as the table of settings has them."""

from robustinfer.settings import MODE, SETTINGS

from .conftest import ROOT

PAGE = (ROOT / "docs" / "serving.md").read_text()


def test_every_setting_is_documented_with_its_limits_and_meaning() -> None:
    """If this fails, run `make docs`."""
    table = PAGE.partition("<!-- settings -->")[2].partition("<!-- /settings -->")[0]
    rows = [row.split(" | ") for row in table.strip().splitlines()[2:]]
    assert [row[0].strip("| `") for row in rows] == ["mode", *SETTINGS]
    for row, setting in zip(rows, (MODE, *SETTINGS.values()), strict=True):
        assert row[1] == setting.expected
        assert row[2].startswith(setting.help)
