"""Around the file: a Triton model repository and a TorchServe archive."""

import json
import re
import zipfile
from pathlib import Path

import onnx
import pytest
from robust.export.repositories import export_archive, export_triton
from robust.serve import pack
from robust.train.runs.run import Run
from typer.testing import CliRunner

from robustinfer import Predictor
from robustinfer.cli.main import app
from robustinfer.errors import ExportError


def test_triton_repository(run: Run, tmp_path: Path) -> None:
    """The configuration names what the graph has: Triton refuses to load a model otherwise."""
    repository = tmp_path / "models"
    options = ["export", str(run.path), "--format", "triton", "--out", str(repository), "--samples", "20"]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    folder = repository / "tiny-digits"
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == [
        "1/model.onnx",
        "config.pbtxt",
        "labels.txt",
    ]
    assert (folder / "labels.txt").read_text().splitlines() == [str(digit) for digit in range(10)]
    config = (folder / "config.pbtxt").read_text()
    assert 'name: "tiny-digits"' in config
    assert config.count("{") == config.count("}")
    graph = onnx.load(folder / "1" / "model.onnx").graph
    for value, dims in ((graph.input[0], "1, 8, 8"), (graph.output[0], "10")):
        assert re.search(rf'name: "{value.name}"\s+data_type: TYPE_FP32\s+dims: \[ {dims} \]', config)
        assert [dim.dim_value for dim in value.type.tensor_type.shape.dim][1:] == [int(d) for d in dims.split(",")]
    assert Predictor.load(folder / "1" / "model.onnx").card.name == "tiny-digits"


@pytest.mark.parametrize(
    ("options", "match"),
    [({"sampler": True}, "first axis"), ({"name": "a name"}, "letters, digits"), ({"opset": 3}, "opset 18 to 23")],
)
def test_triton_refusals_leave_nothing(run: Run, tmp_path: Path, options: dict[str, object], match: str) -> None:
    with pytest.raises(ExportError, match=match):
        export_triton(run.path, tmp_path / "models", **options)
    with pytest.raises(ExportError, match="is a folder"):
        export_triton(run.path, tmp_path / "model.onnx")
    assert not (tmp_path / "models").exists()


def test_torchserve_archive(run: Run, tmp_path: Path) -> None:
    exported = export_archive(run.path, tmp_path / "tiny.mar", pack=pack, samples=20, version="2")
    with zipfile.ZipFile(exported.path) as archive:
        manifest = json.loads(archive.read("MAR-INF/MANIFEST.json"))
        archive.extract(manifest["model"]["serializedFile"], tmp_path)
    assert (manifest["model"]["modelName"], manifest["model"]["modelVersion"]) == ("tiny-digits", "2")
    assert Predictor.load(tmp_path / manifest["model"]["serializedFile"]).digest == exported.digest
    with pytest.raises(ExportError, match=r"ends in \.mar"):
        export_archive(run.path, tmp_path / "tiny.zip", pack=pack)
