"""The sampler of a file, run as other programs would run it, against the runtime's own sampling."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from robustinfer import Predictor
from robustinfer.card import Card
from robustinfer.errors import ExportError
from robustinfer.smoothing.domains import DOMAINS, GridDomain, noise_name
from robustinfer.smoothing.noise import add_noise

from .stream import sampler_domains, sampler_sigma, signed

__all__ = ["check_sampler", "sampler_votes"]

_COUNT = 100


def sampler_votes(
    path: Path, image: npt.NDArray[np.float32], *, seed: int, first: int, count: int, domain: GridDomain
) -> npt.NDArray[np.int64]:
    """Votes per class, then invalid ones, by the sampler in the file; `image` is (1, C, H, W), pixels in [0,1]."""
    kind = DOMAINS.index(domain)
    if path.suffix == ".onnx":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # it warns that the defaults of optional inputs cannot be folded, as intended
        session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
        numbers = {"seed": signed(seed), "first": first, "count": count, "noise": kind}
        inputs: dict[str, Any] = {name: np.asarray(number, np.int64) for name, number in numbers.items()}
        votes: npt.NDArray[np.int64] = session.run(["votes"], {"image": image, **inputs})[0]
        return votes
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.filterwarnings("ignore", message=".*torch.jit.load.*", category=DeprecationWarning)
        module = torch.jit.load(str(path), map_location="cpu")
        result: npt.NDArray[np.int64] = module.sample(torch.from_numpy(image), signed(seed), first, count, kind).numpy()
        return result


def check_sampler(
    path: Path, card: Card, predictor: Predictor, image: npt.NDArray[np.uint8], *, seed: int, tolerance: float
) -> None:
    """Refuse a sampler whose votes differ from the runtime's by more than near-ties explain."""
    unit = image * np.float32(1 / 255)
    sigma = sampler_sigma(card)
    for domain in sampler_domains(sigma):
        found = sampler_votes(path, unit, seed=seed, first=0, count=_COUNT, domain=domain)
        noisy = np.empty((_COUNT, *card.input.shape), dtype=np.float32)
        add_noise(image[0], noise=noise_name(domain), sigma=sigma, seed=seed, first=0, out=noisy)
        scores = predictor.engine.scores(noisy)
        expected = np.bincount(scores.argmax(1), minlength=len(card.classes) + 1)
        top = np.sort(scores, axis=1)
        near_ties = int((top[:, -1] - top[:, -2] <= 2 * tolerance * np.abs(scores).max()).sum())
        differing = int(np.abs(found - expected).sum() + 1) // 2
        if differing > near_ties:
            raise ExportError(
                f"The sampler casts {differing} of {_COUNT} votes differently from the runtime "
                f"({domain} domain, seed {seed}): {found.tolist()} instead of {expected.tolist()}; no file was kept."
            )
