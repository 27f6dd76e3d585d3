"""Both documented installations bring their types to whoever checks a program against them."""

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from .conftest import ENVIRONMENT, ROOT

pytest.importorskip("setuptools", "77", reason="packages are built here without the network")

PROGRAM = """
from robust.export import export_run
from robustinfer import Certificate, Predictor

predictor = Predictor.load("quickstart/digits.onnx")
certificate: Certificate = predictor.certify([[0, 255], [255, 0]], n=10_000, alpha=0.001)
reveal_type(predictor.digest)
reveal_type(certificate.radius)
reveal_type(export_run)
certificate.radius + "0.1"
"""


def called(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in ENVIRONMENT.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what an installation needs of the repository, with an environment that can build it."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("robustinfer", "train", "export", "serve"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    venv.create(folder / ".venv", with_pip=True)
    (site,) = (folder / ".venv" / "lib").glob("python*/site-packages")
    for pattern in ("setuptools*", "_distutils_hack"):
        for old in site.glob(pattern):
            shutil.rmtree(old)
        for new in Path(sysconfig.get_path("purelib")).glob(pattern):
            (site / new.name).symlink_to(new)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("editable", [True, False], ids=["make", "pip install ."])
def test_types_are_found(editable: bool, checkout: Path, tmp_path: Path) -> None:
    python = checkout / ".venv" / "bin" / "python"
    flags = ("--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check")
    if editable:
        called(python, "-m", "pip", "install", *flags, "-e", ".", cwd=checkout)
        called("make", ".venv/packages", cwd=checkout)
    else:
        shutil.rmtree(checkout / ".venv" / "packages", ignore_errors=True)
        called(python, "-m", "pip", "install", *flags, ".", cwd=checkout)
    where = called(python, "-c", "import robustinfer; print(robustinfer.__file__)", cwd=tmp_path)
    assert Path(where.strip()).resolve().is_relative_to(checkout / "robustinfer") == editable, where
    (tmp_path / "program.py").write_text(PROGRAM)
    found = called(
        sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "program.py", cwd=tmp_path
    )  # fmt: skip
    for line, kind in ((7, '"str"'), (8, '"float"'), (9, '"def (run: ')):
        assert f"program.py:{line}: note: Revealed type is {kind}" in found, found
    assert "program.py:10: error: Unsupported operand types" in found
    assert "Found 1 error in 1 file" in found
