"""Reading npy files that anybody may have sent: the header is checked before memory is taken for what it claims."""

import io
import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from .errors import ImageFileError

__all__ = ["NPY_MAGIC", "decode_npy"]

NPY_MAGIC = b"\x93NUMPY"


def decode_npy(content: bytes, *, max_values: int) -> npt.NDArray[Any]:
    """The array in the bytes of an npy file: plain numbers, at most `max_values`, exactly as many as the header says.

    `numpy.load` allocates an array of the size in the header before it finds out that the file is shorter.
    """
    stream = io.BytesIO(content)
    try:
        header = npy.read_array_header_1_0 if npy.read_magic(stream) == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = header(stream)
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
    if min(shape, default=1) < 0 or values * dtype.itemsize != len(content) - stream.tell():
        raise ImageFileError(
            f"This npy file cannot be read: its header says {values} numbers of type {dtype}, and "
            f"{len(content) - stream.tell()} bytes follow."
        )
    array = np.frombuffer(content, dtype=dtype, offset=stream.tell())
    try:
        return array.reshape(shape, order="F" if fortran else "C")
    except ValueError as error:  # nothing at all, but of sizes whose product numpy cannot count, or of too many
        raise ImageFileError("This npy file cannot be read: numpy has no arrays of its shape.") from error
