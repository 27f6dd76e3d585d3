"""Files: written to a temporary name and renamed, so that a killed process leaves the old file or the new one."""

import contextlib
import hashlib
import os
import re
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["leftovers", "read_toml", "replacing", "sha256", "write_bytes", "write_text"]


def read_toml(path: Path, *, what: str, error: type[Exception]) -> dict[str, Any]:
    """The document in a TOML file; one that cannot be read is refused by `error`, which says `what` it is."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise error(f"{what} {path} cannot be read: {problem.strerror}.") from problem
    except ValueError as problem:  # as is text that is not UTF-8
        raise error(f"{what} {path} is not a TOML document: {problem}.") from problem


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Hand out a temporary path beside `path`; rename it to `path` on success, remove it on any failure.

    The temporary name keeps the suffix of `path`, because some writers choose their format by it.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.stem}-", suffix=f".tmp{target.suffix}")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        # mkstemp makes files private to their owner; a finished file gets the ordinary permissions of the process.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def leftovers(folder: str | os.PathLike[str]) -> list[Path]:
    """Temporary files that killed processes left in a folder; those of processes still at work look the same."""
    return [file for file in Path(folder).iterdir() if re.fullmatch(r"\..+-[a-z0-9_]{8}\.tmp(\..*)?", file.name)]


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write `content` to `path`, all of it or nothing."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: str | os.PathLike[str], content: str) -> None:
    """Write `content` to `path` as UTF-8, all of it or nothing."""
    write_bytes(path, content.encode())


def sha256(path: str | os.PathLike[str]) -> str:
    """The digest of a file, as `sha256:` and 64 hexadecimal digits."""
    with Path(path).open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return f"sha256:{digest.hexdigest()}"
