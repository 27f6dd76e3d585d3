"""Freed memory stays with a training process, where the C library can be told so."""

import platform
import subprocess
import sys

import pytest
import torch
from robust.train.machine.memory import keep_freed_memory

# Frees and takes 64 MB 25 times: page faults are counted by the system, so this is exact where timing is not. The
# first few may find that a small object has moved into the gap and take a new place: they are not counted.
_PROGRAM = """
import resource, sys, torch
from robust.train.machine.memory import keep_freed_memory
told = sys.argv[1] == "keep" and keep_freed_memory(torch.device("cpu"))
for _ in range(10):
    torch.ones(16_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(25):
    torch.ones(16_000_000)
print(told, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(way: str) -> tuple[str, int]:
    """Whether the library was told, and how many pages the system had to hand out."""
    found = subprocess.run([sys.executable, "-c", _PROGRAM, way], capture_output=True, text=True, check=True)
    told, faults = found.stdout.split()
    return told, int(faults)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left as they are")
def test_kept_memory_is_used_again_without_asking_the_system() -> None:
    told, kept = page_faults("keep")
    assert told == "True"
    assert kept * 20 < page_faults("leave")[1]


def test_other_devices_and_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not keep_freed_memory(torch.device("cuda"))
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed_memory(torch.device("cpu"))
