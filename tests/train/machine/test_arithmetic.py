"""bf16 is tried in a process of its own, so that a machine that cannot do it says so instead of dying."""

from pathlib import Path

import pytest
import torch
from robust.train import Recipe, train
from robust.train.machine import arithmetic as module
from robust.train.machine.arithmetic import check_arithmetic
from robust.train.probe import probe_options

from robustinfer.errors import RecipeError

CPU = torch.device("cpu")
BF16 = Recipe.from_json({"data": "digits", "precision": "bf16"})
KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


def test_what_kills_a_process_is_refused_before_there_is_a_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_BF16_STEP", KILLED)
    with pytest.raises(RecipeError, match=r'"bf16" would crash torch on this CPU: .* ended with Illegal instruction'):
        train(BF16, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
    check_arithmetic(Recipe(), CPU)
    check_arithmetic(BF16, torch.device("cuda"))


def test_a_trial_that_fails_gives_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BF16_STEP", "raise RuntimeError('no bf16 here')")
    with pytest.raises(RecipeError, match="ended with RuntimeError: no bf16 here"):
        check_arithmetic(BF16, CPU)


def test_a_trial_that_ends_well_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BF16_STEP", "1 + 1")
    check_arithmetic(BF16, CPU)


def test_the_probe_goes_on_where_bf16_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BF16_STEP", KILLED)
    fields = {"data": "digits", "architecture": "resnet12", "width": 0.25, "batch": 8, "steps": 1}
    found = {probe.options: probe for probe in probe_options(Recipe.from_json(fields), device="cpu", steps=1).probes}
    assert "Illegal instruction" in found["bf16"].problem
    assert (found["as it is"].seconds or 0) > 0
