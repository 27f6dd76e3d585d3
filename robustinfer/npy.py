"""Reading npy files that anybody may have sent: the header is checked before memory is taken for what it claims."""

import io
import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from .errors import ImageFileError

__all__ = ["NPY_MAGIC", "decode_npy"]

NPY_MAGIC = b"\x93NUMPY"

_Header = tuple[tuple[int, ...], bool, np.dtype[Any]]


def decode_npy(content: bytes, *, max_values: int) -> npt.NDArray[Any]:
    """The array in the bytes of an npy file: plain numbers, at most `max_values`, exactly as many as the header says.

    `numpy.load` allocates an array of the size in the header before it finds out that the file is shorter.
    """
    try:
        begin = _begin(content)
        shape, fortran, dtype = _header(content[:begin])
        values = math.prod(shape)
    except Exception as error:
        # The header is a Python literal, and what can go wrong in reading one is not a closed list.
        raise ImageFileError("This npy file cannot be read: its header is damaged.") from error
    if dtype.hasobject:
        raise ImageFileError("This npy file holds Python objects, which are never unpickled; save plain numbers.")
    if dtype.kind not in "biuf":
        raise ImageFileError(f"Expected an npy file of uint8 or floating numbers, found {dtype}.")
    if values > max_values:
        raise ImageFileError(f"This npy file holds an array of shape {shape}, more than {max_values} values.")
    if min(shape, default=1) < 0 or values * dtype.itemsize != len(content) - begin:
        raise ImageFileError(
            f"This npy file cannot be read: its header says {values} numbers of type {dtype}, and "
            f"{len(content) - begin} bytes follow."
        )
    array = np.frombuffer(content, dtype=dtype, offset=begin)
    try:
        return array.reshape(shape, order="F" if fortran else "C")
    except ValueError as error:  # nothing at all, but of sizes whose product numpy cannot count, or of too many
        raise ImageFileError("This npy file cannot be read: numpy has no arrays of its shape.") from error


def _begin(content: bytes) -> int:
    """Where the header ends and the numbers begin."""
    size = 2 if content[6:8] == b"\x01\x00" else 4  # bytes of the header's length, by the version of the format
    return 8 + size + int.from_bytes(content[8 : 8 + size], "little")


@lru_cache(maxsize=64)
def _header(head: bytes) -> _Header:
    """Shape, order and type of the numbers. Images of one size have the same header, and reading a literal is slow."""
    stream = io.BytesIO(head)
    header = npy.read_array_header_1_0 if npy.read_magic(stream) == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = header(stream)
    return shape, fortran, dtype
