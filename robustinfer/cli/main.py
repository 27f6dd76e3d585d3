"""`robust`: the whole product from one command."""

import contextlib
import functools
import logging
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from ..errors import RobustinferError
from .console import print_text, stderr
from .help import Command, Group

__all__ = ["app", "leave", "main"]

app = typer.Typer(
    name="robust",
    cls=Group,
    help="Train, export, certify and serve image classifiers that resist adversarial changes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

# In the order a newcomer meets them. Each module holds one function `command`, and imports what is heavy inside it.
_COMMANDS: tuple[str, ...] = (
    "quickstart",
    "demo",
    "data",
    "recipes",
    "train",
    "evaluate",
    "distill",
    "export",
    "wrap",
    "inspect",
    "predict",
    "certify",
    "summary",
    "verify",
    "keygen",
    "sign",
    "report",
    "serve",
    "bench",
)


def _version(wanted: bool) -> None:
    if wanted:
        from ..version import __version__

        print_text(f"robust {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log what is going on: engine, device, requests.")
    ] = False,
) -> None:
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)


def _announcing(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which says that it was interrupted: typer itself ends in silence."""

    @functools.wraps(command)
    def announced(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except KeyboardInterrupt:
            stderr.print("robust: interrupted")
            raise typer.Exit(130) from None

    return announced


for _name in _COMMANDS:
    app.command(_name, cls=Command)(_announcing(import_module(f"{__package__}.{_name}").command))


def main() -> None:
    """Run the command line; errors become sentences and exit codes (1 failed, 2 misuse, 130 interrupted)."""
    try:
        _run()
    except SystemExit as end:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            leave(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise


def leave(code: int) -> NoReturn:
    """End one of several processes of a training at once, without tearing the interpreter down.

    torch does not let go of a group of processes that a wrapped model has used: its threads outlive the training, and
    one that is still at work while the interpreter ends takes the process down ("terminate called without an active
    exception"), after everything was written. torchrun would call the training failed.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it any more
            stream.flush()
    os._exit(code)


def _run() -> None:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # for a module:factory of one's own; behind all others, so that it hides none of them
    try:
        app()
    except RobustinferError as error:
        stderr.print(f"robust: {error}", style="red", markup=False)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (FileExistsError, NotADirectoryError) as error:
        stderr.print(
            f"robust: {error.filename} is a file where a folder is needed: choose another place.",
            style="red",
            markup=False,
        )
        sys.exit(1)
    except OSError as error:
        place = f" {error.filename}" if error.filename else ""
        stderr.print(f"robust: The system refused{place}: {error.strerror or error}.", style="red", markup=False)
        sys.exit(1)
