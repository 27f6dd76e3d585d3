"""Rows of the scripts on real data: one training each, which resumes after a kill and counts all that it cost."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from robust.train import Recipe, Run

FOLDER = Path(__file__).parents[2] / "benchmarks"
FIELDS = {
    "data": "digits",
    "stages": 1,
    "epochs": 4,
    "steps": 1,
    "batch": 32,
    "limit": 640,
    "width": 0.25,
    "validation_images": 20,
    "checkpoint_seconds": 0.0,
}
# Killed by itself, at a step of the third epoch: neither too early nor too late on any machine.
KILLED = """
import json, os, signal, sys
from pathlib import Path
sys.path.append(sys.argv[1])
from benchmarks.lib import experiments
from robust.train import Recipe

step = experiments._Clock.step
def killed(self, *figures):
    step(self, *figures)
    if len(self.epochs) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
experiments._Clock.step = killed
experiments.trained(Recipe.from_json(json.loads(sys.argv[3])), Path(sys.argv[2]), data=Path("data"))
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(FOLDER.parent)
    from benchmarks.lib.experiments import Table, arguments

    parser = arguments("a script", "rows.json", data=False)
    return Table(parser.parse_args(["--out", str(tmp_path / "rows.json")]), "script.py")


def test_measurements_of_one_training_are_gathered_in_its_row(table: Any) -> None:
    table.put("0.5/0/boosted", {"training": {"cpu_seconds": 1.5}, "n=1": {"acr": 0.1}})
    table.put("0.5/0/single", {"training": {"cpu_seconds": 1.5}, "n=1": {"acr": 0.3}})
    table.put("0.5/0/boosted", {"training": {"cpu_seconds": 1.5}, "n=2": {"acr": 0.2}})
    found = table.rows["0.5/0/boosted"]
    assert found["processor"], "seconds mean something on one machine only"
    assert found["n=1"] == {"acr": 0.1}
    assert found["n=2"] == {"acr": 0.2}
    assert len(table.rows) == 2


def test_a_row_that_was_trained_anew_keeps_nothing_of_the_old_one(table: Any) -> None:
    table.put("0.5/0/boosted", {"training": {"cpu_seconds": 1.5}, "n=1": {"acr": 0.1}})
    table.put("0.5/0/boosted", {"training": {"cpu_seconds": 1.4}, "n=2": {"acr": 0.2}})
    assert "n=1" not in table.rows["0.5/0/boosted"]
    assert table.rows["0.5/0/boosted"]["n=2"] == {"acr": 0.2}


def test_a_row_whose_file_is_kept_is_certified_without_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linear_model: Callable[..., Path]
) -> None:
    monkeypatch.syspath_prepend(FOLDER.parent)
    from benchmarks.lib import certified
    from benchmarks.lib.experiments import Row
    from benchmarks.lib.record import environment

    def trained(recipe: Any, folder: Any, *, data: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(certified, "KEPT", tmp_path)
    monkeypatch.setattr(certified, "trained", trained)
    linear_model(np.eye(10, 64), shape=(1, 8, 8), name="rows-0.25")
    out = tmp_path / "rows.json"
    measured = {"training": {"cpu_seconds": 1.5}, "processor": "another one", "n=1": {"acr": 0.1}}
    out.write_text(json.dumps({"rows": {"0.25/0/chosen": measured, "0.25/1/chosen": measured}}))
    rows = certified.CertifiedSet(
        "rows",
        (Row("chosen", "boosted", "the row"),),
        lambda *_, **__: Recipe(data="digits"),
        sigmas="0.25",
        n=50,
        every=60,
        kept="chosen",
    )
    words = ["--set", "chosen", "--data", "data", "--out", str(out), "--runs", str(tmp_path / "runs")]

    def certify(*more: Any) -> None:
        certified.certify_rows(certified.parse("a script", {"chosen": rows}, [*words, *more]), rows)

    certify()
    found = json.loads(out.read_text())["rows"]["0.25/0/chosen"]
    assert found["n=50"]["images"] == 6
    assert found["n=50"]["processor"] == environment()["processor"]
    assert found | {"n=50": None} == measured | {"n=50": None}, "what was known of the training stays"
    with pytest.raises(AssertionError, match="trained again"):
        certify("--seeds", "1")


@pytest.mark.slow
def test_a_student_is_trained_after_its_teacher_and_measured_under_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(FOLDER.parent)
    from benchmarks.lib import certified
    from benchmarks.lib.experiments import Row

    apart = {"booster": "independent", "epochs": 1}
    rows = certified.CertifiedSet(
        "rows",
        (Row("pair", "independent", "two", {**apart, "stages": 2}), Row("student", "student", "one", apart, "pair")),
        lambda row, *, sigma, seed, quick: Recipe.from_json(
            {**FIELDS, **row.fields, "norm": "l2", "smoothing": "gaussian", "sigma": sigma, "seed": seed}
        ),
        sigmas="0.25",
        n=50,
        every=60,
        copies=12,
    )
    words = ["--set", "chosen", "--data", "data", "--out", str(tmp_path / "rows.json"), "--runs", str(tmp_path)]
    options = certified.parse("a script", {"chosen": rows}, [*words, "--rows", "student", "--n", "0"])
    certified.certify_rows(options, rows)
    found = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert list(found) == ["0.25/0/student"]
    noise = found["0.25/0/student"]["noise"]
    assert noise["images"] == len(noise["counts"]) == 359, "all test images"
    assert noise["right"] == pytest.approx(sum(noise["counts"]) / 12 / 359)
    assert "n=50" not in found["0.25/0/student"], "--n 0 certifies nothing"
    taught = json.loads((tmp_path / "rows-0.25-0-student" / "distillation.json").read_text())
    assert taught["teacher"] == Run.open(tmp_path / "rows-0.25-0-pair").recipe.name
    assert len(taught["members"]) == 2


@pytest.mark.slow
def test_a_killed_training_resumes_and_counts_what_it_had_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER.parent)
    from benchmarks.lib.experiments import trained

    folder, recipe = tmp_path / "row", Recipe.from_json(FIELDS)
    words = [sys.executable, "-c", KILLED, str(FOLDER.parent), str(folder), json.dumps(FIELDS)]
    assert subprocess.run(words, timeout=250).returncode == -signal.SIGKILL
    before = json.loads((folder / "clock.json").read_text())
    assert len(before["epochs"]) == 2
    assert not (folder / "cost.json").exists()

    _, cost = trained(recipe, folder, data=Path("data"))
    assert cost == json.loads((folder / "cost.json").read_text())
    assert [epoch["epoch"] for epoch in cost["epochs"]] == list(range(4))
    assert cost["epochs"][:2] == before["epochs"], "the first epochs were not trained again"
    assert cost["cpu_seconds"] > before["cpu_seconds"]
    assert all(one["cpu_seconds"] < other["cpu_seconds"] for one, other in pairwise(cost["epochs"]))

    stamp = (folder / "cost.json").stat().st_mtime_ns
    assert trained(recipe, folder, data=Path("data"))[1] == cost
    assert (folder / "cost.json").stat().st_mtime_ns == stamp, "a finished row is not trained again"
    _, other = trained(recipe.replace(epochs=1), folder, data=Path("data"))
    assert len(other["epochs"]) == 1, "another recipe starts anew"
    assert json.loads((folder / "cost.json").read_text()) == other
