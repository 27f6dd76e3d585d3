"""The reports are about the quickstart that the tests of the documentation make."""

from ...docs.conftest import quickstart

__all__ = ["quickstart"]
