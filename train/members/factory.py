"""Somebody's own network by its name: `module:factory`, or `module:factory(...)` with literals in the brackets."""

import ast
import importlib
import inspect
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from robustinfer.errors import RecipeError

__all__ = ["Factory"]


@dataclass(frozen=True)
class Factory:
    """What such a name stands for: an object that was imported, and how to call it."""

    name: str
    target: Any
    arguments: tuple[Any, ...] | None  # None if there are no brackets
    named: Mapping[str, Any]

    @classmethod
    def find(cls, name: str) -> "Factory":
        """Import what the name says; nothing is called yet."""
        module, _, expression = name.partition(":")
        try:
            tree = ast.parse(expression.strip(), mode="eval").body
            call = tree if isinstance(tree, ast.Call) else None
            path = ast.unparse(call.func if call else tree)
            arguments = tuple(ast.literal_eval(value) for value in call.args) if call else None
            named = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords} if call else {}
        except (SyntaxError, ValueError) as error:
            raise RecipeError(
                f"Expected module:factory, or module:factory(...) with literals; found {name!r}."
            ) from error
        try:
            target = operator.attrgetter(path)(importlib.import_module(module))
        except (ImportError, AttributeError, ValueError) as error:
            raise RecipeError(f"{name} cannot be imported: {error}.") from error
        return cls(name, target, arguments, named)

    def make(self, *default: Any) -> nn.Module:
        """A network, made with the literals in the brackets; without any, with `default`, or with nothing at all.

        `default` is left out if the factory takes no such arguments.
        """
        arguments = self.arguments
        if arguments is None:
            arguments = default if _takes(self.target, default) else ()
        try:
            network = self.target(*arguments, **self.named)
        except Exception as error:  # whatever the user's code raises
            raise RecipeError(f"{self.name} failed: {type(error).__name__}: {error}") from error
        if not isinstance(network, nn.Module):
            raise RecipeError(f"Expected {self.name} to return a torch.nn.Module, found {type(network).__name__}.")
        return network


def _takes(factory: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
    """Whether a factory can be called with these; one that does not say what it takes is believed to."""
    try:
        inspect.signature(factory).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # written in C
        return True
    return True
