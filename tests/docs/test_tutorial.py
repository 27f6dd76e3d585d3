"""The tutorial's two paths, from its first example to an answer of its server; with less work, and as they stand."""

import contextlib
import io
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from robustinfer.certificate import Certificate
from robustinfer.certificate_file import read_certificates

from ..waiting import PATIENCE
from .conftest import ENVIRONMENT, ROOT, robust
from .pages import Example, examples
from .served import serve
from .smaller import smaller_words
from .test_pages import TUTORIAL

START = "robust data "  # the first command of the first path
SECOND = "robust wrap "  # and of the second


def paths() -> tuple[list[Example], list[Example]]:
    """The examples of each path; the second one starts with the network that it is about."""
    found = [example for example in examples(TUTORIAL) if example.kind != "mention"]
    second = next(number for number, example in enumerate(found) if example.text.startswith("# mynet.py"))
    return found[:second], found[second:]


def commands(path: list[Example]) -> list[str]:
    return [example.text for example in path if example.kind == "command"]


def test_each_path_has_at_most_eight_commands() -> None:
    first, second = map(commands, paths())
    assert len(first) <= 8
    assert len(second) <= 8
    assert first[0].startswith(START)
    assert second[0].startswith(SECOND)
    for path in (first, second):
        assert path[-2].startswith("robust serve ")
        assert path[-1].startswith("curl ")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A new folder to be in, with a `mynet` of its own and a path as it was before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    sys.modules.pop("mynet", None)
    yield tmp_path
    sys.modules.pop("mynet", None)


def program(example: Example, folder: Path) -> None:
    """A program of the page: run, or written to the file that its first line names."""
    first = example.text.splitlines()[0]
    if first.startswith("# ") and first.endswith(".py"):
        (folder / first.removeprefix("# ")).write_text(example.text)
        return
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(example.text, str(ROOT / example.page), "exec"), {})


def test_both_paths_run(here: Path) -> None:
    """With little training and few samples, and with servers that are checked but not started."""
    for path in paths():
        for example in path:
            if example.kind == "python":
                program(example, here)
            elif not example.text.startswith("curl "):
                words = shlex.split(example.text)
                if words[1] in ("train", "certify"):
                    words += ["--threads", "1"]
                if words[1] == "certify":
                    words[words.index("--limit") + 1], words[words.index("--n") + 1] = "10", "200"
                finished = robust(*smaller_words(words), cwd=here)
                assert finished.code == 0, f"{example}\n{finished.err}"
    for name in ("images", "before", "mynet"):
        assert len(read_certificates(here / f"{name}.jsonl")[1]) == 10
    assert {"images.html", "mynet.html", "sheet.png"} <= {path.name for path in here.iterdir()}


@pytest.mark.slow
@pytest.mark.server
def test_both_paths_as_they_stand_end_in_certificates_of_a_server(here: Path) -> None:
    right = {}
    for path in paths():
        for example in path:
            if example.kind == "python":
                program(example, here)
            elif example.text.startswith("robust serve "):
                answer = asked(here, example.text, next(text for text in commands(path) if text.startswith("curl ")))
                assert answer.model.name in ("images", "mynet")
                assert answer.n == 10_000
            elif not example.text.startswith("curl "):
                finished = robust(*shlex.split(example.text)[1:], cwd=here)
                assert finished.code == 0, f"{example}\n{finished.err}"
                if example.text.startswith("robust wrap "):
                    assert "under sigma 0.5 this network keeps" in finished.err
    for name in ("images", "before", "mynet"):
        _, entries = read_certificates(here / f"{name}.jsonl")
        right[name] = sum(entry.correct and entry.certificate.radius >= 0.25 for entry in entries)
    assert right["images"] >= 50  # of 100
    assert right["mynet"] > right["before"]


def asked(folder: Path, served: str, curl: str) -> Certificate:
    """Start the server that the page starts, and give it the page's request."""
    with serve(folder, served.split()[-1], folder / "serve.log") as server:
        environment = {**ENVIRONMENT, **server.environment()}
        command = f"{server.here(curl)} --silent --show-error --max-time {PATIENCE}"
        done = subprocess.run(
            ["/bin/sh", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=250
        )
    assert done.returncode == 0, done.stderr
    return Certificate.from_json(json.loads(done.stdout))
