"""`robust recipes`, and what `robust train` says before and while it trains."""

import json
from pathlib import Path

import pytest
from PIL import Image
from rich.progress import Progress
from robust.train import Recipe, Run, builtin_recipes
from robust.train import probe as probe_module
from robust.train.pace import Pace

from robustinfer.cli.console import duration
from robustinfer.cli.training_progress import TerminalWatcher
from robustinfer.data import digits

from ...commands import Robust


def test_recipes_are_listed_with_one_line_each(robust: Robust) -> None:
    code, out, err = robust("recipes")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(builtin_recipes())
    assert all(len(line.split()) > 3 for line in out.splitlines())
    assert "train RECIPE" in err
    code, listed, err = robust("train")
    assert (code, listed) == (2, "")
    assert err.startswith(out)
    assert "Give one of these recipes" in err
    assert set(json.loads(robust("recipes", "--json")[1])) == set(builtin_recipes())


def test_the_template_for_a_folder_trains_on_one(robust: Robust, tmp_path: Path) -> None:
    images, labels = digits("train")
    for number in range(60):
        picture = tmp_path / "images" / "train" / str(labels[number] % 2) / f"{number}.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[number, 0]).save(picture)
    code, out, err = robust("recipes", "--new", "folder", "--out", "mine.toml")
    assert (code, out) == (0, "mine.toml\n")
    assert "train mine.toml" in err
    assert Recipe.load(tmp_path / "mine.toml").data == "folder:images"
    words = ("--set", "size=8", "--set", "epochs=1", "--set", "batch=16", "--device", "cpu", "--threads", "1")
    code, _, err = robust("train", "mine.toml", *words)
    assert code == 0, err
    assert "epoch 1/1" in err
    assert "s left" in err
    assert Run.open(tmp_path / "runs" / "my-images").classes == ("0", "1")


def test_a_template_overwrites_nothing(robust: Robust, tmp_path: Path) -> None:
    (tmp_path / "folder.toml").write_text("mine")
    code, _, err = robust("recipes", "--new", "folder")
    assert (code, "folder.toml already exists" in err) == (2, True)
    assert (tmp_path / "folder.toml").read_text() == "mine"
    code, _, err = robust("recipes", "--new", "video")
    assert (code, "There is a template for: folder; found 'video'" in err) == (2, True)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.25, "0.2 s"), (40, "40 s"), (100, "2 min"), (3600, "60 min"), (12600, "3.5 h"), (950400, "11 days")],
)
def test_durations_as_people_say_them(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_the_time_left_comes_from_the_estimate_and_then_from_what_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two equal stages of ten epochs; five epochs take 50 s on the test's clock, so 150 s are left."""
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    watcher = TerminalWatcher(Recipe(stages=2, epochs=10, growth=1, previous="clean"), Progress(disable=True))
    assert watcher.left() == ""
    watcher.announce(Pace(seconds=3.0, steps=316_800, threads=1, tried={2: 30.0, 1: 3.0}))
    watcher.stage(1, 10, 100)
    assert watcher.left() == "11 days left"
    now += 50
    watcher.step(1, 5.0, 0.5)
    assert watcher.left() == "2 min left"
    said = " ".join(capsys.readouterr().err.split())
    assert "takes about 11 days on this machine (3.0 s per step" in said
    assert "It uses 1 thread: a step takes 3 s with it and 30 s with 2. Use --threads 2 to override." in said


def test_a_resumed_training_counts_only_what_it_has_done(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    watcher = TerminalWatcher(Recipe(stages=2, epochs=10, growth=1, previous="clean"), Progress(disable=True))
    watcher.stage(2, 10, 100)
    now += 20
    watcher.step(2, 1.0, 0.5)
    assert watcher.left() == "3 min left"


def test_a_probe_says_what_it_times(robust: Robust, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_module, "_time", lambda *arguments: 0.5)
    code, out, err = robust("train", "digits-l2", "--probe", "--device", "cpu")
    assert (code, out.count("times as fast")) == (0, 5)
    assert "1 of 5: as it is" in err
    assert "5 of 5: bf16 + channels_last" in err


def test_fine_tuning_from_the_command_line(robust: Robust, tmp_path: Path) -> None:
    words = ("--set", "limit=128", "--set", "stages=1", "--set", "epochs=1", "--device", "cpu", "--threads", "1")
    assert robust("train", "digits-l2", "--out", "clean", "--set", "delta=0", *words)[0] == 0
    code, _, err = robust("train", "digits-l2", "--out", "tuned", "--from", "clean", *words)
    assert code == 0, err
    assert Run.open("tuned").provenance["start"]["source"] == "clean"
    code, _, err = robust("train", "digits-l2", "--parameters", "p.pth")
    assert (code, "belong to --from" in err) == (2, True)
    code, _, err = robust("train", "digits-l2", "--from", "clean", "--mean", "a,b", "--std", "1")
    assert (code, "--mean takes numbers" in err) == (2, True)


def test_a_budget_from_the_command_line(robust: Robust, tmp_path: Path) -> None:
    words = [word for field in ("limit=96", "width=0.125", "batch=48", "steps=1") for word in ("--set", field)]
    command = ("train", "digits-linf", "--out", "run", "--device", "cpu", "--threads", "1", *words)
    code, out, err = robust(*command, "--budget", "0.5s")
    assert code == 0, err
    assert "member 1: " in err
    assert "next: " in err
    assert out.splitlines()[0].startswith("stage  epochs")
    decided = json.loads((tmp_path / "run" / "budget.json").read_text())
    assert decided["budget"] == {"amount": 0.5, "unit": "seconds"}
    spent = [decision["spent"] for decision in decided["decisions"]]
    assert 0 < spent[0] <= spent[-1]  # how much of it is worth spending depends on the machine
    assert Run.open(tmp_path / "run").ensemble().members
    for wrong, sentence in (
        (("--budget", "soon"), "A budget of time is written as 90s, 45m or 1h30m; found 'soon'"),
        (("--budget", "1m", "--budget-operations", "1e9"), "not both"),
    ):
        code, _, err = robust("train", "digits-linf", *wrong)
        assert (code, sentence in err) == (2, True), err
