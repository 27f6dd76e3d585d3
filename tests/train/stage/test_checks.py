"""Everything that can be refused is refused once, before there is a folder and before a resumed step."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from robust.train import Recipe, train
from robust.train.stage import checks
from robust.train.stage.trainer import StageTrainer

from robustinfer.errors import RecipeError

CHECKS = ("check_batch", "check_perturbations", "check_layout", "check_arithmetic")


def test_each_check_runs_once_for_a_new_run_and_once_for_a_resumed_one(
    tiny: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()

    def counting(name: str, original: Any) -> Any:
        return lambda *arguments: (calls.update([name]), original(*arguments))[1]

    for name in CHECKS:
        monkeypatch.setattr(checks, name, counting(name, getattr(checks, name)))
    recipe = tiny.replace(limit=64, refit=False)
    train(recipe, tmp_path / "run", device="cpu")
    assert calls == dict.fromkeys(CHECKS, 1)
    (tmp_path / "run" / "stage-02.json").unlink()
    train(recipe, tmp_path / "run", device="cpu", resume=True)
    assert calls == dict.fromkeys(CHECKS, 2)


@pytest.mark.parametrize("name", CHECKS)
def test_what_a_check_refuses_neither_makes_a_folder_nor_resumes_one(
    tiny: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    recipe = tiny.replace(limit=64, stages=1)
    train(recipe, tmp_path / "old", device="cpu")
    (tmp_path / "old" / "stage-01.json").unlink()

    def refuse(*_: Any) -> None:
        raise RecipeError("cannot be done here")

    monkeypatch.setattr(checks, name, refuse)
    monkeypatch.setattr(StageTrainer, "update", lambda self: pytest.fail("a step was taken"))
    with pytest.raises(RecipeError, match="cannot be done here"):
        train(recipe, tmp_path / "new", device="cpu")
    assert not (tmp_path / "new").exists()
    with pytest.raises(RecipeError, match="cannot be done here"):
        train(recipe, tmp_path / "old", device="cpu", resume=True)
