"""Kills: training, certification, export and distillation are killed with -9 at random moments, and nothing is lost.

    python benchmarks/trust/kills.py --kills 1000 --work /tmp/kills

Every round works in a folder of its own. A real process does the job and is killed at a moment drawn from a fixed seed;
another one takes the job up again, and is killed in turn, until one reaches the end. After each kill, whatever has a
final name must be whole and equal to what an uninterrupted process wrote, and nothing that was there before may be
missing. At the end everything must be equal: the bytes of members and model files, betas, lines of metrics and of
certificates (except for the seconds in them), each exactly once.

The processes are forked from one that has imported everything, so that a round costs the job and not the imports. The
record is written after each round; a second call continues with the round after.
"""

# ruff: noqa: E402 (the threads are limited before anything that starts some is imported)

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"  # a process with threads cannot be forked

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime  # noqa: F401 (imported before the fork)
import robust.export.exporter
import sklearn.datasets  # noqa: F401
import torch
from matplotlib.backends import backend_agg  # noqa: F401
from robust.train import Recipe, Run, train
from robust.train.distillation import distill
from robust.train.stage.trainer import StageTrainer

from robustinfer import Predictor
from robustinfer.certificate_file import certify_data
from robustinfer.data import load_images
from robustinfer.files import sha256

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.record import environment, write_record

RECORD = Path(__file__).parents[1] / "results" / "kills.json"
SEED = 20
SHARES = {"training": 0.4, "certification": 0.3, "export": 0.15, "distillation": 0.15}
RECIPE = Recipe(
    name="kills",
    data="digits",
    limit=64,
    width=0.125,
    stages=2,
    epochs=3,
    growth=1.0,
    batch=16,
    norm="l2",
    delta=0.5,
    sigma=0.25,
    smoothing="softmax",
    steps=2,
    previous="exact",
    refit=True,
    optimizer="adam",
    validation=0.02,
    validation_images=20,
    select="best",
    checkpoint_seconds=0,
)
IMAGES, SAMPLES = 40, 2000
MOST_KILLS = 12  # in one round; then its last process is left alone
# A kill comes within this part of the time that the whole job takes. Jobs that keep what they have done get further
# with each process, so short lives reach every moment of theirs, too; an export begins anew each time.
LIFE = {"training": 0.4, "certification": 0.4, "export": 1.0, "distillation": 0.4}


class BrokenError(AssertionError):
    """Something was lost, repeated, or differs."""


class Job(ABC):
    """One kind of work: how to do it in a folder, and what must be true of the folder."""

    def __init__(self, given: Path) -> None:
        self.given = given

    @abstractmethod
    def work(self, folder: Path) -> None:
        """Do the whole job, or what is left of it."""

    @abstractmethod
    def facts(self, folder: Path) -> dict[str, Any]:
        """Everything finished that the folder holds, by name; values must be equal to those of the reference."""

    def check(self, folder: Path, before: dict[str, Any], reference: dict[str, Any]) -> dict[str, Any]:
        """The facts after a kill: none lost, none that the uninterrupted process did not write."""
        found = self.facts(folder)
        if lost := before.keys() - found.keys():
            raise BrokenError(f"lost {sorted(lost)[0]}")
        for name, value in found.items():
            if name not in reference or value != reference[name]:
                raise BrokenError(f"{name} differs from the uninterrupted process")
        return found


class Training(Job):
    def work(self, folder: Path) -> None:
        train(RECIPE, folder / "run", device="cpu", resume=True)

    def facts(self, folder: Path) -> dict[str, Any]:
        return run_facts(folder / "run")


class Distillation(Job):
    def work(self, folder: Path) -> None:
        distill(Run.open(self.given / "run"), folder / "run", epochs=6, device="cpu", resume=True)

    def facts(self, folder: Path) -> dict[str, Any]:
        return run_facts(folder / "run")


class Certification(Job):
    def work(self, folder: Path) -> None:
        predictor = Predictor.load(self.given / "model.onnx", device="cpu", threads=1)
        images = load_images("digits", predictor.card)
        for _ in certify_data(predictor, images, folder / "c.jsonl", limit=IMAGES, seed=SEED, n=SAMPLES):
            pass

    def facts(self, folder: Path) -> dict[str, Any]:
        file = folder / "c.jsonl"
        lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
        found: dict[str, Any] = {}
        for line in map(json.loads, lines):
            name = "header" if "header" in line else f"image {line['index']}"
            if name in found:
                raise BrokenError(f"{name} stands twice in the certificates")
            if "certificate" in line:
                del line["certificate"]["seconds"]
            found[name] = line
        return found


class Export(Job):
    """The file of another version is there before: a kill leaves it, or the new one, and no third thing."""

    def work(self, folder: Path) -> None:
        target = folder / "model.onnx"
        if not target.exists():
            shutil.copy(self.given / "old.onnx", folder / "copy.onnx")
            (folder / "copy.onnx").replace(target)
        robust.export.exporter.export_run(self.given / "run", target, samples=200)

    def facts(self, folder: Path) -> dict[str, Any]:
        target = folder / "model.onnx"
        if not target.exists():
            return {}
        digest = sha256(target)
        if digest == sha256(self.given / "old.onnx"):
            return {"a model file": "whole"}
        Predictor.load(target, device="cpu", threads=1)
        return {"a model file": "whole", "new": digest}


JOBS: dict[str, type[Job]] = {
    "training": Training,
    "certification": Certification,
    "export": Export,
    "distillation": Distillation,
}


def run_facts(folder: Path) -> dict[str, Any]:
    """Stages, their parameters and betas, and the lines of metrics of finished stages."""
    if not (folder / "recipe.toml").exists():
        return {}
    run = Run.open(folder)
    found: dict[str, Any] = {"recipe": run.recipe.to_json()}
    for stage in run.stages:
        run.member(stage.number)  # its digest is checked
        document = stage.to_json()
        del document["seconds"]
        found[f"stage {stage.number}"] = {**document, "bytes": stage.path.read_bytes().hex()}
    if not run.finished:
        return found
    for line in map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()):
        name = " ".join(str(line[key]) for key in ("kind", "stage", "epoch", "step"))
        if name in found:
            raise BrokenError(f"the line {name} stands twice in the metrics")
        del line["seconds"]
        found[name] = line
    if left := [name for name in ("resume.safetensors", "resume.json") if (folder / name).exists()]:
        found.update(dict.fromkeys(left, "left"))
    return found


def forked(task: Callable[[], None], log: Path, kill_after: float | None = None) -> int:
    """Run `task` in a process of its own; kill it after so many seconds. Its exit code, or minus its signal."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setsid()
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            torch.set_num_threads(1)
            task()
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)  # of a child that has ended already but was not waited for: nothing happens
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def one_round(job: Job, folder: Path, reference: dict[str, Any], seconds: float, moments: random.Random) -> int:
    """Kill until a process reaches the end, and compare; the number of processes that were killed."""
    kills = 0
    before: dict[str, Any] = {}
    log = folder / "log"
    while True:
        last = kills >= MOST_KILLS
        code = forked(lambda: job.work(folder), log, None if last else moments.uniform(0, seconds))
        if code not in (0, -signal.SIGKILL):
            raise BrokenError(f"a process ended with {code}: {log.read_text(errors='replace')[-2000:]}")
        before = job.check(folder, before, reference)
        if code == 0:
            break
        kills += 1
    if missing := reference.keys() - before.keys():
        raise BrokenError(f"{sorted(missing)[0]} is missing at the end")
    return kills


def prepare(work: Path) -> Path:
    """What the jobs start from: a trained run and two exported files, written by processes that nobody kills."""
    given = work / "given"
    shutil.rmtree(given, ignore_errors=True)
    given.mkdir(parents=True)

    def make() -> None:
        train(RECIPE, given / "run", device="cpu")
        robust.export.exporter.export_run(given / "run", given / "model.onnx", samples=200)
        robust.export.exporter.export_run(given / "run", given / "old.onnx", samples=200, version="0")

    if forked(make, work / "given.log"):
        raise SystemExit((work / "given.log").read_text())
    return given


def reference_of(job: Job, folder: Path) -> tuple[dict[str, Any], float]:
    """What an uninterrupted process writes, twice to be sure that it is always the same, and how long it takes."""
    found, seconds = [], []
    for number in range(2):
        part = folder / str(number)
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        begun = time.monotonic()
        if code := forked(lambda part=part: job.work(part), part / "log"):  # type: ignore[misc]
            raise SystemExit(f"The uninterrupted process ended with {code}: {(part / 'log').read_text()}")
        seconds.append(time.monotonic() - begun)
        found.append(job.facts(part))
    if found[0] != found[1]:
        raise SystemExit(f"{type(job).__name__}: two uninterrupted processes differ; nothing can be compared.")
    return found[0], min(seconds)


def claim(what: str, value: int, target: int) -> dict[str, Any]:
    """One claim of the record: so many at least, or none at all."""
    word, holds = ("at least", value >= target) if target else ("at most", value == 0)
    return {"claim": what, "value": value, word: target, "holds": holds}


def commit() -> str:
    """The commit of the software under test."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="kills in total")
    parser.add_argument("--work", type=Path, required=True, help="folder to work in")
    parser.add_argument("--record", type=Path, default=RECORD, help="where the counts go")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    record = json.loads(options.record.read_text()) if options.record.exists() else {"results": {"kinds": {}}}
    commits = sorted({*record.get("arguments", {}).get("commits", []), commit()})
    record |= {"benchmark": "kills", "environment": environment()}
    record["arguments"] = {"kills": options.kills, "seed": SEED, "commits": commits}
    results = record["results"]
    given = prepare(options.work)
    jobs = {name: kind(given) for name, kind in JOBS.items()}
    references = {name: reference_of(job, options.work / f"reference-{name}") for name, job in jobs.items()}
    print({name: round(seconds, 2) for name, (_, seconds) in references.items()}, "seconds without a kill", flush=True)
    counts = {name: results["kinds"].setdefault(name, {"kills": 0, "rounds": 0, "broken": []}) for name in JOBS}
    wanted = {name: round(share * options.kills) for name, share in SHARES.items()}
    while open_kinds := [name for name in JOBS if counts[name]["kills"] < wanted[name]]:
        name = min(open_kinds, key=lambda name: counts[name]["kills"] / wanted[name])
        count, folder = counts[name], options.work / f"round-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        reference, seconds = references[name]
        try:
            moments = random.Random(f"{SEED} {name} {count['rounds']}")
            count["kills"] += one_round(jobs[name], folder, reference, LIFE[name] * seconds, moments)
        except BrokenError as problem:
            kept = options.work / f"broken-{name}-{count['rounds']}"
            shutil.move(folder, kept)
            count["broken"].append({"round": count["rounds"], "problem": str(problem)})
        count["rounds"] += 1
        kills = sum(count["kills"] for count in counts.values())
        broken = sum(len(count["broken"]) for count in counts.values())
        lost = claim("rounds that lost or changed anything", broken, 0)
        results["claims"] = [claim("kills", kills, options.kills), lost]
        write_record(options.record, record)
        print(name, count["rounds"], count["kills"], f"of {wanted[name]}", len(count["broken"]), flush=True)


if __name__ == "__main__":
    assert StageTrainer is not None  # imported before the fork
    main()
