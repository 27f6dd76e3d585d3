"""`robust demo`: the page that shows what a certificate is, on the models of the quickstart or on others."""

import html
import os
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ..extras import needed
from . import quickstart
from .console import note, print_text
from .serve import page_address, serve

__all__ = ["command"]

_MODELS = ("digits.onnx", "first-member.onnx")
_NEEDED = (*_MODELS, "ordinary.onnx", "attacked.npz", "images/five.png")


def command(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="Model files to show, with the pictures beside them (docs/serving.md).",
            show_default="those of the quickstart",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the quickstart; created if missing.")] = Path("quickstart"),
    port: Annotated[int, typer.Option(help="Port; 0 picks a free one.", min=0, max=65_535)] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Show on a page what a certificate proves: pick a picture, watch the votes, try to fool the model.

    Serves the models to this computer alone, until ctrl-C. Without any, it shows those of `robust quickstart`, which
    runs first if it has not run yet, and takes about a minute.

    [bold]robust demo[/bold]
    [bold]robust demo examples/signs/signs.onnx[/bold]
    """
    with needed(extra="asgi", why="robust demo"):
        from robust.serve import AsgiLauncher
    from robust.serve.service.options import ServeOptions, model_arguments

    options = ServeOptions.read(None, {"engine": "asgi", "page": True, "port": port})
    launcher = AsgiLauncher(model_arguments(models or _of_the_quickstart(out), card=None), options)

    def announce() -> None:
        address = page_address(launcher)
        print_text(f"page: {address}")
        sys.stdout.flush()  # whoever reads this through a pipe waits for it
        note("Press ctrl-C to stop.")
        if browser and not webbrowser.open(shown.enter_context(_way_to(address, launcher.models[0].path.parent))):
            note("No browser could be opened: open the address above in one.")

    with ExitStack() as shown:
        serve(launcher, announce)


def _of_the_quickstart(out: Path) -> list[str]:
    """The models of the quickstart, which is run if something of it is missing."""
    missing = [name for name in _NEEDED if not (out / name).is_file()]
    if missing:
        note(f"{out / missing[0]} does not exist yet: running robust quickstart first.")
        quickstart.command(out=out)
    return [str(out / name) for name in _MODELS]


@contextmanager
def _way_to(address: str, folder: Path) -> Iterator[str]:
    """What a browser is told to open: not the token itself, since everybody on a computer can list its processes.

    It opens a file that its owner alone can read, which leads to the address and lasts as long as the server: in the
    folder if that can be written to, because some browsers are kept from seeing the temporary one.
    """
    if "#" not in address:
        yield address
        return
    link = html.escape(address)
    writable = folder if os.access(folder, os.W_OK) else None
    handle, name = tempfile.mkstemp(dir=writable, prefix="open-", suffix=".html")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(
                '<!doctype html><meta charset="utf-8"><title>robust demo</title>'
                f'<meta http-equiv="refresh" content="0; url={link}"><p><a href="{link}">To the page</a></p>\n'
            )
        yield Path(name).resolve().as_uri()
    finally:
        Path(name).unlink(missing_ok=True)
