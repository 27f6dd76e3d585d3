"""`robust demo` and `robust serve --page`: what they check before a server starts, and what they announce."""

import webbrowser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from robust.serve import AsgiLauncher, ServeOptions
from typer.testing import CliRunner

from robustinfer.cli import demo, quickstart
from robustinfer.cli.main import app
from robustinfer.cli.serve import page_address
from robustinfer.errors import ArgumentError


def test_torchserve_has_no_page() -> None:
    with pytest.raises(ArgumentError, match="use --engine asgi"):
        ServeOptions.read(None, {"page": True})
    assert ServeOptions.read(None, {"page": True, "engine": "asgi"}).page


@pytest.mark.parametrize(("ours", "end"), [(True, "/page/#token=secret"), (False, "/page/")])
def test_only_a_fresh_token_is_part_of_the_address(ours: bool, end: str) -> None:
    launcher: Any = SimpleNamespace(
        addresses=SimpleNamespace(url="http://127.0.0.1:1"), token="secret", token_is_ours=ours
    )
    assert page_address(launcher) == f"http://127.0.0.1:1{end}"


class EndedError(Exception):
    """Raised instead of serving."""


@pytest.mark.parametrize("opened", [True, False])
def test_makes_the_quickstart_where_it_is_missing_and_opens_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linear_model: Any, opened: bool
) -> None:
    """The quickstart and the server have tests of their own; here they are only called for."""
    made: list[Path] = []
    addresses: list[str] = []
    contents: list[tuple[int, bool]] = []

    def make(out: Path) -> None:
        made.append(out)
        for name in demo._NEEDED:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_bytes(model.read_bytes())

    def open_page(url: str) -> bool:
        addresses.append(url)
        file = Path(urlsplit(url).path)
        contents.append((file.stat().st_mode & 0o777, 'url=http://page/#token=a&amp;b"' in file.read_text()))
        return opened

    def announced(launcher: AsgiLauncher, announce: Any) -> None:
        assert [model.name for model in launcher.models] == ["digits", "first-member"]
        assert (launcher.options.engine, launcher.options.page, launcher.options.host) == ("asgi", True, "127.0.0.1")
        monkeypatch.setattr(demo, "page_address", lambda _: "http://page/#token=a&b")
        announce()
        raise EndedError

    model = linear_model([[1.0] * 4, [-1.0] * 4], shape=(1, 2, 2))
    monkeypatch.setattr(quickstart, "command", make)
    monkeypatch.setattr(demo, "serve", announced)
    monkeypatch.setattr(webbrowser, "open", open_page)
    out = tmp_path / "quickstart"
    for arguments, count in ((["--out", str(out)], 1), (["--out", str(out), "--no-browser"], 1)):
        result = CliRunner().invoke(app, ["demo", *arguments])
        assert isinstance(result.exception, EndedError), result.output
        assert "page: http://page/#token=a&b" in result.output
        assert len(addresses) == count
    assert made == [out]  # the second time it was there
    # The token is in no process's arguments, and its file ends with the server.
    assert addresses[0].startswith(out.resolve().as_uri())
    assert "token" not in addresses[0]
    assert contents == [(0o600, True)]
    assert not list(out.glob("*.html"))


def test_shows_other_models_without_a_quickstart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linear_model: Any
) -> None:
    def announced(launcher: AsgiLauncher, announce: Any) -> None:
        assert [(model.name, model.path) for model in launcher.models] == [("signs", signs)]
        raise EndedError

    signs = linear_model([[1.0] * 4, [-1.0] * 4], shape=(1, 2, 2)).rename(tmp_path / "signs.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "serve", announced)
    result = CliRunner().invoke(app, ["demo", str(signs), "--no-browser"])
    assert isinstance(result.exception, EndedError), result.output
    assert not (tmp_path / "quickstart").exists()


def test_a_file_leads_to_an_address_with_a_token_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with demo._way_to("http://page/", tmp_path) as opened:
        assert opened == "http://page/"
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("os.access", lambda *_: False)  # a folder that cannot be written to
    with demo._way_to("http://page/#token=x", tmp_path) as opened:
        file = Path(urlsplit(opened).path)
        assert file.is_file()
        assert not list(tmp_path.iterdir())
    assert not file.exists()
