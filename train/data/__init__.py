"""Files become batches: data sets as uint8 images with a digest, read from memory or from disk, shuffled, augmented and
put on the device."""

from .batches import Batch, Batches, as_pixels, check_batch, in_order, numbers_in_order
from .datasets import ImageData, Model, load_data

__all__ = [
    "Batch",
    "Batches",
    "ImageData",
    "Model",
    "as_pixels",
    "check_batch",
    "in_order",
    "load_data",
    "numbers_in_order",
]
