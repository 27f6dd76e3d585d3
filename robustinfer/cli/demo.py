"""`robust demo`: the page that shows what a certificate is, on the models of the quickstart or on others."""

import sys
import webbrowser
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
    [bold]robust demo model.onnx[/bold]
    """
    with needed(extra="asgi", why="robust demo"):
        from robust.serve import AsgiLauncher
    from robust.serve.service.options import ServeOptions, model_arguments

    options = ServeOptions.read(None, {"engine": "asgi", "page": True, "port": port})
    launcher = AsgiLauncher(model_arguments(models or _of_the_quickstart(out), card=None), options)

    def announce() -> None:
        print_text(f"page: {page_address(launcher)}")
        sys.stdout.flush()  # whoever reads this through a pipe waits for it
        note("Press ctrl-C to stop.")
        if browser and not webbrowser.open(page_address(launcher)):
            note("No browser could be opened: open the address above in one.")

    serve(launcher, announce)


def _of_the_quickstart(out: Path) -> list[str]:
    """The models of the quickstart, which is run if something of it is missing."""
    missing = [name for name in _NEEDED if not (out / name).is_file()]
    if missing:
        note(f"{out / missing[0]} does not exist yet: running robust quickstart first.")
        quickstart.command(out=out)
    return [str(out / name) for name in _MODELS]
