"""One small quickstart for all tests of documentation, report and examples."""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from robustinfer.cli.main import main

from ..conftest import fix_randomness

ROOT = Path(__file__).resolve().parents[2]

# The same commands as a user gives, on one thread: the tests of other parts run at the same time.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "120"}
SMALL = ("--set", "stages=2", "--set", "epochs=1", "--set", "limit=600", "--images", "16", "--n", "300")


@dataclass(frozen=True)
class Finished:
    """A finished process."""

    code: int
    out: str
    err: str


def run(*command: str, cwd: Path, timeout: float = 250) -> Finished:
    """Run a program of this environment."""
    done = subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=timeout)
    return Finished(done.returncode, done.stdout, done.stderr)


def robust(*arguments: str, cwd: Path) -> Finished:
    """Run the command line in this process: torch is imported once for all tests, and not once a command."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(cwd)
        patch.setattr(sys, "argv", ["robust", *arguments])
        patch.setenv("NO_COLOR", "1")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
    return Finished(int(ended.value.code or 0), out.getvalue(), err.getvalue())


@dataclass(frozen=True)
class Quickstart:
    """A folder in which `robust quickstart` was run; the examples of the documentation run in it, too."""

    folder: Path
    finished: Finished

    @property
    def out(self) -> Path:
        """What the quickstart made."""
        return self.folder / "quickstart"

    @property
    def image(self) -> Path:
        """The image that the pages use."""
        return self.out / "images" / "five.png"


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Quickstart:
    """A quickstart of two short stages.

    The processes of pytest-xdist share one: whoever comes first makes it. Tests that change it work on a copy, except
    for those of test_quickstart.py, which follow one another.
    """
    from filelock import FileLock

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "docs"
    told = folder / "finished.json"
    with FileLock(folder.with_suffix(".lock")):
        if not told.is_file():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            told.write_text(json.dumps(asdict(_quickstart(folder))))
    return Quickstart(folder, Finished(**json.loads(told.read_text())))


def _quickstart(folder: Path) -> Finished:
    fix_randomness()  # whichever test comes first
    finished = robust("quickstart", *SMALL, cwd=folder)
    assert finished.code == 0, finished.err
    return finished
