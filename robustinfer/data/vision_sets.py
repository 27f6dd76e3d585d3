"""The classification sets of torchvision: how each is asked for its parts, and why others cannot be read as one.

An internal module of `vision.py`. A variant of a set stands behind a hyphen, as in EMNIST-letters.
"""

from typing import Any

__all__ = ["REFUSED", "SETS", "refusal"]

Parts = dict[str, dict[str, Any]]

_TRAIN: Parts = {"train": {"train": True}, "test": {"train": False}}
_SPLIT: Parts = {"train": {"split": "train"}, "test": {"split": "test"}}
_VAL: Parts = {"train": {"split": "train"}, "test": {"split": "val"}}
_TRAINVAL: Parts = {"train": {"split": "trainval"}, "test": {"split": "test"}}
_EMNIST = ("byclass", "bymerge", "balanced", "letters", "digits", "mnist")


def _emnist(split: str) -> Parts:
    return {part: {"split": split, **arguments} for part, arguments in _TRAIN.items()}


def _places(small: bool) -> Parts:
    splits = {"train": "train-standard", "test": "val"}  # the labels of its test images are not published
    return {part: {"split": split, "small": small} for part, split in splits.items()}


SETS: dict[str, Parts] = {
    **dict.fromkeys(("MNIST", "FashionMNIST", "KMNIST", "QMNIST", "CIFAR10", "CIFAR100", "USPS"), _TRAIN),
    "EMNIST": _emnist("balanced"),
    **{f"EMNIST-{split}": _emnist(split) for split in _EMNIST},
    **dict.fromkeys(("SVHN", "STL10", "GTSRB", "StanfordCars", "Food101", "Flowers102", "DTD", "Country211"), _SPLIT),
    **dict.fromkeys(("RenderedSST2", "PCAM", "FER2013"), _SPLIT),
    **dict.fromkeys(("FGVCAircraft", "OxfordIIITPet"), _TRAINVAL),
    **dict.fromkeys(("Imagenette", "CLEVRClassification"), _VAL),
    "Places365": _places(small=False),
    "Places365-small": _places(small=True),
    **{name: {} for name in ("EuroSAT", "SUN397", "Caltech101", "Caltech256", "SEMEION")},
}
"""The sets by name, and the arguments for each part; sets without parts have none here."""

_GENERAL = "it is a way to read files, not a set: use folder:DIR"
_FOLDERS = "its folders are classes: use folder:DIR"
_VIDEO = "it holds videos"
_PAIRS = "it holds pairs of images (stereo or optical flow), not labelled ones"
_BOXES = "its labels are boxes or outlines, not one class per image"
_WORDS = "its labels are sentences"
_STRANGERS = "its test images are of other classes than its training images"

REFUSED: dict[str, str] = {
    **dict.fromkeys(("ImageFolder", "DatasetFolder", "VisionDataset", "wrap_dataset_for_transforms_v2"), _GENERAL),
    "FakeData": "it holds random pixels",
    "ImageNet": "use imagenet:DIR",
    "INaturalist": f"{_FOLDERS}/2021_train_mini",
    **dict.fromkeys(("LSUN", "LSUNClass"), "it is kept in LMDB databases: unpack one folder per class, use folder:DIR"),
    **dict.fromkeys(("Omniglot", "LFWPeople"), _STRANGERS),
    "LFWPairs": "its labels say whether two images show the same person",
    "CelebA": "an image has forty attributes, not one class",
    "PhotoTour": "it holds patches to be matched, not labelled images",
    "MovingMNIST": _VIDEO,
    **dict.fromkeys(("Kinetics", "HMDB51", "UCF101"), _VIDEO),
    **dict.fromkeys(("CocoCaptions", "SBU", "Flickr8k", "Flickr30k"), _WORDS),
    **dict.fromkeys(("CocoDetection", "VOCSegmentation", "VOCDetection", "Cityscapes", "WIDERFace"), _BOXES),
    **dict.fromkeys(("SBDataset", "Kitti"), _BOXES),
    **dict.fromkeys(("KittiFlow", "Sintel", "FlyingChairs", "FlyingThings3D", "HD1K"), _PAIRS),
    **dict.fromkeys(("Kitti2012Stereo", "Kitti2015Stereo", "CarlaStereo", "Middlebury2014Stereo"), _PAIRS),
    **dict.fromkeys(("CREStereo", "FallingThingsStereo", "SceneFlowStereo", "SintelStereo"), _PAIRS),
    **dict.fromkeys(("InStereo2k", "ETH3DStereo"), _PAIRS),
}
"""What else `torchvision.datasets` has, and why it is not read as a classification set."""


def refusal(name: str) -> str:
    """Why there is no torchvision:NAME of this name."""
    if name in REFUSED:
        return f"torchvision:{name} cannot be read as images of one class each: {REFUSED[name]}."
    return f"torchvision:NAME takes one of {', '.join(SETS)}; found {name!r}."
