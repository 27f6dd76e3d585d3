"""The programs in examples/ do what they say."""

import json
import sys
from pathlib import Path

import pytest
from PIL import Image

from robustinfer import Certificate, Predictor
from robustinfer.data import digits
from robustinfer.images import read_image

from .conftest import ROOT, Quickstart, run
from .pages import examples
from .running import Runner
from .smaller import smaller_command

EXAMPLES = ROOT / "examples"


def shown(program: str) -> str:
    """The command that examples/README.md gives for a program, with small work."""
    (found,) = (example.text for example in examples(EXAMPLES / "README.md") if program in example.text)
    return smaller_command(found)


def test_certify_folder_goes_on_and_skips_what_is_no_picture(quickstart: Quickstart, tmp_path: Path) -> None:
    images, _ = digits("test")
    pictures = tmp_path / "pictures"
    (pictures / "more").mkdir(parents=True)
    for number in range(3):
        Image.fromarray(images[number, 0]).save(pictures / "more" / f"{number}.png")
    (pictures / "broken.png").write_text("no picture")
    command = (sys.executable, str(EXAMPLES / "certify_folder.py"), str(quickstart.out / "digits.onnx"), "pictures")
    first = run(*command, "--n", "500", cwd=tmp_path)
    assert first.code == 0, first.err
    assert "skipped: pictures/broken.png" in first.out
    lines = (tmp_path / "pictures.jsonl").read_text().splitlines()
    assert len(lines) == 3
    predictor = Predictor.load(quickstart.out / "digits.onnx")
    for line in map(json.loads, lines):
        certificate = Certificate.from_json(line["certificate"])
        assert predictor.verify(certificate, read_image(tmp_path / line["file"], predictor.card.input)).ok
    run(*command, "--n", "500", cwd=tmp_path)
    assert (tmp_path / "pictures.jsonl").read_text().splitlines() == lines


def test_fastapi_application_answers_and_refuses(quickstart: Quickstart, monkeypatch: pytest.MonkeyPatch) -> None:
    testclient = pytest.importorskip("fastapi.testclient")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    predictor = Predictor.load(quickstart.out / "digits.onnx")
    monkeypatch.setenv("MODEL", str(quickstart.out / "digits.onnx"))
    monkeypatch.setenv("MODEL_DIGEST", predictor.digest)
    import fastapi_app  # type: ignore[import-not-found]

    image = quickstart.image.read_bytes()
    with testclient.TestClient(fastapi_app.app) as client:
        assert client.get("/model").json()["digest"] == predictor.digest
        answer = client.put("/certify", params={"radius": 0.05}, content=image)
        assert answer.status_code == 200, answer.text
        pixels = read_image(quickstart.image, predictor.card.input)
        assert predictor.verify(Certificate.from_json(answer.json()), pixels).ok
        assert client.put("/certify", params={"deadline": 0.05}, content=image).json()["procedure"] == "deadline"
        assert client.put("/label", content=image).status_code in (200, 409)
        refused = client.put("/certify", content=b"no picture")
        assert refused.status_code == 422
        assert refused.json()["error"] == "ImageFileError"


@pytest.mark.slow
def test_own_folder_and_architecture(quickstart: Quickstart, tmp_path: Path) -> None:
    finished = Runner(tmp_path, quickstart, None).process(shown("train_own.py"))
    assert finished.code == 0, finished.err
    card = Predictor.load(tmp_path / "examples" / "own_architecture" / "flowers" / "model.onnx").card
    assert card.classes == ("even", "odd")
    assert [member.architecture for member in card.members] == ["network:build"] * 2
    assert finished.out.count("test image") == 3


@pytest.mark.slow
@pytest.mark.representative
def test_foolbox_breaks_no_certificate(quickstart: Quickstart, tmp_path: Path) -> None:
    """The control altered 19 of 43 labels when this was written: no processor's arithmetic makes that none."""
    pytest.importorskip("foolbox")
    finished = Runner(tmp_path, quickstart, None).process(shown("attack_with_foolbox.py"))
    assert finished.code == 0, finished.err
    inside, control = finished.out.splitlines()
    assert inside.startswith("0 of ")
    assert int(control.split()[0]) > 0
