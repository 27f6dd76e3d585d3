"""Layouts that crash this torch are refused before they do, and the probe says so."""

from pathlib import Path

import pytest
import torch
from robust.train import Recipe, train
from robust.train.machine.layout import check_layout
from robust.train.members import build_member
from robust.train.probe import probe_options

from robustinfer import InputSpec
from robustinfer.errors import RecipeError

CPU = torch.device("cpu")


def narrow(width: float) -> torch.nn.Module:
    moments = torch.zeros(1), torch.ones(1)
    spec = InputSpec(1, 8, 8)
    return build_member("resnet12", input=spec, classes=10, mean=moments[0], std=moments[1], seed=0, width=width)


@pytest.mark.parametrize("field", ["channels_last", "compile"])
def test_a_narrow_strided_shortcut_is_refused(field: str) -> None:
    recipe = Recipe.from_json({field: True})
    with pytest.raises(RecipeError, match=f"`{field}` would crash torch on a CPU: .* has 4 channels"):
        check_layout(recipe, narrow(0.25), CPU)
    check_layout(recipe, narrow(0.5), CPU)
    check_layout(Recipe(), narrow(0.25), CPU)
    check_layout(recipe, narrow(0.25), torch.device("cuda"))


def test_the_probe_measures_what_can_be_used_and_says_what_cannot() -> None:
    fields = {"data": "digits", "architecture": "resnet12", "width": 0.25, "batch": 8, "steps": 1}
    report = probe_options(Recipe.from_json(fields), device="cpu", steps=1)
    found = {probe.options: probe for probe in report.probes}
    assert (found["as it is"].seconds or 0) > 0
    for options in ("channels_last", "compile", "bf16 + channels_last"):
        assert found[options].seconds is None
        assert "would crash torch" in found[options].problem
    assert report.gain(found["as it is"]) == 1
    assert "channels_last           not usable here: The field `channels_last` would crash" in report.table()


def test_a_refused_layout_leaves_no_folder_behind(tmp_path: Path) -> None:
    """So that the same command with the field mended can take its name."""
    fields = {"data": "digits", "architecture": "resnet12", "width": 0.25, "channels_last": True}
    with pytest.raises(RecipeError, match="would crash torch"):
        train(Recipe.from_json(fields), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
