"""Data sets without torch: what a name means, the files behind it, which images are taken, and how they reach a model.

`spec` reads a name, `source` opens what it names (`arrays`, `files`, `parquet` and `vision` know the layouts), `splits`
says which images are taken, and `image_set` reads them as a model's card wants them.
"""

from .arrays import digits, npz_arrays
from .description import DataDescription, contact_sheet, describe_data
from .files import class_folders
from .image_set import ImageSet, choose_readable, load_images, parse_shard, source_labels, unlabelled_images
from .source import Source, open_source
from .spec import IN_ROOT, DataSpec, find_data, parse_data, place_data
from .splits import choose, split_fifth

__all__ = [
    "IN_ROOT",
    "DataDescription",
    "DataSpec",
    "ImageSet",
    "Source",
    "choose",
    "choose_readable",
    "class_folders",
    "contact_sheet",
    "describe_data",
    "digits",
    "find_data",
    "load_images",
    "npz_arrays",
    "open_source",
    "parse_data",
    "parse_shard",
    "place_data",
    "source_labels",
    "split_fifth",
    "unlabelled_images",
]
