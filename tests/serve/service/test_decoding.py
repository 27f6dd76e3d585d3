"""Large pictures are decoded by a process that can be given up, to the same pixels, within the time they have."""

import io
import math
import time

import numpy as np
import pytest
from PIL import Image
from robust.serve.service.decoding import Decoder
from robust.serve.service.refusals import Refusal

from robustinfer import InputSpec
from robustinfer.errors import ImageFileError, ShapeError
from robustinfer.images import decode_image, decoding_work

from ...waiting import PATIENCE

SPEC = InputSpec(3, 8, 8, resize="bilinear")
MOST = 25_000_000


def encoded(width: int, height: int, **options: object) -> bytes:
    """A picture with structure, as a file."""
    row = np.arange(width, dtype=np.uint32) % 251
    pixels = np.stack([np.broadcast_to(row * k % 255, (height, width)) for k in (1, 2, 3)], axis=-1).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, **{"format": "PNG", **options})  # type: ignore[arg-type]
    return buffer.getvalue()


def test_the_work_is_known_before_it_is_done() -> None:
    assert decoding_work(encoded(300, 200), SPEC) == 60_000
    progressive = encoded(300, 200, format="JPEG", progressive=True)
    assert decoding_work(progressive, SPEC) == 60_000 * progressive.count(b"\xff\xda") > 60_000
    with pytest.raises(ImageFileError, match="more than 100"):
        decoding_work(encoded(300, 200), SPEC, max_pixels=100)
    with pytest.raises(ShapeError, match="300 x 200"):
        decoding_work(encoded(300, 200), InputSpec(3, 8, 8))


def test_the_process_says_nothing_on_the_servers_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    decoder = Decoder(SPEC, max_pixels=MOST, seconds=PATIENCE)
    try:
        assert decoder.decode(encoded(1500, 1200)).shape == (3, 8, 8)
        assert decoder._child is not None  # it was not decoded here
    finally:
        decoder.close()
    assert capfd.readouterr() == ("", "")


def test_large_pictures_give_the_same_pixels_and_the_same_refusals() -> None:
    decoder = Decoder(SPEC, max_pixels=MOST, seconds=PATIENCE)
    try:
        for content in (encoded(90, 90), encoded(1500, 1200), encoded(1100, 1000, format="JPEG")):
            found = decoder.decode(content)
            assert found.tobytes() == decode_image(content, SPEC).tobytes()
        damaged = encoded(1500, 1200)[:3000]
        with pytest.raises(ImageFileError) as here:
            decode_image(damaged, SPEC)
        with pytest.raises(ImageFileError) as there:
            decoder.decode(damaged)
        assert str(here.value) == str(there.value)
        assert decoder._child is not None
        decoder._child.kill()  # as a kernel does that needs the memory
        with pytest.raises(Refusal) as lost:
            decoder.decode(encoded(1500, 1200))
        assert lost.value.status == 503
        assert decoder.decode(encoded(1500, 1200)).shape == (3, 8, 8)
    finally:
        decoder.close()


def test_a_picture_that_takes_too_long_is_given_up() -> None:
    large = encoded(5000, 5000)
    decoder = Decoder(SPEC, max_pixels=MOST, seconds=0.02)
    with pytest.raises(Refusal) as refusal:
        decoder.decode(large)
    assert (int(refusal.value.status), refusal.value.code) == (422, "limit_reading")
    assert decoder._child is None  # killed, and not left to go on
    with pytest.raises(Refusal) as refusal:
        decoder.decode(large, until=-math.inf)
    assert (int(refusal.value.status), refusal.value.code) == (503, "busy_reading")
    assert decoder.decode(encoded(90, 90), until=time.monotonic()).shape == (3, 8, 8)  # small ones always have time
