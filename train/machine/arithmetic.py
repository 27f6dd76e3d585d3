"""The arithmetic of a training's passes: fp32, or bf16 where the machine can do it."""

import functools
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from robustinfer.errors import RecipeError

from ..recipe import Recipe

__all__ = ["arithmetic", "check_arithmetic"]

# The forward and the backward pass of a convolution and of a linear layer.
_BF16_STEP = """
import torch
convolution, linear = torch.nn.Conv2d(16, 32, 3), torch.nn.Linear(32 * 36, 64)
with torch.autocast("cpu", dtype=torch.bfloat16):
    linear(convolution(torch.ones(32, 16, 8, 8)).flatten(1)).float().sum().backward()
"""


def arithmetic(recipe: Recipe, device: torch.device) -> Callable[[], AbstractContextManager[object]]:
    """The arithmetic of a training pass: a context to open for each pass."""
    if recipe.precision == "fp32":
        return nullcontext
    return lambda: torch.autocast(device.type, dtype=torch.bfloat16)


def check_arithmetic(recipe: Recipe, device: torch.device) -> None:
    """Refuse bf16 where it would end the process.

    A virtual machine may name processor instructions (AMX) that its host does not carry out. torch believes the name,
    and the first product in bf16 ends the process without a word: so another process tries one first.
    """
    if recipe.precision == "fp32" or device.type != "cpu":
        return
    if problem := _trial(_BF16_STEP):
        raise RecipeError(
            'The field `precision` = "bf16" would crash torch on this CPU: a trial in a process of its own ended '
            f'with {problem}. Use precision = "fp32", or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment, '
            "which leaves out the newest instructions."
        )


@functools.cache
def _trial(program: str) -> str:
    """What ended a process that ran this program; nothing if it came to its end."""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if finished.returncode < 0:
        return signal.strsignal(-finished.returncode) or f"signal {-finished.returncode}"
    if finished.returncode > 0:
        return (finished.stderr.strip().splitlines() or [f"exit code {finished.returncode}"])[-1]
    return ""
