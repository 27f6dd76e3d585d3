"""Where a model comes from: what is written into every run folder, and from there into every model file."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from robustinfer import __version__

from ..data.datasets import ImageData
from ..machine.processes import Processes
from ..recipe import Recipe

__all__ = ["collect_provenance"]


def collect_provenance(recipe: Recipe, data: ImageData, processes: Processes) -> dict[str, Any]:
    """Recipe, seed, digest of the training data, versions, the machine, and the commit of a source checkout."""
    return {
        "recipe": recipe.name,
        "seed": recipe.seed,
        "data": data.name,
        "data_digest": data.digest(),
        "data_images": len(data),
        "commit": _commit(),
        "machine": {
            "device": str(processes.device),
            "processes": processes.world,
            "threads": torch.get_num_threads(),
            "platform": platform.platform(),
        },
        "versions": {
            "python": platform.python_version(),
            "robustinfer": __version__,
            **{name: _version(name) for name in ("torch", "torchvision", "numpy", "safetensors")},
        },
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """The commit of the checkout this package runs from, empty for an installed package."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""
