"""`robust quickstart`: what it makes, what it prints, that it can be interrupted and repeated."""

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

from robustinfer import Predictor
from robustinfer.certificate_file import read_certificates
from robustinfer.data import digits, load_images
from robustinfer.images import read_image

from ..interrupted import Moment, interrupted
from ..waiting import PATIENCE
from .conftest import SMALL, Finished, Quickstart, robust, run
from .served import serve


def test_makes_what_it_promises(quickstart: Quickstart) -> None:
    out = quickstart.out
    assert {"digits.onnx", "run", "certificates.jsonl", "report.html"} <= {path.name for path in out.iterdir()}
    predictor = Predictor.load(out / "digits.onnx")
    assert len(predictor.card.members) == 2
    assert len(Predictor.load(out / "first-member.onnx").card.members) == 1
    header, entries = read_certificates(out / "certificates.jsonl")
    assert header.model["digest"] == predictor.digest
    assert [entry.index for entry in entries] == list(range(16))
    images = load_images("digits", predictor.card)
    assert predictor.verify(entries[3].certificate, images.read(3)).ok
    evaluation = json.loads((out / "run" / "evaluation.json").read_text())
    assert [row["stages"] for row in evaluation["attacks"]["pgd-20x2"]["rows"]] == [1, 2, None]


def test_tells_each_step(quickstart: Quickstart) -> None:
    steps = re.findall(r"^\[(\d)/6\] ", quickstart.finished.err, re.MULTILINE)
    assert steps == list("123456")
    assert re.match(r"16 test images: [\d.]+ % certified with the right label", quickstart.finished.out)
    offered = re.findall(r"^  \S*robust (\w+) ", quickstart.finished.out, re.MULTILINE)
    assert offered == ["inspect", "certify", "verify", "bench", "serve"]


def test_writes_an_image_of_each_digit_that_the_model_reads(quickstart: Quickstart) -> None:
    spec = Predictor.load(quickstart.out / "digits.onnx").card.input
    images, labels = digits("test")
    names = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    assert {path.name for path in (quickstart.out / "images").iterdir()} == {f"{name}.png" for name in names}
    for digit, name in enumerate(names):
        pixels = read_image(quickstart.out / "images" / f"{name}.png", spec)
        found = labels[[np.array_equal(pixels, image) for image in images]]
        assert set(found) == {digit}


# Nothing of the environment is on the path of somebody who only ran make.
BARE = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "HOME": "/nonexistent"}


def in_a_clone(command: str, clone: Path) -> Finished:
    """A shell's command line in a folder that has `.venv`, which is not active."""
    done = subprocess.run(["/bin/sh", "-c", command], cwd=clone, env=BARE, capture_output=True, text=True, timeout=250)
    return Finished(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def clone(quickstart: Quickstart, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like a fresh clone after `make quickstart`."""
    folder = tmp_path_factory.mktemp("a clone")
    (folder / ".venv").symlink_to(sys.prefix)
    shutil.copytree(quickstart.out, folder / "quickstart")
    return folder


@pytest.mark.slow
def test_ends_with_commands_that_work_as_printed(clone: Path) -> None:
    assert in_a_clone("robust --version", clone).code == 127
    again = in_a_clone(f".venv/bin/robust quickstart {' '.join(SMALL)}", clone)
    assert again.code == 0, again.err
    commands = re.findall(r"^  (.+)$", again.out, re.MULTILINE)
    assert [command.split()[:2] for command in commands] == [
        [".venv/bin/robust", name] for name in ("inspect", "certify", "verify", "bench", "serve")
    ]
    for command in commands:
        # Minutes and servers are not for this test; the options that are added change nothing that was printed.
        less = {"bench": " --seconds 0.05", "certify": " --n 300", "serve": " --check"}.get(command.split()[1], "")
        finished = in_a_clone(command + less, clone)
        assert finished.code == 0, finished.err
    (activate,) = re.findall(r"^`(source .*?)` lets you write `robust`", again.out, re.MULTILINE)
    active = in_a_clone(activate.replace("source", ".") + f" && robust quickstart {' '.join(SMALL)}", clone)
    assert active.code == 0, active.err
    assert re.findall(r"^  (\S+)", active.out, re.MULTILINE) == ["robust"] * 5
    assert "source" not in active.out


@pytest.mark.slow
@pytest.mark.server
def test_the_server_it_offers_answers_the_line_that_it_prints(clone: Path, tmp_path: Path) -> None:
    with serve(clone, "quickstart/digits.onnx", tmp_path / "serve.log") as served:
        (line,) = re.findall(r"^  (curl .*)$", served.printed, re.MULTILINE)
        assert "-T quickstart/images/five.png" in line
        answer = in_a_clone(line + " --silent --show-error", clone)
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["model"]["name"] == "digits"


@pytest.mark.slow
@pytest.mark.server
def test_the_demo_it_offers_serves_its_page(clone: Path) -> None:
    """What is printed, without the browser that it would open."""
    again = in_a_clone(f".venv/bin/robust quickstart {' '.join(SMALL)}", clone)
    (command,) = re.findall(r"play with the model: `(.*?)`", again.out)
    assert command == ".venv/bin/robust demo"
    log = clone / "demo.log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [*command.split(), "--no-browser"], cwd=clone, env=BARE, stdout=subprocess.PIPE, stderr=stderr, text=True
        )
    waited = threading.Timer(PATIENCE, process.kill)
    waited.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("page: "), log.read_text()[-4000:]
        address, _, token = line.removeprefix("page: ").strip().partition("#token=")
        page = httpx.get(address, timeout=PATIENCE)
        models = httpx.get(f"{address}api/models", headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE)
    finally:
        waited.cancel()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
    assert page.status_code == 200
    assert {model["name"] for model in models.json()["models"]} == {"digits", "first-member"}


def test_running_it_again_changes_nothing(quickstart: Quickstart) -> None:
    kept = ("digits.onnx", "certificates.jsonl", "run/stage-02.json", "run/evaluation.json")
    before = {name: (quickstart.out / name).stat().st_mtime_ns for name in kept}
    again = robust("quickstart", *SMALL, cwd=quickstart.folder)
    assert again.code == 0, again.err
    assert {name: (quickstart.out / name).stat().st_mtime_ns for name in kept} == before
    assert "epoch" not in re.sub(r"\d+ epochs", "", again.err)


def test_another_recipe_in_the_same_folder_is_refused(quickstart: Quickstart) -> None:
    refused = robust("quickstart", *SMALL, "--set", "seed=5", cwd=quickstart.folder)
    assert refused.code == 1
    assert "is a run of another recipe: `seed` is 0 there and 5 here" in refused.err


@pytest.mark.parametrize("missing", ["robust.train", "onnxruntime"])
def test_without_an_optional_part_it_names_the_extra_with_all(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    refused = robust("quickstart", cwd=tmp_path)
    assert refused.code == 1
    assert refused.err.endswith('pip install "robustinfer[all]"\n')
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_interrupted_one_goes_on(tmp_path: Path) -> None:
    moment = Moment("robust.train.runs.run:Run.add_stage", 1, number=signal.SIGINT)
    stopped = run(*interrupted(moment, "quickstart", *SMALL), cwd=tmp_path)
    assert stopped.code == 130
    assert stopped.err.endswith("Run the same command again to resume.\nrobust: interrupted\n")
    stage = tmp_path / "quickstart" / "run" / "stage-01.json"
    written = stage.stat().st_mtime_ns
    finished = robust("quickstart", *SMALL, cwd=tmp_path)
    assert finished.code == 0, finished.err
    assert stage.stat().st_mtime_ns == written


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_one_as_a_newcomer_runs_it(tmp_path: Path) -> None:
    begun = time.monotonic()
    finished = run(str(Path(sys.executable).with_name("robust")), "quickstart", cwd=tmp_path, timeout=890)
    assert finished.code == 0, finished.err
    (seconds,) = re.findall(r"(\d+) s of processor time", finished.out)
    processor = int(seconds)
    # Three minutes on two quiet cores; processor time does not depend on what else the machine does.
    assert processor < 2 * 180, f"{processor} s of processor time, {time.monotonic() - begun:.0f} s"
    _, entries = read_certificates(tmp_path / "quickstart" / "certificates.jsonl")
    assert len(entries) == 200
    assert sum(entry.correct for entry in entries) > 180
