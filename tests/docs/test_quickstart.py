"""`robust quickstart`: what it makes, what it prints, that it can be interrupted and repeated."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from robustinfer import Predictor
from robustinfer.certificate_file import read_certificates
from robustinfer.data import load_images

from .conftest import ENVIRONMENT, ROOT, SMALL, Quickstart, robust, run

pytestmark = pytest.mark.xdist_group("quickstart")


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


def test_tells_each_step_and_ends_with_commands_that_work(quickstart: Quickstart) -> None:
    steps = re.findall(r"^\[(\d)/6\] ", quickstart.finished.err, re.MULTILINE)
    assert steps == list("123456")
    assert re.match(r"16 test images: [\d.]+ % certified with the right label", quickstart.finished.out)
    commands = re.findall(r"^  robust (.+)$", quickstart.finished.out, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["inspect", "verify", "certify", "bench", "serve"]
    for command in commands[:4]:
        arguments = command.split() + (["--seconds", "0.05"] if command.startswith("bench") else [])
        finished = robust(*arguments, cwd=quickstart.folder)
        assert finished.code == 0, finished.err
    checked = robust(*commands[4].split(), "--check", cwd=quickstart.folder)
    assert checked.code == 0, checked.err


def test_running_it_again_changes_nothing(quickstart: Quickstart) -> None:
    kept = ("digits.onnx", "certificates.jsonl", "run/stage-02.json", "run/evaluation.json")
    before = {name: (quickstart.out / name).stat().st_mtime_ns for name in kept}
    again = robust("quickstart", *SMALL, cwd=quickstart.folder)
    assert again.code == 0, again.err
    assert {name: (quickstart.out / name).stat().st_mtime_ns for name in kept} == before
    assert "epoch" not in re.sub(r"\d+ epochs", "", again.err)


def test_other_settings_in_the_same_folder_are_refused(quickstart: Quickstart) -> None:
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
    command = [str(Path(sys.executable).with_name("robust")), "quickstart", *SMALL]
    process = subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    stage = tmp_path / "quickstart" / "run" / "stage-01.json"
    end = time.monotonic() + 200
    while not stage.is_file() and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.endswith("Run the same command again, and it goes on where it stopped.\nrobust: interrupted\n")
    written = stage.stat().st_mtime_ns
    finished = robust("quickstart", *SMALL, cwd=tmp_path)
    assert finished.code == 0, finished.err
    assert stage.stat().st_mtime_ns == written


@pytest.mark.slow
@pytest.mark.representative
@pytest.mark.timeout(900)
def test_the_whole_one_as_a_newcomer_runs_it(tmp_path: Path) -> None:
    begun = time.monotonic()
    finished = run(str(Path(sys.executable).with_name("robust")), "quickstart", cwd=tmp_path, timeout=890)
    assert finished.code == 0, finished.err
    processor = int(re.search(r"(\d+) s of processor time", finished.out)[1])  # type: ignore[index]
    # Three minutes on two quiet cores; processor time does not depend on what else the machine does.
    assert processor < 2 * 180, f"{processor} s of processor time, {time.monotonic() - begun:.0f} s"
    _, entries = read_certificates(tmp_path / "quickstart" / "certificates.jsonl")
    assert len(entries) == 200
    assert sum(entry.correct for entry in entries) > 180
    transcript = (ROOT / "README.md").read_text().partition("<!-- transcript -->")[2]
    for line in re.findall(r"^\[\d/6\] .*$", finished.err, re.MULTILINE):
        assert line in transcript
    for line in re.findall(r"^  robust \w+", finished.out, re.MULTILINE):
        assert line in transcript
