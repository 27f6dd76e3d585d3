"""The open inference protocol, version 2: `/v2/models/NAME/infer`, as Triton and KServe clients speak it.

Input: one tensor of UINT8, FP32 or FP64 and shape (C, H, W) or (N, C, H, W); settings are request parameters. Output:
for each image label (-1: abstained), radius, abstained, and the whole certificate as JSON text, signed if the server
signs. Tensors may also be bytes after the JSON (the protocol's extension for binary data, which Triton's clients use).
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from robustinfer.card import InputSpec
from robustinfer.certificate import Certificate, Prediction
from robustinfer.images import as_batch

from . import fields
from .limits import Limits
from .numbers import array_of
from .refusals import Refusal

__all__ = ["EXTENSIONS", "answer", "model_metadata", "read_inputs", "read_parameters", "wanted_outputs"]

Array = npt.NDArray[Any]

_TYPES = {"UINT8": np.uint8, "FP32": np.float32, "FP64": np.float64}
_KEYS = {"id", "inputs", "outputs", "parameters"}
_OUTPUTS = {"label": "INT64", "radius": "FP64", "abstained": "BOOL", "certificate": "BYTES"}
_BINARY_OUTPUT = "binary_data_output"  # a parameter of the protocol's own: all outputs as bytes
EXTENSIONS = ("binary_tensor_data",)


def read_parameters(document: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an infer request."""
    parameters = document.get("parameters", {})
    if not isinstance(parameters, dict):
        raise Refusal.malformed("wrong_type", "parameters is an object.")
    return fields.from_json({name: value for name, value in parameters.items() if name != _BINARY_OUTPUT})


def read_inputs(
    document: Mapping[str, Any], spec: InputSpec, limits: Limits, tensors: bytes = b""
) -> tuple[Array, ...]:
    """The images of an infer request; `tensors` are the bytes that follow its JSON."""
    unknown = sorted(document.keys() - _KEYS)
    if unknown:
        raise Refusal.malformed("unknown_field", f"An infer request has no field {unknown[0][:60]!r}.")
    if not isinstance(document.get("id", ""), str):
        raise Refusal.malformed("wrong_type", "id is a string.")
    wanted_outputs(document)
    inputs = document["inputs"]
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise Refusal.malformed("wrong_type", "inputs is a list of one tensor, the image.")
    batch = as_batch(_tensor(inputs[0], tensors), spec)
    if not 1 <= len(batch) <= limits.max_images:
        raise Refusal.unacceptable(
            "limit_images", f"A request has at least 1 and at most {limits.max_images} images; found {len(batch)}."
        )
    return tuple(batch)


def _tensor(tensor: Mapping[str, Any], tensors: bytes) -> Array:
    shape, data = tensor.get("shape"), tensor.get("data")
    datatype = tensor.get("datatype")
    if not isinstance(datatype, str) or datatype not in _TYPES:
        raise Refusal.malformed("wrong_type", f"datatype is {', '.join(_TYPES)}.")
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise Refusal.malformed("wrong_type", "shape is a list of whole numbers.")
    if data is None and "parameters" in tensor:
        return _binary_tensor(tensor["parameters"], shape, np.dtype(_TYPES[datatype]), tensors)
    if not isinstance(data, list):
        raise Refusal.malformed("wrong_type", "data is a list of numbers, or the tensor has binary_data_size instead.")
    values = array_of(data, "data").reshape(-1)
    if values.size != math.prod(shape):
        raise Refusal.malformed("wrong_type", f"shape promises {math.prod(shape)} numbers; data has {values.size}.")
    if values.size and values.dtype.kind not in ("iu" if datatype == "UINT8" else "iuf"):
        raise Refusal.malformed("wrong_type", f"data holds something that is not a {datatype} number.")
    if datatype == "UINT8" and values.size and not (values.min() >= 0 and values.max() <= 255):
        raise Refusal.unacceptable("bad_image", "UINT8 pixels are between 0 and 255.")
    with np.errstate(over="ignore"):
        return _shaped(values.astype(_TYPES[datatype]), shape)


def _shaped(values: Array, shape: list[int]) -> Array:
    try:
        return values.reshape(shape)
    except ValueError:  # nothing at all, but of sizes whose product numpy cannot count, or of too many
        raise Refusal.malformed("wrong_type", "shape is that of an image, or of several.") from None


def _binary_tensor(parameters: Any, shape: list[int], dtype: np.dtype[Any], tensors: bytes) -> Array:
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    expected = math.prod(shape) * dtype.itemsize
    if type(size) is not int or size != len(tensors) or size != expected:
        raise Refusal.malformed(
            "wrong_type",
            f"shape and datatype promise {expected} bytes after the JSON; binary_data_size says {size!r:.20}, and "
            f"{len(tensors)} came (the header Inference-Header-Content-Length says where they begin).",
        )
    return _shaped(np.frombuffer(tensors, dtype=dtype.newbyteorder("<")).astype(dtype), shape)


def wanted_outputs(document: Mapping[str, Any]) -> Sequence[str]:
    """The names of the outputs a request asks for: all, if it names none."""
    outputs = document.get("outputs")
    if outputs is None:
        return list(_OUTPUTS)
    if not isinstance(outputs, list) or not all(isinstance(output, dict) for output in outputs):
        raise Refusal.malformed("wrong_type", "outputs is a list of objects with a name.")
    names = [output.get("name") for output in outputs]
    if not all(isinstance(name, str) and name in _OUTPUTS for name in names):
        raise Refusal.malformed("unknown_field", f"The outputs are {', '.join(_OUTPUTS)}.")
    return [name for name in _OUTPUTS if name in names]


def _as_bytes(document: Mapping[str, Any], name: str) -> bool:
    """Whether a request asks for this output as bytes."""
    for output in document.get("outputs") or ():
        parameters = output.get("parameters")
        if output.get("name") == name and isinstance(parameters, dict) and "binary_data" in parameters:
            return parameters["binary_data"] is True
    return document.get("parameters", {}).get(_BINARY_OUTPUT) is True


def answer(
    document: Mapping[str, Any],
    results: Sequence[Certificate | Prediction],
    documents: Sequence[Mapping[str, Any]],
    *,
    name: str,
    version: str,
    binary: bool = False,
) -> tuple[dict[str, Any], bytes]:
    """The infer response for the results of all images of the request `document`; `documents` are their JSON.

    With `binary`, the outputs that the request wants as bytes follow the response's JSON.
    """
    columns: dict[str, list[Any]] = {
        "label": [-1 if result.label is None else result.label for result in results],
        "radius": [result.radius if isinstance(result, Certificate) else 0.0 for result in results],
        "abstained": [result.abstained for result in results],
        "certificate": [json.dumps(one) for one in documents],
    }
    outputs, tail = [], b""
    for output in wanted_outputs(document):
        entry: dict[str, Any] = {"name": output, "shape": [len(results)], "datatype": _OUTPUTS[output]}
        if binary and _as_bytes(document, output):
            content = _BYTES_OF[_OUTPUTS[output]](columns[output])
            entry["parameters"] = {"binary_data_size": len(content)}
            tail += content
        else:
            entry["data"] = columns[output]
        outputs.append(entry)
    head = {"model_name": name, "model_version": version}
    return head | ({"id": document["id"]} if "id" in document else {}) | {"outputs": outputs}, tail


def _texts(values: Sequence[str]) -> bytes:
    encoded = [value.encode() for value in values]
    return b"".join(len(value).to_bytes(4, "little") + value for value in encoded)


_BYTES_OF: dict[str, Callable[[Any], bytes]] = {
    "INT64": lambda values: np.asarray(values, dtype="<i8").tobytes(),
    "FP64": lambda values: np.asarray(values, dtype="<f8").tobytes(),
    "BOOL": lambda values: np.asarray(values, dtype=np.bool_).tobytes(),
    "BYTES": _texts,
}


def model_metadata(spec: InputSpec, *, name: str, version: str) -> dict[str, Any]:
    """What `GET /v2/models/NAME` says: the tensors that go in and come out."""
    return {
        "name": name,
        "versions": [version],
        "platform": "robustinfer",
        "inputs": [{"name": "image", "datatype": "UINT8", "shape": [-1, *spec.shape]}],
        "outputs": [{"name": output, "datatype": kind, "shape": [-1]} for output, kind in _OUTPUTS.items()],
    }
