"""The examples that cannot run in a test, why, and the part of each that is run instead."""

import argparse
import importlib.metadata
import json
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import tomllib
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from robustinfer.attacked import read_attacked
from robustinfer.certificate_file import read_certificates, shard_path
from robustinfer.files import sha256

from ..waiting import PATIENCE
from .conftest import ROOT
from .pages import Example, read

if TYPE_CHECKING:
    from .running import Runner

__all__ = ["TABLE", "instead"]


def _make(example: Example, runner: "Runner") -> None:
    """What make would do; then the same without make: the small quickstart, and the documentation in a copy."""
    target = example.text.split()[1]
    # `-o` takes the installation for done. These tests are started by make themselves: its options are not inherited.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    dry = subprocess.run(
        ["make", "-n", "--no-print-directory", "-o", ".venv/.installed", target],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert dry.returncode == 0, dry.stderr
    planned = dry.stdout.splitlines()
    if target == "quickstart":
        assert planned == [".venv/bin/robust quickstart"]
        printed = runner.quickstart.finished
        assert _wording(example.printed) - {"..."} <= _wording(printed.err + printed.out)
    elif target == "docs":
        assert planned == [".venv/bin/python docs/build.py"]
        _build_documentation(runner.folder)
    for line in re.findall(r"^\.venv/bin/.*$", example.printed, re.MULTILINE):
        assert line in planned, line


def _wording(printed: str) -> set[str]:
    """Lines without their figures, and without the folder of the command, which depends on who called it."""
    plain = re.sub(r"(^  |`)(?:[^\s`]*/)?robust ", r"\1robust ", printed, flags=re.MULTILINE)
    return {re.sub(r"\d[\d.,]*", "#", line).rstrip() for line in plain.splitlines()}


def _build_documentation(folder: Path) -> None:
    """In a copy; the options and the results in the pages are what comes out."""
    for name in ("docs", "README.md", "benchmarks/results"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["build.py"])
        runpy.run_path(str(folder / "docs" / "build.py"), run_name="__main__")
    for page in ("docs/command-line.md", "README.md"):
        assert (folder / page).read_text() == (ROOT / page).read_text(), "run `make docs`"


def _pip(example: Example, runner: "Runner") -> None:
    """The extras are those of the package, other names those of its requirements, and the files are there."""
    words = shlex.split(example.text)[2:]
    known = importlib.metadata.metadata("robustinfer").get_all("Provides-Extra") or []
    needed = {re.split(r"[^\w-]", line)[0] for line in importlib.metadata.requires("robustinfer") or []}
    for word in words:
        name, _, extras = word.rstrip("]").partition("[")
        assert set(filter(None, extras.split(","))) <= set(known), word
        assert name in {"-c", "-e", "robustinfer", "uvicorn", *needed} or (ROOT / name).exists(), word


def _docker(example: Example, runner: "Runner") -> None:
    """The arguments of a build are those of the Dockerfile; those of a run are checked by its entry point."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    words = shlex.split(example.text)
    assert words[1] in ("build", "run"), example
    for number, word in enumerate(words):
        if word == "--build-arg":
            name, _, value = words[number + 1].partition("=")
            assert f"ARG {name}=" in dockerfile
            if name == "FLAVOUR":
                assert f"base-{value}" in dockerfile
            else:  # an extra, as "${ENGINE}" in the installation
                assert value in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    if words[1] == "run":
        (entrypoint,) = re.findall(r"^ENTRYPOINT (.*)$", dockerfile, re.MULTILINE)
        entry = json.loads(entrypoint)
        mounted = words[-1].replace("/models", str(runner.folder / "models"))
        finished = runner.robust(*entry[1:], mounted, "--check")
        assert finished.code == 0, finished.err


class _ParsedError(Exception):
    """The options of a script were understood."""


def _benchmark(example: Example, runner: "Runner") -> None:
    """The script is imported and understands its options."""
    words = shlex.split(example.text)[1:]
    parse = argparse.ArgumentParser.parse_args

    def stop(parser: argparse.ArgumentParser) -> None:
        parse(parser)
        raise _ParsedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", words)
        patch.setattr(argparse.ArgumentParser, "parse_args", stop)
        patch.syspath_prepend(str((ROOT / words[0]).parent))  # as python does it, and undone with what the script adds
        with pytest.raises(_ParsedError):
            runpy.run_path(str(ROOT / words[0]), run_name="__main__")


def _recorded(example: Example, runner: "Runner") -> None:
    """The certificate is in the repository, made by the model beside it; tests/benchmarks replays one of them."""
    words = shlex.split(example.text)
    options = dict(zip(words[3::2], words[4::2], strict=True))
    assert set(options) == {"--index", "--data", "--model"}
    _, entries = read_certificates(ROOT / words[2])
    (found,) = [entry.certificate for entry in entries if entry.index == int(options["--index"])]
    assert found.model.digest == sha256(ROOT / options["--model"])


def _triton(example: Example, runner: "Runner") -> None:
    """The repository that an earlier line of the page made has what Triton looks for, and the page names."""
    folder = runner.folder / example.text.partition("--model-repository=")[2]
    (model,) = [path for path in folder.iterdir() if path.is_dir()]
    assert {path.name for path in model.iterdir()} == {"config.pbtxt", "labels.txt", "1"}
    shown = re.findall(r"`(\S+/config\.pbtxt|\S+/model\.onnx)`", read(example.page))
    assert shown
    for name in shown:
        places = (runner.folder, folder, model)
        assert any((place / name.replace("NAME", model.name)).is_file() for place in places), name


def _uvicorn(example: Example, runner: "Runner") -> None:
    """The application answers without its server; tests/docs/test_examples.py asks it more."""
    client_type = pytest.importorskip("fastapi.testclient").TestClient
    model, _, _, folder, application = shlex.split(example.text)
    module, _, name = application.partition(":")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(runner.folder)
        patch.setenv(*model.split("="))
        found = runpy.run_path(f"{folder}/{module}.py")
        with client_type(found[name]) as client:
            assert client.get("/model").status_code == 200


def _ray(example: Example, runner: "Runner") -> None:
    """An actor without its cluster: its shard is the one that the command line writes."""
    words = shlex.split(example.text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(runner.folder)
        patch.setitem(sys.modules, "ray", types.ModuleType("ray"))
        actor = runpy.run_path(words[1])["ShardCertifier"]
    model, own, theirs = (runner.folder / name for name in (words[2], "ray.jsonl", "command.jsonl"))
    images = actor(str(model), "digits", str(own), 60, seed=1, n=200, alpha=0.001)({"id": [3]})["images"]
    command = ("certify", words[2], "--data", "digits", "--shard", "3/60", "--seed", "1", "--n", "200")
    assert runner.robust(*command, "--out", str(theirs)).code == 0
    (header, found), (same, expected) = (read_certificates(shard_path(path, (3, 60))) for path in (own, theirs))
    assert (header, [len(found)]) == (same, list(images))
    assert [one.certificate.counts for one in found] == [one.certificate.counts for one in expected]


def _activate(example: Example, runner: "Runner") -> None:
    """The environment of these tests has the file, and it puts `robust` on the path."""
    script = Path(sys.executable).with_name(Path(example.text.split()[1]).name)
    if script.is_file():  # an environment that is not a venv has none
        finished = runner.process(f"PATH=/usr/bin:/bin; . {shlex.quote(str(script))} && command -v robust")
        assert Path(finished.out.strip()) == script.with_name("robust")


def _precommit(example: Example, runner: "Runner") -> None:
    """The configuration that would be installed is a valid one."""
    finished = runner.process(f"pre-commit validate-config {ROOT / '.pre-commit-config.yaml'}")
    assert finished.code == 0, finished.out


def _wrap(example: Example, runner: "Runner") -> None:
    """The options are understood: the first thing that is missing is the file that the example names."""
    words = [word for word in shlex.split(example.text)[1:] if word != "..."]
    finished = runner.robust(*words, *([] if "--classes" in words else ["--classes", "labels.txt"]))
    assert finished.code, finished.out
    assert "labels.txt" in finished.err, finished.err


def _start(example: Example, runner: "Runner") -> None:
    """The options are understood, and what is missing is the network that the example names."""
    words = shlex.split(example.text)[1:]
    if "--data" in words:  # the images are the reader's own, too
        words[words.index("--data") + 1] = "digits"
    finished = runner.robust(*words, "--set", "data=digits")
    assert finished.code, finished.out
    assert words[words.index("--from") + 1].partition(":")[0] in finished.err, finished.err


def _demo(example: Example, runner: "Runner") -> None:
    """The same without a browser, until the page has answered."""
    words = example.text.split()[1:]
    command = [str(Path(sys.executable).with_name("robust")), *words, "--no-browser"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("ROBUST_SERVE_TOKEN", None)
    process = subprocess.Popen(
        command,
        cwd=runner.folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    waited = threading.Timer(PATIENCE, process.kill)
    waited.start()
    try:
        assert process.stdout is not None
        address, _, token = process.stdout.readline().removeprefix("page: ").strip().partition("#token=")
        assert "What does a certificate prove?" in httpx.get(address, timeout=PATIENCE).text
        models = httpx.get(
            f"{address}api/models", headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE
        ).json()
        expected = [Path(word).stem for word in words[1:]] or ["digits", "first-member"]
        assert [model["name"] for model in models["models"]] == expected
        assert models["models"][0]["ordinary"]
        # How many pictures fool the ordinary network of a small quickstart, if any, depends on the processor.
        beside = (runner.folder / (words[1:] or ["quickstart/digits.onnx"])[0]).with_name("attacked.npz")
        count = len(read_attacked(beside).examples)
        shown = [one["attacked"] for one in models["models"][0]["examples"]]
        assert shown == [number < count for number in range(len(shown))]
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    finally:
        waited.cancel()
        process.kill()
        process.communicate()


# What an example starts with, why it cannot run, and what runs instead.
TABLE: dict[str, tuple[str, Callable[[Example, "Runner"], None]]] = {
    "make ": ("installs this environment, runs these tests, or writes into the repository", _make),
    "source .venv/bin/activate": ("is for an interactive shell", _activate),
    "pip install ": ("installs into this environment", _pip),
    "docker ": ("needs a Docker daemon", _docker),
    "python benchmarks/": ("measures for minutes to hours, most of them on data that is not here", _benchmark),
    "robust verify benchmarks/": ("needs MNIST, which is not here", _recorded),
    "tritonserver ": ("needs an installation of Triton", _triton),
    "python examples/certify_with_ray.py ": ("needs Ray, which is not a dependency", _ray),
    "MODEL=quickstart/digits.onnx uvicorn ": ("needs uvicorn, which no other test needs", _uvicorn),
    "robust demo": ("serves until somebody ends it, and opens a browser", _demo),
    "robust train finetune-l2 --from mynet": ("needs a network trained elsewhere", _start),
    "robust train digits-l2 --from stage": ("needs a member of another run", _start),
    "robust wrap ": ("needs a network trained elsewhere", _wrap),
    ".venv/bin/pre-commit install": ("writes a hook into the repository", _precommit),
}


def instead(example: Example, runner: "Runner") -> bool:
    """Run the part that can be run, if the example stands in the table."""
    for start, (_, part) in TABLE.items():
        if example.kind == "command" and example.text.startswith(start):
            part(example, runner)
            return True
    return False
