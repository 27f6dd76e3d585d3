"""Weights beside an ONNX file: found from every folder, part of the digest, never outside the model's folder."""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from robust.serve.torchserve.archive import pack

from robustinfer import Card, InputSpec, Predictor
from robustinfer.card import CARD_KEY
from robustinfer.engines import external_files, model_digest
from robustinfer.engines.external import locations
from robustinfer.engines.inspection import inspect_model
from robustinfer.errors import ArgumentError, DigestError, ModelFileError
from robustinfer.files import sha256

SHAPE = (1, 4, 4)
CARD = Card(classes=("dark", "bright"), input=InputSpec(*SHAPE), sigma=0.25)
WEIGHTS = np.stack([np.full(16, -1), np.full(16, 1)]).astype(np.float32)
IMAGE = np.full(SHAPE, 200, dtype=np.uint8)


def external(array: np.ndarray, name: str, location: str) -> TensorProto:
    tensor = numpy_helper.from_array(array, name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", str(array.nbytes))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def write(folder: Path, location: str = "model.data", weights: np.ndarray = WEIGHTS) -> Path:
    """A linear classifier whose weights lie at `location`; its bias is inside."""
    bias = np.array([8.0, -8.0], dtype=np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Flatten", ["image"], ["flat"]),
            helper.make_node("Gemm", ["flat", "weights", "bias"], ["scores"], transB=1),
        ],
        "linear",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", *SHAPE])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 2])],
        [external(weights, "weights", location), numpy_helper.from_array(bias, "bias")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {CARD_KEY: CARD.dumps()})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    if location and ".." not in location and not location.startswith(("/", "C:")):
        (folder / location).parent.mkdir(parents=True, exist_ok=True)
        (folder / location).write_bytes(weights.tobytes())
    return folder / "model.onnx"


@pytest.mark.parametrize("location", ["model.data", "weights/part 1.bin", "./model.data"])
def test_weights_are_found_beside_the_model_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str
) -> None:
    path = write(tmp_path / "models", location)
    elsewhere = tmp_path / "elsewhere"
    write(elsewhere, location, -WEIGHTS)  # another model's weights of the same name, in the working directory
    digests = set()
    for folder in (tmp_path, tmp_path / "models", elsewhere):
        monkeypatch.chdir(folder)
        for given_path in (path, Path(os.path.relpath(path))):
            predictor = Predictor.load(given_path)
            certificate = predictor.certify(IMAGE, n=200, seed=1)
            assert certificate.class_name == "bright"
            digests |= {predictor.digest, certificate.model.digest, model_digest(given_path)}
            digests.add(inspect_model(given_path).digest)
    assert len(digests) == 1


def test_the_digest_covers_every_file(tmp_path: Path) -> None:
    path = write(tmp_path)
    digest = Predictor.load(path).digest
    document = {
        "external": {"model.data": hashlib.sha256(WEIGHTS.tobytes()).hexdigest()},
        "model": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    assert digest == f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    (tmp_path / "model.data").write_bytes((-WEIGHTS).tobytes())
    with pytest.raises(DigestError, match="it is another file"):
        Predictor.load(path, digest=digest)
    other = Predictor.load(path)
    assert other.digest != digest
    assert other.certify(IMAGE, n=200).class_name == "dark"


def test_a_tampered_sidecar_does_not_verify(tmp_path: Path) -> None:
    path = write(tmp_path)
    certificate = Predictor.load(path).certify(IMAGE, n=200, seed=1)
    tampered = bytearray(WEIGHTS.tobytes())
    tampered[5] ^= 1
    (tmp_path / "model.data").write_bytes(tampered)
    with pytest.raises(DigestError):
        Predictor.load(path).verify(certificate, IMAGE)


def test_a_model_of_one_file_keeps_its_digest(linear_model: Callable[..., Path]) -> None:
    path = linear_model(WEIGHTS, shape=SHAPE)
    assert external_files(path) == {}
    assert model_digest(path) == sha256(path) == Predictor.load(path).digest


def test_a_missing_sidecar_is_named(tmp_path: Path) -> None:
    path = write(tmp_path)
    (tmp_path / "model.data").unlink()
    for use in (Predictor.load, inspect_model, model_digest):
        with pytest.raises(ModelFileError, match=r"keeps weights in 'model.data', which is not beside it"):
            use(path)


@pytest.mark.parametrize(
    "location", ["../model.data", "a/../../model.data", "/etc/hostname", "C:\\data", "..\\data", ""]
)
def test_paths_out_of_the_folder_are_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "model.data").write_bytes(WEIGHTS.tobytes())
    path = write(tmp_path / "models" / "mine", location)
    for use in (Predictor.load, inspect_model, model_digest):
        with pytest.raises(ModelFileError, match="not a path inside the folder of the model"):
            use(path)


def test_a_link_may_lead_to_where_the_model_lies_and_nowhere_else(tmp_path: Path) -> None:
    path = write(tmp_path / "store")
    cache = tmp_path / "cache"
    cache.mkdir()
    for name in ("model.onnx", "model.data"):
        (cache / name).symlink_to(tmp_path / "store" / name)
    assert Predictor.load(cache / "model.onnx").digest == Predictor.load(path).digest
    (tmp_path / "secret").write_bytes(WEIGHTS.tobytes())
    (tmp_path / "store" / "model.data").unlink()
    (tmp_path / "store" / "model.data").symlink_to(tmp_path / "secret")
    with pytest.raises(ModelFileError, match="a link that leads out of the folder"):
        Predictor.load(path)


def test_every_place_a_tensor_can_lie_in_is_looked_at(tmp_path: Path) -> None:
    """Checked against the onnx package, which walks the message by its own schema."""
    weight = np.zeros(4, dtype=np.float32)

    def constant(location: str) -> onnx.NodeProto:
        return helper.make_node("Constant", [], ["c"], value=external(weight, "c", location))

    def graph(*nodes: onnx.NodeProto, weights: tuple[TensorProto, ...] = ()) -> onnx.GraphProto:
        return helper.make_graph(list(nodes), "g", [], [], list(weights))

    branch = helper.make_node("If", ["x"], ["y"], then_branch=graph(constant("then")), else_branch=graph())
    many = helper.make_node("Own", [], ["z"], tensors=[external(weight, "t", "list")], domain="own")
    graphs = helper.make_node("Own", [], ["z"], graphs=[graph(branch)], domain="own")
    sparse = onnx.SparseTensorProto(
        values=external(weight, "v", "values"), indices=external(weight, "i", "indices"), dims=[4]
    )
    main = graph(constant("node"), many, graphs, weights=(external(weight, "w", "initializer"),))
    main.sparse_initializer.append(sparse)
    function = helper.make_function("own", "f", [], ["c"], [constant("function")], [helper.make_opsetid("", 17)])
    model = helper.make_model(main, functions=[function])
    path = tmp_path / "all.onnx"
    path.write_bytes(model.SerializeToString())
    expected = ["function", "indices", "initializer", "list", "node", "then", "values"]
    assert locations(path) == expected
    assert locations(path, path.read_bytes()) == expected


@given(st.binary(max_size=200))
def test_damaged_files_end_in_a_sentence(content: bytes) -> None:
    with contextlib.suppress(ModelFileError):  # no other error
        locations(Path("x.onnx"), b"location" + content)


def test_an_archive_takes_the_weights_along(tmp_path: Path) -> None:
    path = write(tmp_path / "models", "weights/part.bin")
    pack(path, tmp_path / "m.mar", name="m")
    with zipfile.ZipFile(tmp_path / "m.mar") as archive:
        archive.extractall(tmp_path / "unpacked")
        digest = json.loads(archive.read("digests.json"))["model.onnx"]
    served = Predictor.load(tmp_path / "unpacked" / "model.onnx", digest=digest)
    assert served.digest == Predictor.load(path).digest
    with pytest.raises(ArgumentError, match="a name that the archive itself uses"):
        pack(write(tmp_path / "clash", "robust_handler.py"), tmp_path / "c.mar", name="c")


def test_torch_s_default_export_is_a_model_like_any_other(tmp_path: Path) -> None:
    """torch.onnx.export writes model.onnx.data by default; run where that is not the working directory."""
    import torch

    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 64), torch.nn.Linear(64, 2)).eval()
    path = tmp_path / "torch.onnx"
    batch = torch.export.Dim("batch", min=1, max=4096)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        image = (torch.zeros(2, *SHAPE),)
        torch.onnx.export(module, image, path, dynamo=True, dynamic_shapes=({0: batch},), verbose=False)
    assert external_files(path)
    images = np.random.default_rng(0).random((3, *SHAPE), dtype=np.float32)
    found = Predictor.load(path, card=CARD).scores(images)
    assert np.allclose(found, module(torch.from_numpy(images)).detach().numpy(), atol=1e-5)


def test_large_weights_are_read_whole(tmp_path: Path) -> None:
    """The session must have a copy of them when it is made: what they lay in is used for something else afterwards."""
    shape, classes = (3, 64, 64), 50
    weights = np.random.default_rng(0).normal(size=(classes, 3 * 64 * 64)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Flatten", ["image"], ["flat"]),
            helper.make_node("MatMul", ["flat", "weights"], ["scores"]),
        ],
        "linear",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", *shape])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", classes])],
        [external(np.ascontiguousarray(weights.T), "weights", "w.bin")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    (tmp_path / "w.bin").write_bytes(np.ascontiguousarray(weights.T).tobytes())
    card = Card(classes=tuple(map(str, range(classes))), input=InputSpec(*shape), sigma=0.25)
    predictor = Predictor.load(tmp_path / "model.onnx", card=card)
    (tmp_path / "w.bin").write_bytes(bytes(weights.nbytes))
    rubbish = [np.full_like(weights, np.nan) for _ in range(8)]
    images = np.random.default_rng(1).random((2, *shape), dtype=np.float32)
    assert np.allclose(predictor.scores(images), images.reshape(2, -1) @ weights.T, atol=1e-2)
    assert len(rubbish) == 8


def test_no_engine_package_is_needed_for_the_digest(tmp_path: Path) -> None:
    path = write(tmp_path)
    code = (
        "import sys; from robustinfer.engines import model_digest; print(model_digest(sys.argv[1]));"
        "assert not {'onnx', 'onnxruntime', 'torch'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True, timeout=250
    )
    assert done.stdout.strip() == Predictor.load(path).digest
