"""Closing the ports of TorchServe that cannot be switched off.

TorchServe 0.12 always opens two gRPC ports, one of them for management: anybody on the machine could change the number
of workers there. It has no option against that. On Linux the launcher, which owns the process, takes a copy of each
listening socket but the two that are wanted, and shuts it down: the port then stays closed. Elsewhere, and where
the kernel does not allow it (it asks for the right to trace one's own child), they stay open on the loopback address.
"""

import ctypes
import os
import re
import socket
import sys
from collections.abc import Collection
from pathlib import Path

__all__ = ["close_other_listeners", "listening_ports"]

_PIDFD_GETFD = 438  # the same number on every architecture
_LISTENING = "0A"


def listening_ports(pid: int) -> dict[int, int]:
    """The TCP ports a process listens on, and the descriptor of each; nothing where there is no /proc."""
    inodes: dict[str, int] = {}
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTENING:
                inodes[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    ports = {}
    for link in Path(f"/proc/{pid}/fd").glob("*") if inodes else ():
        try:
            found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link))  # noqa: PTH115  (no path, but a name)
        except OSError:
            continue
        if found and found.group(1) in inodes:
            ports[inodes[found.group(1)]] = int(link.name)
    return ports


def close_other_listeners(pid: int, *, keep: Collection[int]) -> bool:
    """Close every listening port of a child but those in `keep`; whether none is left open."""
    if not sys.platform.startswith("linux") or not hasattr(os, "pidfd_open"):
        return False
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        for port, descriptor in listening_ports(pid).items():
            if port not in keep:
                _shut_down(handle, descriptor)
    finally:
        os.close(handle)
    ports = listening_ports(pid)
    return bool(ports) and set(ports) <= set(keep)


def _shut_down(handle: int, descriptor: int) -> None:
    copy = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, handle, descriptor, 0)
    if copy < 0:
        return
    with socket.socket(fileno=copy) as listener:
        listener.shutdown(socket.SHUT_RDWR)
