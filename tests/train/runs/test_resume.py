"""An interrupted training goes on and ends with the weights of the uninterrupted one, bit for bit."""

import random
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from robust.train import Recipe, Run, train
from robust.train.runs import run as run_module
from robust.train.stage.trainer import StageTrainer

from robustinfer.errors import RunError, StoppedError
from robustinfer.files import leftovers

from ...interrupted import Moment, interrupted

UPDATE = "robust.train.stage.trainer:StageTrainer.update"


class Killed(BaseException):
    """Stands for a process that ends here: nothing in the package catches it."""


def weights(run: Run) -> dict[str, Any]:
    """Everything that must be equal: the bytes of all members, and the betas."""
    return {stage.path.name: (stage.path.read_bytes(), stage.betas) for stage in run.stages}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Trains each recipe once, however many tests compare with it."""
    known: dict[Recipe, Run] = {}

    def get(recipe: Recipe) -> Run:
        if recipe not in known:
            known[recipe] = train(recipe, tmp_path_factory.mktemp("whole") / "run", device="cpu")
        return known[recipe]

    return get


@pytest.mark.parametrize("update", [1, 4, 6])
def test_resume_after_any_update(
    tiny: Recipe, uninterrupted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: int
) -> None:
    recipe = tiny.replace(checkpoint_seconds=0)
    whole = uninterrupted(recipe)
    original, done = StageTrainer.update, 0

    def counted(self: StageTrainer) -> Any:
        nonlocal done
        done += 1
        if done > update:
            raise Killed
        return original(self)

    with monkeypatch.context() as patch:
        patch.setattr(StageTrainer, "update", counted)
        with pytest.raises(Killed):
            train(recipe, tmp_path / "run", device="cpu")
    resumed = train(recipe, tmp_path / "run", device="cpu", resume=True)
    assert weights(resumed) == weights(whole)
    lines = [len((run.path / "metrics.jsonl").read_text().splitlines()) for run in (resumed, whole)]
    assert lines[0] == lines[1], "the lines of repeated steps are written once"
    assert not (resumed.path / "resume.safetensors").exists()


@pytest.mark.parametrize("file", ["stage-01.safetensors", "stage-01.json", "resume.json"])
def test_resume_after_a_kill_between_two_files(
    tiny: Recipe, uninterrupted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    recipe = tiny.replace(checkpoint_seconds=0)
    whole = uninterrupted(recipe)

    def stopping(original: Any) -> Any:
        def write(path: Path, *arguments: Any) -> None:
            if Path(path).name == file:
                raise Killed
            original(path, *arguments)

        return write

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "write_text", stopping(run_module.write_text))  # type: ignore[attr-defined]
        patch.setattr("robust.train.runs.checkpoint.write_text", stopping(run_module.write_text))  # type: ignore[attr-defined]
        patch.setattr(run_module, "save_tensors", stopping(run_module.save_tensors))
        with pytest.raises(Killed):
            train(recipe, tmp_path / "run", device="cpu")
    assert weights(train(recipe, tmp_path / "run", device="cpu", resume=True)) == weights(whole)


@pytest.mark.parametrize("question", [1, 3, 4, 5, 8, 9, 11])
def test_a_training_that_is_asked_to_stop_keeps_its_last_step(
    tiny: Recipe, uninterrupted: Any, tmp_path: Path, question: int
) -> None:
    """Three steps and a measurement per epoch: the questions come after steps, and before batches of measurements."""
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked >= question

    recipe = tiny.replace(checkpoint_seconds=1e6)
    whole = uninterrupted(tiny.replace(checkpoint_seconds=0))
    with pytest.raises(StoppedError):
        train(recipe, tmp_path / "run", device="cpu", stop=stop)
    assert (tmp_path / "run" / "resume.safetensors").is_file()
    assert weights(train(recipe, tmp_path / "run", device="cpu", resume=True)) == weights(whole)


@pytest.mark.slow  # its sibling above stops a training at every place, in this process
@pytest.mark.timeout(900)
def test_signals_leave_a_checkpoint_and_the_command_that_resumes(tiny: Recipe, tmp_path: Path) -> None:
    """A real process: ctrl-C, then SIGTERM to the process that resumed, then to the end by the command it printed."""
    recipe = tiny.replace(checkpoint_seconds=1e6, stages=1, epochs=60, limit=640)
    file, folder = tmp_path / "tiny.toml", tmp_path / "my run"
    file.write_text(recipe.to_toml())
    words = ["train", str(file), "--out", str(folder), "--device", "cpu", "--threads", "1"]
    for number in (signal.SIGINT, signal.SIGTERM):
        stopped = subprocess.run(interrupted(Moment(UPDATE, 13, number=number), *words), capture_output=True, text=True)
        assert stopped.returncode == 130, stopped.stderr
        assert "holds everything up to that moment" in stopped.stderr
        said = stopped.stderr.strip().rpartition("Resume it with: ")[2]
        assert said.endswith("--resume")
        assert said.count("--resume") == 1
        _, *words = shlex.split(said)
    finished = subprocess.run(shlex.split(said), capture_output=True, text=True, timeout=800, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "epoch 1/60" not in finished.stderr
    assert weights(Run.open(folder)) == weights(train(recipe, tmp_path / "whole", device="cpu"))


def test_the_seed_decides_everything(tiny: Recipe, uninterrupted: Any, tmp_path: Path) -> None:
    recipe = tiny.replace(checkpoint_seconds=0)
    again = train(recipe, tmp_path / "again", device="cpu")
    other = train(recipe.replace(seed=1), tmp_path / "other", device="cpu")
    assert weights(again) == weights(uninterrupted(recipe))
    assert weights(other) != weights(again)


def test_a_damaged_checkpoint_is_named(tiny: Recipe, tmp_path: Path) -> None:
    run = train(tiny.replace(stages=1), tmp_path / "run", device="cpu")
    (run.path / "stage-01.json").unlink()
    (run.path / "resume.safetensors").write_bytes(b"half a file")
    with pytest.raises(RunError, match=r"resume\.safetensors is damaged .* finished stages are kept"):
        train(tiny.replace(stages=1), run.path, device="cpu", resume=True)


def test_what_a_kill_left_of_a_file_is_neither_a_run_nor_kept(tiny: Recipe, tmp_path: Path) -> None:
    """A kill while the first file is written, and one while a checkpoint is."""
    recipe, folder = tiny.replace(stages=1, limit=64), tmp_path / "run"
    folder.mkdir()
    (folder / ".recipe-a1b2c3d_.tmp.toml").write_text("name =")
    train(recipe, folder, device="cpu", resume=True)
    assert leftovers(folder) == []
    (folder / ".resume-0123abcd.tmp.safetensors").write_bytes(b"half")
    (folder / "notes.txt").write_text("mine")
    train(recipe, folder, device="cpu", resume=True)
    assert leftovers(folder) == []
    assert (folder / "notes.txt").read_text() == "mine"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kill_minus_nine_at_random_moments(tiny: Recipe, tmp_path: Path) -> None:
    """A real process, killed without warning again and again, then left to finish.

    It kills itself so many updates, and then so many calls of any functions, after it has begun, in the midst of
    whatever it does then: seconds would depend on the machine. More than a hundred updates are left each time.
    """
    recipe = tiny.replace(checkpoint_seconds=0, epochs=8, limit=640)
    file, folder = tmp_path / "tiny.toml", tmp_path / "killed"
    file.write_text(recipe.to_toml())
    moments = random.Random(4)
    words = ["train", str(file), "--out", str(folder), "--device", "cpu", "--threads", "1"]
    for _ in range(2):
        moment = Moment(UPDATE, moments.randint(1, 8), moments.randint(1, 2000))
        killed = subprocess.run(interrupted(moment, *words), capture_output=True)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        words = [*words, "--resume"] if "--resume" not in words else words
    finished = subprocess.run([sys.executable, "-m", "robustinfer", *words], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert weights(Run.open(folder)) == weights(train(recipe, tmp_path / "whole", device="cpu"))
