"""ONNX Runtime, on CPU or CUDA."""

import hashlib
import logging
import math
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import CardError, DeviceError, EngineError, MissingExtraError, ModelFileError
from .engine import cuda_index, first_line, good_batch
from .external import combined_digest, external_files, model_digest

__all__ = ["OnnxEngine", "runtime", "session_options"]

log = logging.getLogger("robustinfer")

_BATCH = 256  # where the graph leaves the size of its images open
_DYNAMIC = b"DynamicQuantize"  # in the names of the operators that choose a quantisation from the batch they see
_IN_MEMORY = 1 << 30  # larger files are opened by name


class OnnxEngine:
    """A scores graph in ONNX Runtime. `InferenceSession.run` may be called from several threads at once."""

    def __init__(self, path: Path, *, device: str = "auto", threads: int | None = None) -> None:
        onnxruntime, self.threads = runtime(), threads
        self.device, providers = _providers(device, onnxruntime.get_available_providers())
        options = session_options(threads)
        source, self.digest, weights = _read(path, options)
        self.dynamic = _names_dynamic(path, source)
        try:
            self._session = onnxruntime.InferenceSession(source, sess_options=options, providers=providers)
        except Exception as error:  # ONNX Runtime's exceptions have no common base class
            if self.device != "cpu" and device != "auto":
                raise DeviceError(f"ONNX Runtime cannot use {device} for {path}: {first_line(error)}.") from error
            raise ModelFileError(f"{path} is damaged, or not an ONNX model: {first_line(error)}.") from error
        del weights  # not before: the session reads them while it is made, and has its own copy afterwards
        used = self._session.get_providers()[0]
        if self.device != "cpu" and used != "CUDAExecutionProvider":
            if device != "auto":
                raise DeviceError(f"ONNX Runtime cannot use {device} here: it chose {used}.")
            self.device = "cpu"
        # ONNX Runtime would start again on the CPU without a word when a run fails; a user who named a device wants
        # that device. (Single operators that CUDA lacks, and those that compute shapes and indices, as in a cascade,
        # do run on the CPU: to forbid that would refuse such files altogether.)
        if device not in {"auto", "cpu"}:
            self._session.disable_fallback()
        self.name = f"onnxruntime {onnxruntime.__version__} ({used})"
        self.metadata: dict[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)
        self._input = _named(self._session.get_inputs(), "image")
        self._output = _named(self._session.get_outputs(), "scores").name
        sizes = self.input_shape[1:]
        self.batch = good_batch(math.prod(sizes)) if all(isinstance(size, int) for size in sizes) else _BATCH
        log.info("%s runs on %s with %s", path, self.device, self.name)

    @property
    def input_shape(self) -> tuple[Any, ...]:
        """The shape the graph declares, (batch, C, H, W); an entry that is not a number is free."""
        return tuple(self._input.shape)

    def scores(self, images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Scores (N, K) of images (N, C, H, W)."""
        try:
            result: npt.NDArray[np.float32] = self._session.run([self._output], {self._input.name: images})[0]
        except Exception as error:  # see above
            raise EngineError(f"ONNX Runtime failed: {first_line(error)}.") from error
        return result


def session_options(threads: int | None = None) -> Any:
    """How ONNX Runtime is set up here: for batches that vary in size, beside threads that draw noise."""
    options = runtime().SessionOptions()
    options.intra_op_num_threads = threads or 0
    options.log_severity_level = 3  # its warnings are about its own optimisations; errors are raised
    # Batches vary in size, and a memory plan is kept for every size: plans cost memory and, measured, save no time.
    options.enable_mem_pattern = False
    # Between two runs the noise of the next one is drawn: threads that spin meanwhile only take processors from it
    # (measured on a shared machine: a third of the processor time of a small graph).
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Threads take small blocks of an operator as they come, so that one which the machine delays holds up none: the
    # scores are the same, bit for bit.
    options.add_session_config_entry("session.dynamic_block_base", "4")
    return options


def runtime() -> Any:
    """The package onnxruntime, of which there are two; an error says which to install."""
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise MissingExtraError(
            "cpu", 'An ONNX model (with a GPU: "robustinfer[gpu]" instead)', "onnxruntime"
        ) from error
    return onnxruntime


def _providers(device: str, available: list[str]) -> tuple[str, list[Any]]:
    """The device in full, and the providers to ask for, best first."""
    if device == "auto":
        device = "cuda:0" if "CUDAExecutionProvider" in available else "cpu"
        fallback = ["CPUExecutionProvider"]
    else:
        fallback = []
    if device == "cpu":
        return "cpu", ["CPUExecutionProvider"]
    index = cuda_index(device)
    if "CUDAExecutionProvider" not in available:
        raise DeviceError(
            f"{device} was requested, but this ONNX Runtime offers only {', '.join(available)}: "
            'pip install "robustinfer[gpu]" on a machine with CUDA, or ask for the device cpu.'
        )
    # TF32 changes scores by more than float32 rounding does; certificates are replayed in full precision.
    cuda = ("CUDAExecutionProvider", {"device_id": index, "use_tf32": 0})
    return f"cuda:{index}", [cuda, *fallback]


def _read(path: Path, options: Any) -> tuple[Any, str, list[bytes]]:
    """The model for the session, its digest, and the weights beside it, which must live until the session is made.

    The digest is that of the very bytes the session gets, where they fit into memory.
    """
    # Without this a file of ONNX Runtime's own format would be read as such, whatever its suffix says.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    try:
        external = external_files(path)
        if sum(file.stat().st_size for file in (path, *external.values())) > _IN_MEMORY:
            return os.fspath(path), model_digest(path), []
        content = path.read_bytes()
        weights = {location: file.read_bytes() for location, file in external_files(path, content).items()}
    except OSError as error:
        raise ModelFileError(f"Cannot read the model file {path}: {error.strerror or error}.") from error
    digest = combined_digest(_sha256(content), {location: _sha256(data) for location, data in weights.items()})
    if not weights:
        return content, digest, []
    if not hasattr(options, "add_external_initializers_from_files_in_memory"):  # an older ONNX Runtime
        return os.fspath(path), digest, []
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.fspath(path.parent))
    buffers = list(weights.values())
    options.add_external_initializers_from_files_in_memory(list(weights), buffers, [len(data) for data in buffers])
    return content, digest, buffers


def _names_dynamic(path: Path, source: bytes | str) -> bool:
    """Whether a model, or the file of one that is opened by name, names an operator that looks at its whole batch."""
    if isinstance(source, bytes):
        return _DYNAMIC in source
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return mapped.find(_DYNAMIC) >= 0
    except OSError as error:
        raise ModelFileError(f"Cannot read the model file {path}: {error.strerror or error}.") from error


def _sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _named(values: list[Any], name: str) -> Any:
    """The value of that name, else the first one: other people's models use other names."""
    if not values:
        raise CardError(f"Expected a graph with a value named {name!r}; this one has none at all.")
    return next((value for value in values if value.name == name), values[0])
