"""Check us with somebody else's attack: try to break certificates with foolbox.

    pip install foolbox
    python examples/attack_with_foolbox.py quickstart/run

The run is exported as TorchScript, which torch can differentiate. foolbox attacks the mean probabilities over fixed
noise, a differentiable stand-in for the smoothed classifier, with changes just shorter than each image's certified
radius. The smoothed classifier is then asked for the label of every attacked image. A certificate is broken if that
label is another one; with alpha = 0.001 that should practically never happen. As a control, the same attack with four
times the radius should succeed often.
"""

import argparse
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from foolbox.attacks.projected_gradient_descent import L2ProjectedGradientDescentAttack
from foolbox.models.pytorch import PyTorchModel
from robust.export import export_run
from torch import Tensor, nn

from robustinfer import Predictor
from robustinfer.data import load_images


class MeanProbabilities(nn.Module):
    """Mean probabilities over fixed noise: what an attacker who knows sigma would differentiate."""

    def __init__(self, scores: nn.Module, sigma: float, shape: tuple[int, ...], copies: int = 16) -> None:
        super().__init__()
        self.scores = scores
        self.register_buffer("noise", sigma * torch.randn(copies, *shape, generator=torch.Generator().manual_seed(0)))

    def forward(self, images: Tensor) -> Tensor:
        noise = self.get_buffer("noise")
        noisy = (images[:, None] + noise[None]).flatten(0, 1)
        probabilities = self.scores(noisy).softmax(dim=1).unflatten(0, (len(images), len(noise))).mean(dim=1)
        log: Tensor = probabilities.clamp_min(1e-12).log()
        return log


def attacked(model: PyTorchModel, images: Tensor, labels: Tensor, lengths: list[float]) -> list[np.ndarray]:
    """Each image after foolbox's l2 attack with its own length."""
    attack = L2ProjectedGradientDescentAttack(steps=20)
    changed = []
    for image, label, length in zip(images, labels, lengths, strict=True):
        _, clipped, _ = attack(model, image[None], label[None], epsilons=length)
        changed.append(clipped[0].numpy())
    return changed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--n", type=int, default=2000)
    arguments = parser.parse_args()

    torch.set_num_threads(1)  # one image at a time is too little work to share
    torch.manual_seed(0)  # foolbox starts each attack at random
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # torch announces the end of TorchScript; it is the one exported format that other libraries can differentiate.
        warnings.filterwarnings("ignore", message=".*torch.jit.*", category=DeprecationWarning)
        path = Path(folder) / "model.pt"
        export_run(arguments.run, path)
        predictor = Predictor.load(path)
        module = torch.jit.load(str(path)).eval()

    card = predictor.card
    assert card.sigma is not None, "the run was not trained for smoothing"
    data = load_images("digits", card)
    certified = []
    for number in range(arguments.images):
        image = data.read(number).astype(np.float32) / 255
        certificate = predictor.certify(image, n=arguments.n, seed=number)
        if not certificate.abstained:
            certified.append((image, certificate))
    smoothed = MeanProbabilities(module, card.sigma, card.input.shape)
    model = PyTorchModel(smoothed.eval(), bounds=(0, 1), device="cpu")
    images = torch.from_numpy(np.stack([image for image, _ in certified]))
    labels = torch.tensor([certificate.label for _, certificate in certified])

    for factor in (0.999, 4.0):
        lengths = [factor * certificate.radius for _, certificate in certified]
        changed = attacked(model, images, labels, lengths)
        altered = 0
        for number, (pixels, (_, certificate)) in enumerate(zip(changed, certified, strict=True)):
            answer = predictor.predict(pixels, n=arguments.n, seed=arguments.images + number)
            altered += answer.label is not None and answer.label != certificate.label
        inside = "inside the certified radius" if factor < 1 else "at four times the radius, as a control"
        print(f"{altered} of {len(certified)} labels altered {inside}")
        if factor < 1 and altered:
            raise SystemExit("a certificate was broken: please report it, with the seed and the model")


if __name__ == "__main__":
    main()
