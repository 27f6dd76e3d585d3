"""Memory between training steps: what a step frees is kept for the next one, instead of going back to the system."""

import ctypes
import sys

import torch

__all__ = ["keep_freed_memory"]

# Parameters of mallopt(3), from malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = 2**31 - 1  # bytes; the largest value of a C int


def keep_freed_memory(device: torch.device) -> bool:
    """Tell glibc to keep freed memory in this process; whether it was told.

    A training step on a CPU allocates and frees the same large arrays again and again. glibc gives large ones back and
    takes them anew from the system, which hands out empty pages one page fault after the other: about a tenth of the
    time of a step of a small network (benchmarks/speed/training_memory.py). Parameters and losses do not depend on
    it. On other systems, C libraries and devices nothing is changed.
    """
    if device.type != "cpu" or not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):  # musl, for one, has another allocator
        return False
    return bool(library.mallopt(_M_MMAP_MAX, 0) and library.mallopt(_M_TRIM_THRESHOLD, _NEVER))
