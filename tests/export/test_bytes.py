"""The same run gives the same bytes, in this process and in another, and they name nothing of this machine."""

import getpass
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from robust.export import export_run
from robust.train.runs.run import Run

from robustinfer.files import sha256

ROOT = Path(__file__).parents[2]
FILES = ("model.onnx", "model.pt", "model.pt2")
_EXPORT = """
import sys
from pathlib import Path
from robust.export import export_run
for name in sys.argv[3:]:
    export_run(sys.argv[1], Path(sys.argv[2]) / name, sampler=not name.endswith(".pt2"), samples=20)
"""


@pytest.fixture
def twice(run: Run, tmp_path: Path) -> tuple[Path, Path]:
    """Two folders of exports of one run: by this process, and by another one from another working directory."""
    here, there = tmp_path / "here", tmp_path / "there"
    for name in FILES:
        export_run(run.path, here / name, sampler=not name.endswith(".pt2"), samples=20)
    command = [sys.executable, "-W", "ignore", "-c", _EXPORT, str(run.path.resolve()), str(there), *FILES]
    subprocess.run(command, check=True, timeout=250, cwd=tmp_path)
    return here, there


@pytest.mark.slow
def test_another_process_writes_the_same_bytes(twice: tuple[Path, Path], run: Run) -> None:
    here, there = twice
    assert {path.name: sha256(path) for path in here.iterdir()} == {path.name: sha256(path) for path in there.iterdir()}


@pytest.mark.parametrize("name", FILES)
def test_the_same_process_writes_the_same_bytes(run: Run, tmp_path: Path, name: str) -> None:
    for folder in ("one", "two"):
        export_run(run.path, tmp_path / folder / name, sampler=not name.endswith(".pt2"), samples=20)
    assert sha256(tmp_path / "one" / name) == sha256(tmp_path / "two" / name)
    _names_nothing_of_this_machine(tmp_path / "one" / name, run)


def _names_nothing_of_this_machine(path: Path, run: Run) -> None:
    contents = [path.read_bytes()]
    if path.suffix != ".onnx":
        with zipfile.ZipFile(path) as archive:
            assert not any(name.endswith(".debug_pkl") for name in archive.namelist())
            assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
            contents += [archive.read(name) for name in archive.namelist()]
    traces = (str(ROOT), str(run.path), str(Path.home()) + "/", sys.prefix, "site-packages", "stack_trace", 'File \\"')
    user = getpass.getuser()
    for content in contents:
        for trace in traces:
            assert trace.encode() not in content, trace
        assert f"/{user}/".encode() not in content
