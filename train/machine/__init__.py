"""The computer a training runs on: its processes, random streams, arithmetic, memory and memory layout. Nothing here
knows what is trained."""

from .arithmetic import check_arithmetic
from .layout import check_layout
from .memory import keep_freed_memory
from .processes import Processes, choose_device, join_processes
from .randomness import Draws, derive_seed, generator

__all__ = [
    "Draws",
    "Processes",
    "check_arithmetic",
    "check_layout",
    "choose_device",
    "derive_seed",
    "generator",
    "join_processes",
    "keep_freed_memory",
]
