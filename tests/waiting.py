"""Waiting for what another process does, where nothing can be read, joined or waited on: the only sleep in the tests.

TorchServe writes its metrics and log lines in threads of its own, replaces a lost worker, and reads connections without
telling anybody. Everything else is waited for by its event: a line of a pipe, the end of a process or a thread.
"""

import asyncio
import time
from collections.abc import Callable

__all__ = ["PATIENCE", "eventually", "turn"]

PATIENCE = 200  # seconds; a limit for what never comes, not for a busy machine: below pytest's own limit of 300


def eventually(condition: Callable[[], bool]) -> float:
    """Wait for a condition; returns the seconds that it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < PATIENCE, f"waited {PATIENCE:g} seconds in vain"
        time.sleep(0.02)
    return time.monotonic() - began


async def turn() -> None:
    """Let everything else that is ready in this event loop run once."""
    await asyncio.sleep(0)
