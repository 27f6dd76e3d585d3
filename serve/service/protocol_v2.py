"""The open inference protocol, version 2: `/v2/models/NAME/infer`, as Triton and KServe clients speak it.

Input: one tensor of UINT8, FP32 or FP64 and shape (C, H, W) or (N, C, H, W); settings are request parameters. Output:
for each image label (-1: abstained), radius, abstained, and the whole certificate as JSON text, signed if the server
signs.
"""

import json
import math
from collections.abc import Mapping, Sequence
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

__all__ = ["answer", "read_inputs"]

Array = npt.NDArray[Any]

_TYPES = {"UINT8": np.uint8, "FP32": np.float32, "FP64": np.float64}
_KEYS = {"id", "inputs", "outputs", "parameters"}
_OUTPUTS = ("label", "radius", "abstained", "certificate")


def read_inputs(
    document: Mapping[str, Any], spec: InputSpec, limits: Limits
) -> tuple[tuple[Array, ...], dict[str, Any]]:
    """The images and the settings of an infer request."""
    unknown = sorted(document.keys() - _KEYS)
    if unknown:
        raise Refusal.malformed("unknown_field", f"An infer request has no field {unknown[0][:60]!r}.")
    if not isinstance(document.get("id", ""), str):
        raise Refusal.malformed("wrong_type", "id is a string.")
    wanted_outputs(document)
    inputs = document["inputs"]
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise Refusal.malformed("wrong_type", "inputs is a list of one tensor, the image.")
    parameters = document.get("parameters", {})
    if not isinstance(parameters, dict):
        raise Refusal.malformed("wrong_type", "parameters is an object.")
    batch = as_batch(_tensor(inputs[0]), spec)
    if not 1 <= len(batch) <= limits.max_images:
        raise Refusal.unacceptable(
            "limit_images", f"A request has at least 1 and at most {limits.max_images} images; found {len(batch)}."
        )
    return tuple(batch), fields.from_json(parameters)


def _tensor(tensor: Mapping[str, Any]) -> Array:
    shape, data = tensor.get("shape"), tensor.get("data")
    datatype = tensor.get("datatype")
    if not isinstance(datatype, str) or datatype not in _TYPES:
        raise Refusal.malformed("wrong_type", f"datatype is {', '.join(_TYPES)}.")
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise Refusal.malformed("wrong_type", "shape is a list of whole numbers.")
    if not isinstance(data, list):
        raise Refusal.malformed("wrong_type", "data is a list of numbers (binary tensors are not read).")
    values = array_of(data, "data").reshape(-1)
    if values.size != math.prod(shape):
        raise Refusal.malformed("wrong_type", f"shape promises {math.prod(shape)} numbers; data has {values.size}.")
    if values.dtype.kind not in ("iu" if datatype == "UINT8" else "iuf"):
        raise Refusal.malformed("wrong_type", f"data holds something that is not a {datatype} number.")
    if datatype == "UINT8" and values.size and not (values.min() >= 0 and values.max() <= 255):
        raise Refusal.unacceptable("bad_image", "UINT8 pixels lie between 0 and 255.")
    with np.errstate(over="ignore"):
        return values.astype(_TYPES[datatype]).reshape(shape)


def wanted_outputs(document: Mapping[str, Any]) -> Sequence[str]:
    """The names of the outputs a request asks for: all, if it names none."""
    outputs = document.get("outputs")
    if outputs is None:
        return _OUTPUTS
    if not isinstance(outputs, list) or not all(isinstance(output, dict) for output in outputs):
        raise Refusal.malformed("wrong_type", "outputs is a list of objects with a name.")
    names = [output.get("name") for output in outputs]
    if any(name not in _OUTPUTS for name in names):
        raise Refusal.malformed("unknown_field", f"The outputs are {', '.join(_OUTPUTS)}.")
    return [name for name in _OUTPUTS if name in names]


def answer(
    document: Mapping[str, Any],
    results: Sequence[Certificate | Prediction],
    documents: Sequence[Mapping[str, Any]],
    *,
    name: str,
    version: str,
) -> dict[str, Any]:
    """The infer response for the results of all images of the request `document`; `documents` are their JSON."""
    columns = {
        "label": ("INT64", [-1 if result.label is None else result.label for result in results]),
        "radius": ("FP64", [result.radius if isinstance(result, Certificate) else 0.0 for result in results]),
        "abstained": ("BOOL", [result.abstained for result in results]),
        "certificate": ("BYTES", [json.dumps(one) for one in documents]),
    }
    outputs = [
        {"name": output, "shape": [len(results)], "datatype": columns[output][0], "data": columns[output][1]}
        for output in wanted_outputs(document)
    ]
    head = {"model_name": name, "model_version": version}
    return head | ({"id": document["id"]} if "id" in document else {}) | {"outputs": outputs}
