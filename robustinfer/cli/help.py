"""How `--help` shows options and arguments, and lets prose flow.

typer writes `<bool>` beside a flag, as if it took a value, and `{files}...` for what must be given. It also keeps the
line breaks of a docstring, which are those of the source and not of a terminal.
"""

import inspect
from typing import Any

from typer.core import TyperCommand, TyperGroup

__all__ = ["Command", "Group", "argument_name", "flowing"]

_KINDS = {"<str>": "<text>"}


class Command(TyperCommand):
    """A command whose help shows flags without a value, and arguments as MODEL, [IMAGE] or FILES..."""

    def __init__(self, *arguments: Any, help: str | None = None, **options: Any) -> None:
        super().__init__(*arguments, help=flowing(help or ""), **options)

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, as help and errors are to name them."""
        return [_shown(parameter, ctx) for parameter in super().get_params(ctx)]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What follows the command's name in its usage."""
        return [self.options_metavar or "", *(_usage(one) for one in self.get_params(ctx) if _is_argument(one))]


class Group(TyperGroup):
    """All commands: the options of `robust` itself are shown as theirs are."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, as help and errors are to name them."""
        return [_shown(parameter, ctx) for parameter in super().get_params(ctx)]


def flowing(text: str) -> str:
    """A docstring whose paragraphs are lines that a terminal breaks; examples, in bold, stay one to a line."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(part if part.startswith("[bold]") else part.replace("\n", " ") for part in paragraphs)


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _shown(parameter: Any, ctx: Any) -> Any:
    """The parameter, named as it is to be shown."""
    if _is_argument(parameter):
        parameter.metavar = argument_name(parameter)
        parameter.display_type_rich = lambda ctx: None  # the name says it: MODEL is a path
    elif getattr(parameter, "is_flag", False):
        parameter.metavar = ""
    elif parameter.metavar is None and hasattr(parameter, "display_type_rich"):
        kind = parameter.display_type_rich(ctx).replace(" range", "").replace("list[", "").replace("]", "")
        parameter.metavar = _KINDS.get(kind, kind)
    return parameter


def argument_name(parameter: Any) -> str:
    """What an argument is called in help: MODEL, or FILES... where there may be several."""
    return _name(parameter) + ("..." if parameter.nargs != 1 else "")


def _name(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper()).strip("[].")


def _usage(parameter: Any) -> str:
    """MODEL for what must be given, [IMAGE] for what may be, with dots where there may be several."""
    name = _name(parameter)
    choice = f"[{name}]" if not parameter.required else f"({name})" if "|" in name and parameter.nargs != 1 else name
    return choice + ("..." if parameter.nargs != 1 else "")
