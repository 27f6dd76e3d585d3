"""From bytes to requests: what is read, what is refused, and with which code."""

import base64
import io
import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from robust.serve.service.limits import Limits
from robust.serve.service.protocol_v2 import read_inputs
from robust.serve.service.reading import Reading, read
from robust.serve.service.refusals import Refusal, refusal_of

from robustinfer import InputSpec, RobustinferError

SPEC = InputSpec(1, 4, 4)
PIXELS = np.arange(16, dtype=np.uint8).reshape(4, 4) * 10


def reading(data: dict[str, bytes], content_type: str = "", **limits: Any) -> Reading:
    return read(data, content_type=content_type, spec=SPEC, limits=Limits(**{"allow_seeds": True, **limits}))


def refused(data: dict[str, bytes], content_type: str = "", **limits: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        reading(data, content_type, **limits)
    return caught.value


def body(**document: Any) -> dict[str, bytes]:
    return {"body": json.dumps({"image": PIXELS.tolist(), **document}).encode()}


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def picture(format: str, size: tuple[int, int] = (4, 4)) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", size, 77).save(buffer, format)
    return buffer.getvalue()


def test_every_form_is_the_same_image() -> None:
    settings = {"n": 5000, "alpha": 0.01, "mode": "certify", "seed": 2**63}
    text = {name: str(value).encode() for name, value in settings.items()}
    for data in (
        body(**settings),
        {**text, "body": npy(PIXELS)},
        {**text, "image": npy(PIXELS)},
        {**text, "file": npy(PIXELS), "body": b""},
        {"body": json.dumps({"image": base64.b64encode(npy(PIXELS)).decode(), **settings}).encode()},
    ):
        found = reading(data)
        assert found.settings == settings
        assert np.array_equal(found.images[0][0], PIXELS)
        assert found.images[0].dtype == np.uint8


def test_floats_stay_floats_and_whole_numbers_are_uint8() -> None:
    assert reading(body(image=(PIXELS / 255).tolist())).images[0].dtype == np.float32
    assert reading(body(image=[[1] * 4] * 4, dtype="float32")).images[0].max() == 1.0
    assert reading(body(image=[[1] * 4] * 4, dtype="uint8")).images[0].dtype == np.uint8


@pytest.mark.parametrize("format", ["PNG", "JPEG"])
def test_pictures(format: str) -> None:
    assert reading({"body": picture(format)}).images[0].shape == (1, 4, 4)


CASES: dict[str, tuple[dict[str, bytes], int, str]] = {
    "nothing": ({}, 400, "no_image"),
    "empty": ({"body": b""}, 400, "no_image"),
    "no image": ({"body": b'{"n": 5}'}, 400, "no_image"),
    "list": ({"body": b"[1, 2]"}, 400, "not_an_object"),
    "nan": ({"body": b'{"image": [[NaN]]}'}, 400, "not_json"),
    "deep": ({"body": b'{"image": ' + b"[" * 100_000}, 400, "not_json"),
    "long number": ({"body": b'{"image": [[' + b"9" * 500 + b"]]}"}, 400, "not_json"),
    "huge number": ({"body": b'{"image": [[' + b"9" * 300 + b"]]}"}, 400, "wrong_type"),
    "not utf-8": ({"body": b'{"image": "\xff"}'}, 400, "not_json"),
    "text in image": (body(image=[["a"] * 4] * 4), 400, "wrong_type"),
    "a long text among numbers": (body(image=[*range(300), "a" * 900_000]), 400, "wrong_type"),
    "booleans": (body(image=[[True] * 4] * 4), 400, "wrong_type"),
    "an object": (body(image={"a": 1}), 400, "wrong_type"),
    "not base64": (body(image="%%%"), 400, "wrong_type"),
    "dtype of a file": (body(image=base64.b64encode(npy(PIXELS)).decode(), dtype="uint8"), 400, "wrong_type"),
    "unknown dtype": (body(dtype="int64"), 400, "wrong_type"),
    "fractions as uint8": (body(image=[[0.5] * 4] * 4, dtype="uint8"), 422, "bad_image"),
    "negative": (body(image=[[-1] * 4] * 4), 422, "bad_image"),
    "ambiguous": (body(image=[[0] * 4] * 4), 422, "ambiguous_image"),
    "bool as number": (body(n=True), 400, "wrong_type"),
    "fraction as n": (body(n=10.5), 400, "wrong_type"),
    "infinite": ({"radius": b"inf", "body": npy(PIXELS)}, 400, "wrong_type"),
    "text as alpha": (body(alpha="small"), 400, "wrong_type"),
    "unknown mode": (body(mode="guess"), 400, "wrong_type"),
    "unknown field": (body(__class__=1), 400, "unknown_field"),
    "unknown field without a value": (body(sigmoid=None), 400, "unknown_field"),
    "field that appears twice": ({"body": b'{"image": [[9]], "n": 1, "n": 2}'}, 400, "repeated_field"),
    "unknown form field": ({"image": npy(PIXELS), "n_samples": b"5"}, 400, "unknown_field"),
    "two files": ({"image": npy(PIXELS), "data": npy(PIXELS)}, 400, "two_images"),
    "no samples": (body(n=0), 422, "limit_n"),
    "too many": (body(n=100_001), 422, "limit_n"),
    "fewer than none to choose on": (body(n0=-1), 422, "limit_n"),
    "too many to choose on": (body(n0=100_001), 422, "limit_n"),
    "alpha": (body(alpha=0.0), 422, "limit_alpha"),
    "large alpha": (body(alpha=0.6), 422, "limit_alpha"),
    "deadline": (body(deadline=31), 422, "limit_deadline"),
    "deadline in the past": (body(deadline=0), 422, "limit_deadline"),
    "radius": (body(radius=-1), 422, "bad_setting"),
    "a radius to predict": (body(radius=1, mode="predict"), 422, "bad_setting"),
    "gif": ({"body": b"GIF89a..."}, 415, "unsupported_body"),
    "zip": ({"body": b"PK\x03\x04"}, 415, "unsupported_body"),
    "pickle": ({"body": b"\x80\x04\x95"}, 415, "unsupported_body"),
    "objects in npy": ({"body": npy(np.array([{}], dtype=object))}, 422, "bad_image"),
    "text in npy": ({"body": npy(np.array(["a"]))}, 422, "bad_image"),
    "short npy": ({"body": npy(PIXELS)[:-1]}, 422, "bad_image"),
    "long npy": ({"body": npy(PIXELS) + b"x"}, 422, "bad_image"),
    "npy header": ({"body": b"\x93NUMPY\x01\x00\x10\x00__import__('os')"}, 422, "bad_image"),
    "npy that claims much": (
        {"body": npy(PIXELS).replace(b"(4, 4)", b"(4, 4000000000)", 1)[:128] + b"\0" * 16},
        422,
        "bad_image",
    ),
    "damaged png": ({"body": picture("PNG")[:40]}, 422, "bad_image"),
}


@pytest.mark.parametrize("case", CASES)
def test_refusals(case: str) -> None:
    data, status, code = CASES[case]
    with pytest.raises((Refusal, RobustinferError)) as caught:
        reading(data)
    refusal = refusal_of(caught.value)  # the runtime's own sentences become refusals, too
    assert (refusal.status, refusal.code) == (status, code)
    assert len(refusal.message) < 400


def test_a_text_among_numbers_takes_no_memory() -> None:
    """numpy would make room for it in the place of each number: 300 times 900,000 characters, a gigabyte."""
    data, _, _ = CASES["a long text among numbers"]
    tracemalloc.start()
    try:
        refused(data)
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"n": 100_001}, "limit_n"),
        ({"n": 0}, "limit_n"),
        ({"alpha": 0.6}, "limit_alpha"),
        ({"deadline": 31}, "limit_deadline"),
        ({"seed": 1}, "limit_seed"),
        ({"domain": "16-bit"}, "limit_domain"),
        ({"radius": 0}, "bad_setting"),
        ({"radius": 1, "mode": "predict"}, "bad_setting"),
        ({"tolerance": 0.1, "deadline": 1}, "bad_setting"),
    ],
)
def test_settings_are_checked_before_a_picture_is_decoded(settings: dict[str, Any], code: str) -> None:
    def decode(content: bytes) -> Any:
        raise AssertionError("the picture was decoded")

    text = {name: str(value).encode() for name, value in settings.items()}
    encoded = base64.b64encode(picture("PNG")).decode()
    tensors = {"inputs": [tensor(data="not even a list")], "parameters": settings}
    for data in (
        {**text, "body": picture("PNG")},
        {**text, "image": picture("PNG")},
        {"body": json.dumps({"image": encoded, **settings}).encode()},
        {"body": json.dumps(tensors).encode()},
        {**text, "body": json.dumps({"inputs": tensors["inputs"]}).encode()},
    ):
        with pytest.raises((Refusal, RobustinferError)) as caught:
            read(data, content_type="", spec=SPEC, limits=Limits(domain="8-bit"), decode=decode)
        assert refusal_of(caught.value).code == code


def test_a_picture_with_too_many_pixels_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(RobustinferError, match="more than 15"):
        reading({"body": picture("PNG")}, max_pixels=15)


def test_a_body_that_is_too_long() -> None:
    assert refused({"body": b"x" * 2000}, max_body=1000).code == "limit_body"


def test_curls_default_is_refused_with_advice() -> None:
    refusal = refused({}, "application/x-www-form-urlencoded")
    assert refusal.status == 415
    assert "curl" in refusal.message


@given(
    st.dictionaries(st.sampled_from(["body", "image", "n", "mode", "x"]), st.binary(max_size=200)), st.text(max_size=40)
)
def test_no_bytes_raise_anything_else(data: dict[str, bytes], content_type: str) -> None:
    with pytest.raises((Refusal, RobustinferError)):
        reading(data, content_type)


@given(
    st.sampled_from([b"\x93NUMPY", b"\x93NUMPY\x01\x00", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"{", b'{"image":']),
    st.binary(max_size=300),
)
def test_no_beginning_of_a_file_raises_anything_else(start: bytes, rest: bytes) -> None:
    with pytest.raises((Refusal, RobustinferError)):
        reading({"body": start + rest})


def tensor(**changes: Any) -> dict[str, Any]:
    return {
        "name": "image",
        "shape": [1, 1, 4, 4],
        "datatype": "UINT8",
        "data": PIXELS.reshape(-1).tolist(),
        **changes,
    }


def v2(*inputs: Any, **fields: Any) -> dict[str, bytes]:
    return {"body": json.dumps({"inputs": list(inputs), **fields}).encode()}


def test_open_protocol_reads_batches_and_parameters() -> None:
    batch = tensor(shape=[2, 1, 4, 4], data=[*PIXELS.reshape(-1).tolist(), *([3] * 16)])
    found = reading(v2(batch, id="a", parameters={"n": 100, "mode": "predict"}))
    assert len(found.images) == 2
    assert np.array_equal(found.images[0][0], PIXELS)
    assert found.settings == {"n": 100, "mode": "predict"}
    floats = tensor(datatype="FP32", data=(PIXELS / 255).reshape(-1).tolist())
    assert reading(v2(floats)).images[0].dtype == np.float32


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (v2(), "wrong_type"),
        (v2(tensor(), tensor()), "wrong_type"),
        (v2(5), "wrong_type"),
        (v2(tensor(shape=[1, 1, 4, 5])), "wrong_type"),
        (v2(tensor(shape=[1, 1, -4, 4])), "wrong_type"),
        (v2(tensor(shape="all")), "wrong_type"),
        (v2(tensor(datatype="INT8")), "wrong_type"),
        (v2(tensor(datatype=["UINT8"])), "wrong_type"),
        (v2(tensor(data="AAAA")), "wrong_type"),
        (v2(tensor(data=["a"] * 16)), "wrong_type"),
        (v2(tensor(data=[0.5] * 16)), "wrong_type"),
        (v2(tensor(data=[300] * 16)), "bad_image"),
        (v2(tensor(), parameters=[1]), "wrong_type"),
        (v2(tensor(), parameters={"speed": 1}), "unknown_field"),
        (v2(tensor(), outputs=[{"name": "logits"}]), "unknown_field"),
        (v2(tensor(), outputs=[{"name": []}]), "unknown_field"),
        (v2(tensor(), outputs="all"), "wrong_type"),
        (v2(tensor(), id=5), "wrong_type"),
        (v2(tensor(), timeout=5), "unknown_field"),
        (v2(tensor(shape=[3, 1, 4, 4], data=[5] * 48), parameters={"n": 50_000}), "limit_n"),
        (v2(tensor(shape=[65, 1, 4, 4], data=[5] * 65 * 16)), "limit_images"),
    ],
)
def test_open_protocol_refusals(data: dict[str, bytes], code: str) -> None:
    assert refused(data).code == code


@pytest.mark.parametrize("shape", [[0, 7, 28405, 29700, 390463509], [0, *[2**62] * 3], [0, *[1] * 80]], ids=str)
def test_a_tensor_of_nothing_has_no_strange_shape(shape: list[int]) -> None:
    tensor = {"name": "image", "datatype": "FP32", "shape": shape}
    contents: list[dict[str, Any]] = [{"data": []}, {"parameters": {"binary_data_size": 0}}]
    for more in contents:
        with pytest.raises(Refusal, match="shape is that of an image") as refusal:
            read_inputs({"inputs": [tensor | more]}, InputSpec(1, 8, 8), Limits())
        assert refusal.value.status == 400
