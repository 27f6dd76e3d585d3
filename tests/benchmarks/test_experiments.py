"""Rows of the scripts on real data: one training each, which goes on after a kill and counts all that it cost."""

import json
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
TRAINING = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from experiments import trained
from robust.train import Recipe
recipe = Recipe.from_json({"data": "digits", "stages": 1, "epochs": int(sys.argv[3]), "steps": 1, "batch": 32,
                           "limit": 640, "width": 0.25, "validation_images": 20, "checkpoint_seconds": 0.1})
trained(recipe, Path(sys.argv[2]), data=Path("data"))
"""


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    from experiments import Table, arguments

    parser = arguments("a script", "rows.json", data=False)
    return Table(parser.parse_args(["--out", str(tmp_path / "rows.json")]))


def test_measurements_of_one_training_are_gathered_in_its_row(table):
    table.put("0.5/0/boosted", {"training": {"cpu_seconds": 1.5}, "n=1": {"acr": 0.1}})
    table.put("0.5/0/single", {"training": {"cpu_seconds": 1.5}, "n=1": {"acr": 0.3}})
    table.put("0.5/0/boosted", {"training": {"cpu_seconds": 1.5}, "n=2": {"acr": 0.2}})
    found = table.rows["0.5/0/boosted"]
    assert found["processor"], "seconds mean something on one machine only"
    assert found["n=1"] == {"acr": 0.1}
    assert found["n=2"] == {"acr": 0.2}
    assert len(table.rows) == 2


def test_a_row_that_was_trained_anew_keeps_nothing_of_the_old_one(table):
    table.put("0.5/0/boosted", {"training": {"cpu_seconds": 1.5}, "n=1": {"acr": 0.1}})
    table.put("0.5/0/boosted", {"training": {"cpu_seconds": 1.4}, "n=2": {"acr": 0.2}})
    assert "n=1" not in table.rows["0.5/0/boosted"]
    assert table.rows["0.5/0/boosted"]["n=2"] == {"acr": 0.2}


def start(folder: Path, epochs: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", TRAINING, FOLDER, folder, str(epochs)])


@pytest.mark.slow
@pytest.mark.representative
def test_a_killed_training_goes_on_and_counts_what_it_had_cost(tmp_path):
    folder = tmp_path / "row"
    process = start(folder, 10)
    clock, until = folder / "clock.json", time.monotonic() + 120
    while not (clock.is_file() and len(json.loads(clock.read_text())["epochs"]) >= 2):
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = json.loads(clock.read_text())
    assert not (folder / "cost.json").exists()

    assert start(folder, 10).wait(timeout=200) == 0
    cost = json.loads((folder / "cost.json").read_text())
    assert [epoch["epoch"] for epoch in cost["epochs"]] == list(range(10))
    assert cost["epochs"][0] == before["epochs"][0], "the first epoch was not trained again"
    assert cost["cpu_seconds"] > before["cpu_seconds"]
    assert all(one["cpu_seconds"] < other["cpu_seconds"] for one, other in pairwise(cost["epochs"]))

    stamp = (folder / "cost.json").stat().st_mtime_ns
    assert start(folder, 10).wait(timeout=200) == 0
    assert (folder / "cost.json").stat().st_mtime_ns == stamp, "a finished row is not trained again"
    assert start(folder, 1).wait(timeout=200) == 0
    assert len(json.loads((folder / "cost.json").read_text())["epochs"]) == 1, "another recipe starts anew"
