"""ONNX Runtime calls nobody: no file of its own appears, and no name is looked up."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

WEIGHTS = np.random.default_rng(0).normal(size=(3, 48)).astype(np.float32)
CERTIFY = (
    "import sys, numpy; from robustinfer import Predictor; image = numpy.zeros((3, 4, 4), numpy.uint8);"
    "print(Predictor.load(sys.argv[1]).certify(image, n=500).abstained)"
)
FIRST_THE_ENGINE = "import robustinfer, onnxruntime; from robustinfer.engines.onnx import OnnxEngine"


def run(code: str, *arguments: str, folder: Path, prefix: tuple[str, ...] = (), **environment: str) -> list[Path]:
    """Run in a process with a home and temporary folder of its own; returns the files it left there."""
    home, temporary = folder / "home", folder / "tmp"
    for path in (home, temporary):
        path.mkdir(parents=True)
    own = {key: value for key, value in os.environ.items() if key not in {"ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME"}}
    own |= {"HOME": str(home), "TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    command = [*prefix, sys.executable, "-c", code, *arguments]
    subprocess.run(command, env=own, check=True, capture_output=True, timeout=250, cwd=temporary)
    return sorted(home.rglob("*")) + sorted(temporary.rglob("*"))


@pytest.mark.parametrize("code", [CERTIFY, FIRST_THE_ENGINE])
def test_no_file_appears(tmp_path: Path, linear_model: Callable[..., Path], code: str) -> None:
    assert run(code, str(linear_model(WEIGHTS, shape=(3, 4, 4))), folder=tmp_path / "own") == []


def test_the_commands_leave_no_file(tmp_path: Path, linear_model: Callable[..., Path]) -> None:
    path = str(linear_model(WEIGHTS, shape=(3, 4, 4)))
    np.save(tmp_path / "image.npy", np.zeros((3, 4, 4), np.uint8))
    code = "import sys; from robustinfer.cli.main import main; sys.argv[0] = 'robust'; main()"
    assert run(code, "predict", path, str(tmp_path / "image.npy"), folder=tmp_path / "own") == []


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_no_socket_is_opened(tmp_path: Path, linear_model: Callable[..., Path]) -> None:
    trace = tmp_path / "trace"
    strace = ("strace", "-f", "-qq", "-e", "trace=socket,connect,sendto,sendmsg", "-o", str(trace))
    try:
        run("pass", folder=tmp_path / "can", prefix=strace)
    except subprocess.CalledProcessError:
        pytest.skip("strace may not trace here")
    run(CERTIFY, str(linear_model(WEIGHTS, shape=(3, 4, 4))), folder=tmp_path / "own", prefix=strace)
    assert "socket(" not in trace.read_text()


@pytest.mark.parametrize("value", ["0", "1"])
def test_who_has_set_the_variable_is_left_alone(tmp_path: Path, value: str) -> None:
    code = "import os, robustinfer; assert os.environ['ORT_DISABLE_TELEMETRY'] == os.environ['WANTED']"
    run(code, folder=tmp_path / "own", ORT_DISABLE_TELEMETRY=value, WANTED=value)
