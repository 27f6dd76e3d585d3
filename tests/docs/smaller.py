"""How an example is made small enough for a test: placeholders, the size of the work, and nothing else.

Options are put before those of the page, so that what the page says wins.
"""

import re

from .conftest import SMALL

__all__ = ["smaller_command", "smaller_python", "smaller_words"]

_TRAIN = (
    "--set data=digits --set limit=96 --set validation_images=16 --set batch=48 --set width=0.25 "
    "--set stages=2 --set epochs=1 --set growth=1 --set steps=2 --threads 1"
)
_OPTIONS = {
    "quickstart": " ".join(SMALL),
    "train": _TRAIN,
    "evaluate": "--images 8 --steps 2 --restarts 1 --n 100 --threads 1",
    "distill": "--images 8 --restarts 1 --n 100 --epochs 1 --threads 1",
    "export": "--samples 50",
    "certify": "--n 300 --limit 16",
    "bench": "--seconds 0.01 --batches 1,16",
    "serve": "--check",
}
# What stands on a page, and what stands for it here. A placeholder is a whole word.
_REPLACED = {
    r"(?<= train )(.*)--data DIR": r"\1--data digits",
    r"--data cifar10:\S+": "--data digits",  # the small model is one of digits
    r"--n 100000\b": "--n 300",
    r"--budget 45m": "--budget 1s",
    r"--budget 1h30m": "--budget 2s",
    r"--from runs/clean --set data=folder:images": "--from quickstart/run --set data=digits",
    r"(?<!\S)RUN(?!\S)": "quickstart/run",
    r"(?<!\S)DIR(?!\S)": "data",
    r"(?<!\S)PATH(?!\S)": "$OLDPWD/pictures",  # after `cd`
    r"(?<!\S)MODEL(?!\S)": "digits.onnx",
    r"(?<!\S)COMMAND(?!\S)": "certify",
    r"(?<!\w)/shared/": "shared/",
    # One machine and one process instead of two machines with eight each.
    r"--nnodes 2 --nproc-per-node 8": "--nnodes 1 --nproc-per-node 1",
    r"--nproc-per-node 4": "--nproc-per-node 2",
    r"--rdzv-endpoint HOST:29500": "--rdzv-endpoint localhost:0",
    r" -- robust certify": " -- robust certify --limit 16",
    r"(?= --probe)": " --set architecture=cnn",
    r"-m robustinfer train (\S+)": rf"-m robustinfer train \1 {_TRAIN}",
    # Pixels that the page leaves out.
    r"\[\[0, 128, \.\.\.\], \.\.\.\]": str([[0, 128] * 4] * 8),
    # The programs of examples/.
    r"train_own\.py": "train_own.py --set stages=2 --set epochs=1 --set growth=1 --set size=16",
    r"attack_with_foolbox\.py": "attack_with_foolbox.py --images 48 --n 300",
    r"certify_folder\.py": "certify_folder.py --n 500",
}
_PYTHON = {
    "certify(image, n=10_000, alpha=0.001)": "certify(image, n=300, alpha=0.001)",
    '.set(["stages=2"])': '.set(["stages=2", "epochs=1", "limit=96", "width=0.25"])',
}


def smaller_command(text: str) -> str:
    """The command with its placeholders filled in."""
    for pattern, here in _REPLACED.items():
        text = re.sub(pattern, here, text)
    return text


def smaller_words(words: list[str]) -> list[str]:
    """The words of `robust COMMAND ...`, with small work."""
    command, *rest = words[1:]
    options = _OPTIONS.get(command, "").split()
    if "--data" not in rest and "--limit" in options:  # images by name have no limit
        options = options[: options.index("--limit")]
    return [command, *options, *rest]


def smaller_python(text: str) -> str:
    """A program of a page, with small work."""
    for there, here in _PYTHON.items():
        text = text.replace(there, here)
    return text
