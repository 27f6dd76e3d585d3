"""TorchScript (.pt) and torch.export (.pt2) files. The only module of the runtime that imports torch."""

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DeviceError, EngineError, MissingExtraError, ModelFileError
from .engine import cuda_index

__all__ = ["TorchEngine"]

log = logging.getLogger("robustinfer")


class TorchEngine:
    """A scores graph in torch, in inference mode. `threads` sets torch's number of threads, one for the process."""

    def __init__(self, path: Path, *, device: str = "auto", threads: int | None = None) -> None:
        self._torch = _torch()
        self.device = _device(self._torch, device)
        if threads:
            self._torch.set_num_threads(threads)
        try:
            self._module = _load(self._torch, path, self.device)
        except Exception as error:  # torch raises whatever its readers raise
            raise ModelFileError(f"{path} is damaged, or not a {path.suffix} model: {_last_line(error)}.") from error
        self.batch = 256
        self.name = f"torch {self._torch.__version__} ({'TorchScript' if path.suffix == '.pt' else 'pt2'})"
        log.info("%s runs on %s with %s", path, self.device, self.name)

    def scores(self, images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Scores (N, K) of images (N, C, H, W)."""
        try:
            with self._torch.inference_mode():
                # torch has no read-only tensors and warns of arrays that are: they are copied.
                pixels = self._torch.from_numpy(images if images.flags.writeable else images.copy())
                result = self._module(pixels.to(self.device))
            array: npt.NDArray[np.float32] = result.float().cpu().numpy()
        except Exception as error:  # a pt2 program's guards raise what Python's assert does
            raise EngineError(f"torch failed: {_last_line(error)}.") from error
        return array


def _torch() -> Any:
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("train", "A TorchScript or pt2 model", "torch") from error
    return torch


def _device(torch: Any, device: str) -> str:
    if device == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return device
    index = cuda_index(device)
    if not torch.cuda.is_available() or index >= torch.cuda.device_count():
        raise DeviceError(f"{device} was requested, but torch finds {torch.cuda.device_count()} CUDA devices here.")
    return f"cuda:{index}"


def _load(torch: Any, path: Path, device: str) -> Any:
    if path.suffix.lower() == ".pt2":
        return torch.export.load(path).module().to(device)
    with warnings.catch_warnings():
        # TorchScript is deprecated in favour of torch.export, but files of it are in use and still run.
        warnings.filterwarnings("ignore", message=".*torch.jit.load.*", category=DeprecationWarning)
        return torch.jit.load(str(path), map_location=device).eval()


def _last_line(error: Exception) -> str:
    """What torch has to say, without its stack of C++ and TorchScript frames."""
    lines = str(error).strip().splitlines()
    return lines[-1].strip().rstrip(".") if lines else type(error).__name__
