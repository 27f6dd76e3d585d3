"""Runs the examples of a page one after the other in one folder, as a reader would."""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from robustinfer.data import digits

from ..waiting import PATIENCE
from .conftest import ENVIRONMENT, ROOT, Finished, Quickstart, robust
from .pages import Example, read
from .served import Served
from .smaller import smaller_command, smaller_python, smaller_words
from .unrunnable import instead

__all__ = ["Runner", "run_all"]

# What differs from one answer of the server to the next.
_VOLATILE = {
    "label", "class_name", "abstained", "radius", "radius_linf", "radius_l1", "p_lower", "p_upper_runner_up", "counts",
    "seed", "image", "digest", "seconds", "request_id",
}  # fmt: skip
_DRAWN = ("your data ──▶ train", "radius = sigma/2 (Phi^-1(p_A)", "D_{t+1}(i)  ~  D_t(i) exp")


class Runner:
    """The folder of one page, and what its examples have left: names of Python, the last output, the last answer."""

    def __init__(self, folder: Path, quickstart: Quickstart, served: Served | None) -> None:
        self.folder = folder
        self.quickstart = quickstart
        self.served = served
        self.names: dict[str, Any] = {"token": served.token} if served else {}
        self.answer: Any = None
        _furnish(folder, quickstart)

    def run(self, example: Example) -> None:
        """Run an example, or the part of it that a test can run, and compare what the page shows of its output."""
        if example.kind == "mention" or instead(example, self):
            return
        getattr(self, f"_{example.kind}")(example)

    def process(self, text: str) -> Finished:
        """Run a shell's command line with the programs of this environment."""
        own = {**ENVIRONMENT, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        own |= self.served.environment() if self.served else {}
        done = subprocess.run(
            ["/bin/sh", "-c", text], cwd=self.folder, env=own, capture_output=True, text=True, timeout=250
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def _command(self, example: Example) -> None:
        text = smaller_command(example.text)
        text = self.served.here(text) if self.served else text
        if text.startswith("robust "):
            self._robust(example, text)
        elif text.startswith("curl "):
            self._curl(text)
        else:
            finished = self.process(text)
            assert finished.code == 0, finished.err
            assert not example.printed

    def _robust(self, example: Example, text: str) -> None:
        text, _, file = text.partition(" > ")
        words = shlex.split(text)
        words[1:] = [found for word in words[1:] for found in self._expanded(word)]
        small = smaller_words(words)
        # torch.compile, which a probe measures, warns of itself, and warnings are errors in this process.
        finished = self.process(shlex.join(["robust", *small])) if "--probe" in small else self.robust(*small)
        if example.printed.startswith("robust: "):
            assert finished.code in (1, 2)
            assert finished.err.strip() == example.printed
            return
        assert finished.code == 0, finished.err
        if file:
            (self.folder / file).write_text(finished.out)
        if words[1] == "serve":
            self._compare_server(example, json.loads(finished.out))
        else:
            assert not example.printed, "nothing compares this output with the page"

    def robust(self, *words: str) -> Finished:
        """Run the command line in this process."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (self.served.environment() if self.served else {}).items():
                patch.setenv(name, value)
            return robust(*words, cwd=self.folder)

    def _expanded(self, word: str) -> list[str]:
        """As a shell does."""
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.glob(word)) if "*" in word else [word]

    def _compare_server(self, example: Example, checked: dict[str, Any]) -> None:
        """The command was only checked: the server that runs here serves the same file, and printed what is shown."""
        if self.served is not None:
            with self.served.http() as client:
                digest = client.get("/predictions/digits").json()["model"]["digest"]
            assert {model["digest"] for model in checked["models"]} == {digest}
        if example.printed:
            assert self.served is not None
            assert example.printed == self.served.there()

    def _curl(self, text: str) -> None:
        finished = self.process(f"{text} --silent --show-error --max-time {PATIENCE}")
        assert finished.code == 0, finished.err
        self.answer = json.loads(finished.out)
        if "n=500000" not in text:  # the one request that is shown to be refused
            assert "error" not in self.answer, self.answer

    def _json(self, example: Example) -> None:
        _assert_alike(json.loads(example.text), self.answer)

    def _python(self, example: Example) -> None:
        text = smaller_python(example.text)
        text = self.served.here(text) if self.served else text
        program = compile("\n" * (example.line - 1) + text, str(ROOT / example.page), "exec")
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
            patch.chdir(self.folder)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)  # TorchScript is one of the formats
                exec(program, self.names)
        for shown, printed in re.findall(r"print\(.*?(# Replay\((.*?), \.\.\.\))", text):
            assert printed in out.getvalue(), shown

    def _toml(self, example: Example) -> None:
        """A recipe; the page may train it by this name later, and if not, it is trained here."""
        (self.folder / "my-recipe.toml").write_text(example.text)
        if "robust train my-recipe.toml" not in read(example.page):
            learns = "--set delta=0.01 --set limit=600 --set epochs=3 --set optimizer=adam --set learning_rate=0.01"
            words = shlex.split(f"robust train my-recipe.toml {learns} --set width=0.5")
            finished = self.robust(*smaller_words(words))
            assert finished.code == 0, finished.err

    def _yaml(self, example: Example) -> None:
        """A job of Kubernetes: as its schema wants it, and its command does one of its shards."""
        import kubernetes_validate
        import yaml

        document = yaml.safe_load(example.text)
        kubernetes_validate.validate(document, "1.30", strict=True)
        (container,) = document["spec"]["template"]["spec"]["containers"]
        (line,) = container["args"]
        assert container["command"] == ["/bin/sh", "-c"]
        (self.folder / "shared").mkdir()
        shutil.copy(self.folder / "cifar.onnx", self.folder / "shared")
        small = smaller_command(line.replace("robust certify", "robust certify --limit 32"))
        finished = self.process(f"JOB_COMPLETION_INDEX=3; {small}")
        assert finished.code == 0, finished.err
        assert (self.folder / "shared" / f"cifar-3-of-{document['spec']['completions']}.jsonl").is_file()

    def _promql(self, example: Example) -> None:
        """The metrics and labels are those that the server has."""
        assert self.served is not None
        import httpx

        shown = httpx.get(self.served.metrics, timeout=250).text
        for name, labels in re.findall(r"(robust_\w+)\{(.*?)\}", example.text):
            for label in labels.split(", "):
                assert re.search(rf"^{name}\{{.*{re.escape(label)}", shown, re.MULTILINE), (name, label)

    def _text(self, example: Example) -> None:
        """A formula, a picture, or the listing of a run folder."""
        if example.text.startswith(_DRAWN):
            return
        names = [line.split("  ")[0] for line in example.text.splitlines()]
        run = self.folder / "runs" / "digits"
        missing = {name for name in names if not (run / name).exists()}
        # A stage that is done has nothing to resume, and a run from random parameters nothing it started from.
        assert missing <= {"resume.safetensors", "start.safetensors"}, missing


def run_all(examples: Iterable[Example], runner: Runner) -> None:
    """Run the examples of a page in their order; an error says which one it was."""
    for example in examples:
        try:
            runner.run(example)
        except Exception as error:
            raise AssertionError(str(example)) from error


def _assert_alike(shown: Any, found: Any) -> None:
    """The same keys everywhere, and the same values where they do not depend on the model and the noise."""
    if not isinstance(shown, dict):
        assert shown == found
        return
    assert set(shown) == set(found)
    for key in set(shown) - _VOLATILE:
        _assert_alike(shown[key], found[key])


def _furnish(folder: Path, quickstart: Quickstart) -> None:
    """What the pages suppose to be there: the quickstart, model files, pictures, and the files of the repository."""
    shutil.copytree(quickstart.out, folder / "quickstart")
    (folder / "models").mkdir()
    for name in ("digits.onnx", "cifar.onnx", "m.onnx", "models/digits.onnx"):
        shutil.copy(quickstart.out / "digits.onnx", folder / name)
    images, labels = digits("train")
    for number in range(120):
        path = folder / "pictures" / ("even" if labels[number] % 2 == 0 else "odd") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[number, 0]).save(path)
    for name in ("examples", "benchmarks"):
        ignored = shutil.ignore_patterns("__pycache__", "results", "plots")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
