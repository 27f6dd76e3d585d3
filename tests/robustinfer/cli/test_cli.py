"""Every command as a newcomer tries it, with the wrong thing each time: one sentence, and the right exit code."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.main import get_command

from robustinfer import Certificate, Predictor, throughput
from robustinfer.certificate_file import read_certificates
from robustinfer.cli.main import app
from robustinfer.data import digits
from robustinfer.images import read_image
from robustinfer.smoothing.noise import derive_seed
from robustinfer.throughput import FileSpeed

from ...commands import Robust
from ...interrupted import Moment, interrupted

LinearModel = Callable[..., Path]


@pytest.fixture
def files(linear_model: LinearModel, tmp_path: Path) -> Path:
    """A folder with a model of 8 x 8 pixels, pictures, and things that are not what they seem."""
    weights = np.zeros((10, 64))
    weights[:, :10] = np.eye(10)
    linear_model(weights, shape=(1, 8, 8), name="model")
    images, _ = digits("test")
    picture = Image.fromarray(images[0, 0])
    picture.save(tmp_path / "five.png")
    picture.convert("RGB").resize((32, 32)).save(tmp_path / "photo.jpg")
    (tmp_path / "photo.onnx").write_bytes((tmp_path / "photo.jpg").read_bytes())
    (tmp_path / "photo.pt").write_bytes((tmp_path / "photo.jpg").read_bytes())
    (tmp_path / "cut.onnx").write_bytes((tmp_path / "model.onnx").read_bytes()[:500])
    (tmp_path / "text.txt").write_text("some text\n")
    (tmp_path / "empty").mkdir()
    return tmp_path


WRONG = {
    "predict: missing model": (
        "predict missing.onnx five.png", 2, "There is no model file missing.onnx."),
    "predict: a JPEG for a model": (
        "predict photo.jpg five.png", 1, "Expected a model file that ends in .onnx, .pt or .pt2, found photo.jpg."),
    "predict: a JPEG called .onnx": ("predict photo.onnx five.png", 1, "photo.onnx is damaged, or not an ONNX model: "),
    "predict: a JPEG called .pt": (
        "predict photo.pt five.png",
        1,
        "photo.pt is damaged, or not a TorchScript or pt2 file: File is not a zip file."),
    "predict: missing image": ("predict model.onnx missing.png", 2, "There is no file missing.png."),
    "predict: a large photo": (
        "predict model.onnx photo.jpg", 1, "photo.jpg: Expected an image of 8 x 8 pixels, found 32 x 32."),
    "predict: no picture at all": (
        "predict model.onnx text.txt", 1,
        "text.txt: This is not a PNG, JPEG, PPM, WebP or npy image: its first bytes match none of them."),
    "certify: no image": ("certify model.onnx", 2, "Give image files, or a data set with --data."),
    "certify: half a model": ("certify cut.onnx five.png", 1, "cut.onnx is damaged, or not an ONNX model: "),
    "certify: too few samples": (
        "certify model.onnx five.png --n 3", 2, "3 samples cannot certify anything at alpha = 0.001"),
    "certify: alpha of 2": ("certify model.onnx five.png --alpha 2", 2, "from 1e-09 to 0.5 for alpha, found 2.0"),
    "certify: unknown data": ("certify model.onnx --data nowhere", 2, "nowhere"),
    "certify: a shard that is none": (
        "certify model.onnx --data digits --shard 2/2", 2, "Expected a shard i/n with i from 0 to n - 1"),
    "certify: a file where a folder is needed": (
        "certify model.onnx --data digits --limit 1 --n 100 --out text.txt/c.jsonl", 1,
        "text.txt is a file where a folder is needed: choose another place."),
    "certify: another file is there": (
        "certify model.onnx --data digits --limit 1 --n 100 --out text.txt", 1,
        "text.txt is not a file of certificates as `robust certify --data` writes it."),
    "inspect: missing": ("inspect missing.onnx", 2, "There is no model file missing.onnx."),
    "inspect: a JPEG": ("inspect photo.onnx", 1, "photo.onnx is damaged, or not an ONNX model: "),
    "summary: missing": ("summary missing.jsonl", 2, "There is no file missing.jsonl."),
    "summary: text": ("summary text.txt", 1, "text.txt is not a file of certificates as `robust certify --data` "),
    "verify: text": (
        "verify text.txt --model model.onnx --image five.png", 1, "This is not a certificate: not a JSON document"),
    "verify: no image": (
        "verify text.txt --model model.onnx", 2, "Give the certified image with --image, or its data set with --data"),
    "report: missing": ("report missing", 2, "There is no file missing."),
    "report: a model": (
        "report model.onnx", 2, "Expected a run folder or a .jsonl file of certificates, found model.onnx."),
    "report: an empty folder": ("report empty", 1, "empty holds neither a run nor certificates."),
    "bench: missing": ("bench missing.onnx", 2, "There is no model file missing.onnx."),
    "bench: batches in words": (
        "bench model.onnx --batches many", 2, "Expected batch sizes such as 1,64,256, found 'many'."),
    "bench: a batch of none": ("bench model.onnx --batches 0", 2, "Expected batch sizes of at least 1, found '0'."),
    "export: missing run": (
        "export missing --out m.onnx", 1,
        "missing is not a run folder: it has no recipe.toml; train one with `robust train`."),
    "train: no such recipe": ("train nothing", 2, "A recipe is a .toml file or one of cifar10-l2, "),
    "train: a file where a folder is needed": (
        "train digits-l2 --out text.txt", 1, "text.txt already exists: choose another --out"),
    "train: a field that is none": (
        "train digits-l2 --set stagse=3", 2, "A recipe has no field `stagse`; did you mean `stages`?"),
    "evaluate: missing": ("evaluate missing", 2, "missing is not a run folder or a model file."),
    "evaluate: an empty folder": ("evaluate empty", 1, "empty is not a run folder: it has no recipe.toml"),
    "serve: missing": ("serve missing.onnx", 2, "There is no model file missing.onnx."),
    "serve: a JPEG": (
        "serve photo.jpg", 1, "Expected a model file that ends in .onnx, .pt or .pt2, found photo.jpg."),
    "quickstart: a file where a folder is needed": (
        "quickstart --out text.txt", 1, "text.txt/run is a file where a folder is needed: choose another place."),
    "quickstart: a field that is none": (
        "quickstart --set colour=blue", 2, "A recipe has no field `colour`; docs/recipes.md lists them all."),
}  # fmt: skip


@pytest.mark.parametrize(("line", "code", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_the_wrong_thing_gets_one_sentence(line: str, code: int, sentence: str, robust: Robust, files: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in files.rglob("*")}
    printed = robust(*line.split())
    assert printed.code == code
    last = printed.err.strip().splitlines()[-1]
    assert last.startswith("robust: ")
    assert sentence in last
    assert "Traceback" not in printed.err
    assert printed.out == ""
    assert {path: path.stat().st_mtime_ns for path in files.rglob("*")} == before


COMMANDS = (
    "train", "evaluate", "export", "inspect", "predict", "certify", "summary", "verify", "report", "serve", "bench",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_without_arguments_says_what_is_missing(command: str, robust: Robust) -> None:
    printed = robust(command)
    assert printed.code == 2
    assert "Missing argument" in printed.err or "Give " in printed.err or "Missing option" in printed.err
    assert printed.out == ""


@pytest.mark.parametrize("command", ["quickstart", *COMMANDS])
def test_help_has_a_sentence_and_its_options(command: str, robust: Robust) -> None:
    printed = robust(command, "--help")
    assert printed.code == 0
    assert f"robust {command}" in printed.out
    assert "--help" in printed.out


def test_robust_alone_lists_every_command(robust: Robust) -> None:
    printed = robust()
    assert printed.code in (0, 2)
    shown = printed.out + printed.err
    for command in ("quickstart", *COMMANDS):
        assert command in shown


def test_unknown_commands_and_options_are_misuse(robust: Robust) -> None:
    assert robust("frobnicate").code == 2
    assert "No such option" in robust("inspect", "model.onnx", "--frobnicate").err


def test_version(robust: Robust) -> None:
    from robustinfer import __version__

    printed = robust("--version")
    assert (printed.code, printed.out) == (0, f"robust {__version__}\n")


def test_help_loads_neither_torch_nor_scipy() -> None:
    program = (
        "import sys; sys.argv = ['robust', '--help']\n"
        "from robustinfer.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'scipy', 'onnxruntime', 'matplotlib'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"), [(["--version"], 0, "robust "), (["inspect", "gone.onnx"], 2, "gone")]
)
def test_one_of_several_processes_ends_at_once(words: list[str], code: int, said: str) -> None:
    """Threads of torch may outlive a distributed training: they neither keep it waiting nor cut off what it said."""
    program = (
        "import sys, threading\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
        "from robustinfer.cli.main import main\n"
        f"sys.argv = ['robust', *{words}]\n"
        "main()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"WORLD_SIZE": "2"}, capture_output=True, text=True
    )
    assert ended.returncode == code, ended.stderr
    assert said in (ended.stderr if code else ended.stdout)


def test_bench_prints_a_table_or_json(robust: Robust, files: Path) -> None:
    printed = robust("bench", "model.onnx", "--batches", "1,8", "--seconds", "0.01", "--json")
    found = json.loads(printed.out)
    assert [rate["batch"] for rate in found["engine"]] == [1, 8]
    assert found["batch"] in (1, 8)
    assert found["flops"] == 2 * 64 * 10
    assert found["limit"] == pytest.approx(found["gflops"] * 1e9 / found["flops"])
    assert found["share"] == pytest.approx(found["certify"] / found["limit"])
    table = robust("bench", "model.onnx", "--batches", "4", "--seconds", "0.01").out
    assert "engine alone" in table
    assert "certificates run at" in table


def test_bench_compares_files_in_one_run(robust: Robust, files: Path) -> None:
    words = ("bench", "model.onnx", "model.onnx", "--data", "digits", "--batches", "2,4", "--seconds", "0.01")
    found = json.loads(robust(*words, "--json").out)
    assert found["files"][0]["times"] == 1.0
    assert all(row["rate"] > 0 and row["batch"] in (2, 4) for row in found["files"])
    assert found["fastest"] == "model.onnx"
    assert "model.onnx is the fastest on this machine" in robust(*words).out


def test_bench_names_the_fastest_of_several_files(robust: Robust, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever it is: here the second of the two, as far as the measurement goes."""
    shutil.copy(files / "model.onnx", files / "other.onnx")
    rows = tuple(FileSpeed(name, "sha256:x", 4, rate, rate / 100) for name, rate in (("a", 100.0), ("b", 250.0)))
    monkeypatch.setattr(throughput, "compare_throughput", lambda *given, **options: rows)
    words = ("bench", "model.onnx", "other.onnx")
    assert json.loads(robust(*words, "--json").out)["fastest"] == "other.onnx"
    assert robust(*words).out.splitlines()[-1] == "other.onnx is the fastest on this machine"


def test_ctrl_c_leaves_certificates_that_go_on(files: Path) -> None:
    words = [
        "certify", "model.onnx", "--data", "digits", "--n", "3000",
        "--seed", "1", "--limit", "100", "--threads", "1", "--out", "c.jsonl",
    ]  # fmt: skip
    moment = Moment("robustinfer.certificate_file:_append", 4, number=signal.SIGINT)
    stopped = subprocess.run(interrupted(moment, *words), cwd=files, capture_output=True, text=True)
    assert stopped.returncode == 130, stopped.stderr
    assert stopped.stdout == ""
    assert "run the same command again to resume" in stopped.stderr
    path = files / "c.jsonl"
    _, before = read_certificates(path)
    assert 3 <= len(before) < 100
    robust = str(Path(sys.executable).with_name("robust"))
    finished = subprocess.run([robust, *words], cwd=files, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    _, entries = read_certificates(path)
    assert entries[: len(before)] == before
    assert [entry.index for entry in entries] == list(range(100))


def test_ctrl_c_between_files_prints_what_is_finished(
    robust: Robust, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes in the sixth run of 64 samples: the first image, with its 310 samples, is done by then."""
    from robustinfer.crew import Crew

    runs, draw = [0], Crew.draw

    def interrupted(*arguments: Any) -> int:
        runs[0] += 1
        if runs[0] == 6:
            signal.raise_signal(signal.SIGINT)
        return draw(*arguments)

    monkeypatch.setattr(Crew, "draw", interrupted)
    (files / "six.png").write_bytes((files / "five.png").read_bytes())
    printed = robust("certify", "model.onnx", "five.png", "six.png", "--n", "300", "--batch", "64", "--json")
    assert printed.code == 130
    assert [json.loads(line)["file"] for line in printed.out.splitlines()] == ["five.png"]
    told = re.search(r"1 of 2 images have no certificate; (\d+) samples were drawn for them", printed.err)
    assert told is not None
    assert 0 < int(told[1]) < 310


def test_verify_says_what_is_proven_in_its_own_words(robust: Robust, files: Path) -> None:
    """A document without a domain carries the sentence of 0.1, which speaks of every change of the image."""
    line = robust("certify", "model.onnx", "five.png", "--n", "300", "--seed", "7", "--json").out
    document = json.loads(line)
    assert not document["abstained"]
    old = "no change of the image with l2 norm below the radius alters the label of the smoothed classifier; wrong with"
    (files / "new.json").write_text(line)
    del document["domain"]
    (files / "old.json").write_text(json.dumps(document | {"guarantee": f"{old} probability at most alpha"}))
    for name in ("new.json", "old.json"):
        printed = robust("verify", name, "--model", "model.onnx", "--image", "five.png")
        assert printed.code == 0
        assert printed.out.splitlines()[1] == f"proven: {json.loads(line)['guarantee']}"


def test_a_signed_line_lends_its_signature_to_no_other(robust: Robust, files: Path) -> None:
    """The first of two lines of one image was looked up in the signatures, and the last one was replayed."""
    work = ["certify", "model.onnx", "--data", "digits", "--limit", "2", "--n", "100", "--out"]
    assert robust(*work, "one.jsonl", "--seed", "7").code == robust(*work, "two.jsonl", "--seed", "8").code == 0
    assert robust("keygen", "key").code == robust("sign", "one.jsonl", "two.jsonl", "--key", "key").code == 0
    check = ["verify", "one.jsonl", "--index", "0", "--key", "key.pub"]
    assert robust(*check).code == 0
    one, two = ((files / name).read_bytes().splitlines(keepends=True) for name in ("one.jsonl", "two.jsonl"))
    for forged, sentence in (
        ([*one, two[1]], "image 0 appears twice"),
        ([two[0], *one[1:]], "image 0 has another seed than the one that follows from the header"),
        ([one[0].replace(b"digits", b"mnist"), *one[1:]], "The signature does not match"),
    ):
        (files / "one.jsonl").write_bytes(b"".join(forged))
        printed = robust(*check)
        assert printed.code == 1
        assert sentence in printed.err


def test_one_image_has_the_noise_of_its_seed(robust: Robust, files: Path) -> None:
    predictor = Predictor.load(files / "model.onnx")
    image = read_image(files / "five.png", predictor.card.input)
    expected = predictor.certify(image, n=300, seed=7).to_json() | {"seconds": 0}
    found = json.loads(robust("certify", "model.onnx", "five.png", "--n", "300", "--seed", "7", "--json").out)
    plain = int(predictor.scores(image)[0].argmax())
    beside = {"file": "five.png", "plain": {"label": plain, "class_name": predictor.card.classes[plain]}}
    assert found | {"seconds": 0} == json.loads(json.dumps(expected)) | beside
    assert Certificate.from_json(found).to_json() | {"seconds": 0} == expected  # `robust verify` reads it as it is
    (files / "six.png").write_bytes((files / "five.png").read_bytes())
    lines = robust("certify", "model.onnx", "five.png", "six.png", "--n", "300", "--seed", "7", "--json").out
    seeds = [json.loads(line)["seed"] for line in lines.splitlines()]
    assert seeds == [derive_seed(7, 0), derive_seed(7, 1)]  # two images never share their noise


GROUP: Any = get_command(app)


@pytest.mark.parametrize("name", GROUP.commands)
def test_prose_of_help_breaks_where_the_terminal_ends_and_examples_stay_lines(name: str) -> None:
    for paragraph in GROUP.commands[name].help.split("\n\n"):
        lines = paragraph.split("\n")
        assert len(lines) == 1 or all(re.fullmatch(r"\[bold\]robust .*\[/bold\]", line) for line in lines), paragraph


@pytest.mark.parametrize("name", GROUP.commands)
def test_help_shows_an_example_of_the_command(name: str) -> None:
    assert re.search(rf"^\[bold\]robust {name}\b.*\[/bold\]$", GROUP.commands[name].help, re.MULTILINE)
