"""Which devices the workers of a server use, and how TorchServe is told.

TorchServe 0.12 counts the GPUs by itself: it cannot read CUDA_VISIBLE_DEVICES if it names devices by UUID (as in
Kubernetes) and takes `-1` for one GPU. So the launcher counts, tells TorchServe plain numbers, and hands the workers
the original value under another name, which they put back before any GPU is touched.
"""

import math
import os
import shutil
import subprocess
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from robustinfer.errors import ArgumentError

__all__ = ["VISIBLE", "Allotment", "allot", "restore_visible_devices"]

VISIBLE = "ROBUST_SERVE_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Allotment:
    """The devices of one model's workers: `gpus` many GPUs (0: the CPU), `workers` processes with `threads` each."""

    gpus: int
    workers: int
    threads: int

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment of the server: plain device numbers for TorchServe, the original value for the workers."""
        result = dict(environment)
        visible = result.pop("CUDA_VISIBLE_DEVICES", None)
        if self.gpus:
            result["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in range(self.gpus))
            if visible is not None:
                result[VISIBLE] = visible
        result["OMP_NUM_THREADS"] = str(self.threads)
        return result


def allot(device: str, *, models: Sequence[Path], workers: int | None, threads: int | None) -> Allotment:
    """Divide the machine: one worker a GPU, or the cores of the CPU among all workers of all models."""
    if device not in ("auto", "cpu", "cuda"):
        raise ArgumentError(f"device is auto, cpu or cuda; found {device!r} (CUDA_VISIBLE_DEVICES chooses among GPUs).")
    gpus = _count_gpus(os.environ) if device != "cpu" else 0
    if device == "cuda" and gpus == 0:
        raise ArgumentError("device is cuda, but this machine has no visible NVIDIA GPU: use --device cpu or auto.")
    without = [path for path in models if gpus and not _engine_has_cuda(path)]
    if without and device == "cuda":
        raise ArgumentError(f"device is cuda, but the engine installed for {without[0]} runs on the CPU only.")
    gpus = 0 if without else gpus
    chosen = workers or max(gpus, 1)
    return Allotment(gpus, chosen, threads or max(1, _cores() // (chosen * len(models))))


def restore_visible_devices(environment: MutableMapping[str, str] = os.environ) -> None:
    """In a worker: put back the value of CUDA_VISIBLE_DEVICES that the launcher was started with."""
    if VISIBLE in environment:
        environment["CUDA_VISIBLE_DEVICES"] = environment.pop(VISIBLE)


def _cores(quota_file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """The cores this process may use: taskset, and the limits of a container, give fewer than the machine has."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = quota_file.read_text().split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no such limit ("max"), or no control groups at all
        return cores


def _count_gpus(environment: Mapping[str, str]) -> int:
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        # As CUDA does: the list ends at the first device that does not exist.
        names = [name.strip() for name in visible.split(",")]
        return next((index for index, name in enumerate(names) if name in ("", "-1")), len(names))
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    try:
        done = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


def _engine_has_cuda(model: Path) -> bool:
    """Whether what runs this file, ONNX Runtime or torch, was built for GPUs."""
    if model.suffix == ".onnx":
        import onnxruntime

        return "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    import torch

    return bool(torch.cuda.is_available())
