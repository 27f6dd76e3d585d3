"""A run folder is data: it is read, and reported on, by a process that cannot import torch."""

import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w

from robustinfer.errors import RunError
from robustinfer.run_folder import RunFolder

RECIPE = {"name": "written", "sigma": 0.0, "delta": 0.1, "norm": "linf", "weights": "corrective"}
PROVENANCE = {"classes": ["cat", "dog"], "input": {"shape": [3, 8, 9], "resize": "refuse"}, "versions": {"torch": "2"}}
STAGE = """{"number": 1, "architecture": "cnn", "beta": 0.5, "betas": [0.5], "seconds": 2.0,
"metrics": {"edge": 0.25, "robust_accuracy": 0.5}, "digest": "sha256:0", "warnings": []}"""

WITHOUT_TORCH = """
import sys
for name in ("torch", "safetensors", "robust.train", "robust"):
    sys.modules[name] = None
from pathlib import Path
from robustinfer.report.material import read_sources
from robustinfer.run_folder import RunFolder
run = RunFolder.open(sys.argv[1])
(facts,) = read_sources([Path(sys.argv[1])]).runs
assert facts.stages[0] == run.stages[0].to_json()
print(run.recipe["name"], run.classes, run.input.shape, run.stages[0].betas, run.evaluation["attacks"]["none"])
"""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "recipe.toml").write_text(tomli_w.dumps({**RECIPE, "provenance": PROVENANCE}))
    (folder / "stage-01.json").write_text(STAGE)
    (folder / "evaluation.json").write_text('{"attacks": {"none": 1}}')
    return folder


def test_a_process_that_cannot_import_torch_reads_a_run(written: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, str(written)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "written ('cat', 'dog') (3, 8, 9) (0.5,) 1\n"


def test_the_recipe_is_as_the_file_has_it(written: Path) -> None:
    run = RunFolder.open(written)
    assert run.recipe == RECIPE
    assert run.provenance == PROVENANCE
    assert run.stages[0].path == written / "stage-01.safetensors"
    (written / "evaluation.json").unlink()
    assert run.evaluation == {}


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("recipe.toml", None, "is not a run folder"),
        ("recipe.toml", "name = 1", "is damaged"),
        ("recipe.toml", "[provenance]\nclasses = []\ninput = 3", "is damaged"),
        ("stage-01.json", "[]", "holds a JSON object"),
        ("stage-01.json", "{", "cannot be read"),
        ("stage-03.json", STAGE, r"holds stages \[1, 3\]"),
    ],
)
def test_what_is_damaged_is_named(written: Path, file: str, content: str | None, sentence: str) -> None:
    (written / file).unlink() if content is None else (written / file).write_text(content)
    with pytest.raises(RunError, match=sentence):
        RunFolder.open(written)
