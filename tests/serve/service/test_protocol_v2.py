"""The open inference protocol: tensors as bytes, and answers as the request wants them."""

import json
from typing import Any

import numpy as np
import pytest
from robust.serve.service.limits import Limits
from robust.serve.service.protocol_v2 import answer, model_metadata, read_inputs, read_parameters
from robust.serve.service.refusals import Refusal

from robustinfer import Certificate, InputSpec, Prediction, Predictor

SPEC = InputSpec(1, 4, 4)
PIXELS = np.arange(16, dtype=np.uint8).reshape(1, 4, 4) * 10
Array = np.ndarray[Any, Any]


def tensor(datatype: str, **changes: Any) -> dict[str, Any]:
    return {"name": "image", "datatype": datatype, "shape": [1, 1, 4, 4], **changes}


def read_bytes(content: bytes, one: dict[str, Any], size: Any = None) -> tuple[Any, dict[str, Any]]:
    parameters = {"binary_data_size": len(content) if size is None else size}
    document = {"inputs": [one | {"parameters": parameters}], "parameters": {"n": 9, "binary_data_output": True}}
    return read_inputs(document, SPEC, Limits(), content), read_parameters(document)


@pytest.mark.parametrize(("datatype", "dtype"), [("UINT8", "u1"), ("FP32", "<f4"), ("FP64", "<f8")])
def test_a_tensor_of_bytes_is_the_image(datatype: str, dtype: str) -> None:
    sent = PIXELS if datatype == "UINT8" else PIXELS / 255
    images, settings = read_bytes(sent.astype(dtype).tobytes(), tensor(datatype))
    assert len(images) == 1
    np.testing.assert_allclose(images[0], sent, rtol=1e-6)
    assert settings == {"n": 9}  # how the answer is wanted is not a setting
    three, _ = read_bytes(sent.astype(dtype).tobytes(), tensor(datatype, shape=[1, 4, 4]))
    np.testing.assert_array_equal(three[0], images[0])


@pytest.mark.parametrize("size", [15, 17, True, "16", -16, 16.0])
def test_bytes_that_are_not_those_promised(size: Any) -> None:
    short, long = PIXELS.tobytes()[:15], PIXELS.tobytes() + b"x"
    for content, told in ((PIXELS.tobytes(), size), (short, 16), (long, 16), (short, 15), (long, 17)):
        with pytest.raises(Refusal, match="promise 16 bytes"):
            read_bytes(content, tensor("UINT8"), told)
    with pytest.raises(Refusal, match="promise 16 bytes"):
        read_inputs({"inputs": [tensor("UINT8", parameters=[16])]}, SPEC, Limits(), PIXELS.tobytes())


def test_numbers_that_their_type_does_not_have() -> None:
    for data in ([-1] * 16, [256] * 16):
        with pytest.raises(Refusal, match="between 0 and 255"):
            read_inputs({"inputs": [tensor("UINT8", data=data)]}, SPEC, Limits())
    edges = [0, 255] * 8
    (image,) = read_inputs({"inputs": [tensor("UINT8", data=edges)]}, SPEC, Limits())
    assert image.reshape(-1).tolist() == edges


def test_as_many_images_as_the_limit_allows() -> None:
    for count in (0, 1, 3, 4):
        document = {"inputs": [tensor("UINT8", shape=[count, 1, 4, 4], data=[7] * 16 * count)]}
        if 1 <= count <= 3:
            assert len(read_inputs(document, SPEC, Limits(max_images=3))) == count
        else:
            with pytest.raises(Refusal, match="at most 3 images") as refusal:
                read_inputs(document, SPEC, Limits(max_images=3))
            assert refusal.value.code == "limit_images"


@pytest.fixture(scope="module")
def results(predictor: Predictor, image: Array) -> list[Certificate | Prediction]:
    """A certificate, a prediction, and an abstention."""
    sure = predictor.certify(image, n=500, seed=1)
    between = predictor.certify(np.full((8, 8), 191, dtype=np.uint8), n=500, seed=1)
    assert sure.label == 2
    assert sure.radius > 0
    assert between.abstained
    return [sure, predictor.predict(image, n=100, seed=1), between]


def json_of(results: Any) -> Any:
    """What a reader of JSON finds: lists for tuples."""
    return [json.loads(json.dumps(one.to_json())) for one in results]


def answered(results: Any, document: dict[str, Any], *, binary: bool = True) -> tuple[dict[str, Any], bytes]:
    documents = [one.to_json() for one in results]
    return answer(document, results, documents, name="tiny", version="7", binary=binary)


def test_an_answer_has_one_entry_for_each_image(results: Any) -> None:
    found, tail = answered(results, {"id": "mine"})
    assert tail == b""
    outputs = {one.pop("name"): one for one in found.pop("outputs")}
    assert found == {"model_name": "tiny", "model_version": "7", "id": "mine"}
    documents = [json.loads(text) for text in outputs.pop("certificate")["data"]]
    assert documents == json_of(results)
    assert outputs == {
        "label": {"shape": [3], "datatype": "INT64", "data": [2, 2, -1]},
        "radius": {"shape": [3], "datatype": "FP64", "data": [results[0].radius, 0.0, 0.0]},
        "abstained": {"shape": [3], "datatype": "BOOL", "data": [False, False, True]},
    }
    assert "id" not in answered(results, {})[0]


def test_outputs_as_bytes_follow_in_the_order_of_their_entries(results: Any) -> None:
    found, tail = answered(results, {"parameters": {"binary_data_output": True}})
    rest, parts = tail, {}
    for output in found["outputs"]:
        size = output["parameters"]["binary_data_size"]
        assert "data" not in output
        parts[output["name"]], rest = rest[:size], rest[size:]
    assert rest == b""
    assert np.frombuffer(parts["label"], "<i8").tolist() == [2, 2, -1]
    assert np.frombuffer(parts["radius"], "<f8").tolist() == [results[0].radius, 0.0, 0.0]
    assert parts["abstained"] == b"\0\0\1"
    texts, certificates = [], parts["certificate"]
    while certificates:
        length = int.from_bytes(certificates[:4], "little")
        texts.append(certificates[4 : 4 + length])
        certificates = certificates[4 + length :]
    assert [json.loads(text) for text in texts] == json_of(results)


def test_each_output_may_be_asked_for_in_its_own_form(results: Any) -> None:
    wanted = {
        "outputs": [
            {"name": "radius", "parameters": {"binary_data": False}},
            {"name": "label", "parameters": {"binary_data": True}},
            {"name": "abstained"},
        ]
    }
    for everything in (False, True):
        found, tail = answered(results, wanted | {"parameters": {"binary_data_output": everything}})
        assert [one["name"] for one in found["outputs"]] == ["label", "radius", "abstained"]
        assert ["data" in one for one in found["outputs"]] == [False, True, not everything]
        assert len(tail) == 3 * 8 + (3 if everything else 0)
    found, tail = answered(results, wanted, binary=False)  # a server that cannot send bytes
    assert tail == b""
    assert all("data" in one for one in found["outputs"])


def test_metadata_names_the_tensors(results: Any) -> None:
    found = model_metadata(SPEC, name="tiny", version="7")
    assert (found["name"], found["versions"]) == ("tiny", ["7"])
    assert found["inputs"] == [{"name": "image", "datatype": "UINT8", "shape": [-1, 1, 4, 4]}]
    entries = answered(results, {})[0]["outputs"]
    assert [(one["name"], one["datatype"]) for one in found["outputs"]] == [
        (one["name"], one["datatype"]) for one in entries
    ]
