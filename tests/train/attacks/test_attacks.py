"""The attacks: inside the ball and [0,1], exact where the optimum is known, and no weaker than foolbox's."""

import warnings

import pytest
import torch
from robust.train.attacks.balls import L2Ball, LinfBall, ball
from robust.train.attacks.pgd import frozen, n_fgsm, pgd
from robust.train.machine.randomness import Draws
from robust.train.members import build_member
from torch import Tensor, nn
from torch.nn import functional

from robustinfer import InputSpec

NORMS = [("linf", 0.1), ("linf", 0.3), ("l2", 0.5), ("l2", 3.0)]


def length(z: Tensor, norm: str) -> Tensor:
    return z.flatten(1).abs().amax(1) if norm == "linf" else z.flatten(1).norm(dim=1)


@pytest.fixture
def linear() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 2))


def images(count: int, *, low: float = 0.0, high: float = 1.0) -> Tensor:
    return torch.rand(count, 1, 6, 6, generator=torch.Generator().manual_seed(1)) * (high - low) + low


@pytest.mark.parametrize(("norm", "delta"), NORMS)
@pytest.mark.parametrize("start", ["random", "input"])
def test_pgd_stays_in_the_ball_and_in_the_pixel_range(linear: nn.Module, norm: str, delta: float, start: str) -> None:
    image, labels = images(64), torch.arange(64) % 2
    draws = Draws(5) if start == "random" else None
    x = pgd(
        lambda x: functional.cross_entropy(linear(x), labels, reduction="none"),
        image,
        ball=ball(norm, delta),
        steps=5,
        step=delta,
        draws=draws,
    )
    assert x.min() >= 0
    assert x.max() <= 1
    assert (length(x - image, norm) <= delta * (1 + 1e-5)).all()
    assert (length(x - image, norm) > 0.5 * delta).any(), "an attack that does not move shows nothing"


@pytest.mark.parametrize(("norm", "delta"), [("linf", 0.1), ("l2", 0.3)])
def test_pgd_reaches_the_optimum_of_a_linear_model(linear: nn.Module, norm: str, delta: float) -> None:
    """The loss of label 0 rises along w_1 - w_0: the optimum is delta times its sign, or its direction.

    The pixels stay clear of 0 and 1, so that only the ball binds; 1.3 delta of steps reach its boundary from the input.
    """
    image = images(32, low=0.4, high=0.6)
    labels = torch.zeros(32, dtype=torch.long)
    x = pgd(
        lambda x: functional.cross_entropy(linear(x), labels, reduction="none"),
        image,
        ball=ball(norm, delta),
        steps=7,
        step=1.3 * delta / 7,
        draws=None,
    )
    head = linear.get_submodule("1")
    assert isinstance(head, nn.Linear)
    direction = (head.weight[1] - head.weight[0]).detach().view(1, 1, 6, 6)
    best = direction.sign() if norm == "linf" else direction / direction.norm()
    torch.testing.assert_close(x, image + delta * best, atol=1e-6, rtol=0)


def test_random_starts_fill_the_l2_ball_uniformly() -> None:
    """The d-th power of the radius of a uniform point is uniform: its mean is 1/2 of delta^d."""
    z = L2Ball(2.0).random(torch.Size((4000, 1, 2, 2)), Draws(0))
    power = (length(z, "l2") / 2.0) ** 4
    assert power.max() <= 1 + 1e-5
    assert power.mean().item() == pytest.approx(0.5, abs=4 * (1 / 12 / 4000) ** 0.5)


def test_random_starts_fill_the_linf_ball() -> None:
    z = LinfBall(0.3).random(torch.Size((500, 1, 4, 4)), Draws(0))
    assert z.abs().max() <= 0.3
    assert z.mean().item() == pytest.approx(0, abs=4 * 0.3 / (3 * 8000) ** 0.5)


def test_n_fgsm_adds_one_step_to_wide_noise(linear: nn.Module) -> None:
    image, labels = images(64, low=0.45, high=0.55), torch.zeros(64, dtype=torch.long)

    def loss(x: Tensor) -> Tensor:
        return functional.cross_entropy(linear(x), labels, reduction="none")

    x = n_fgsm(loss, image, delta=0.1, draws=Draws(2))
    noise = Draws(2).uniform(image.shape) * 0.4 - 0.2
    head = linear.get_submodule("1")
    assert isinstance(head, nn.Linear)
    sign = (head.weight[1] - head.weight[0]).detach().view(1, 1, 6, 6).sign()
    torch.testing.assert_close(x, image + noise + 0.1 * sign, atol=1e-6, rtol=0)


def test_frozen_gives_no_gradients_and_restores_the_network() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    network[0].bias.requires_grad_(False)
    before = [parameter.requires_grad for parameter in network.parameters()]
    network.train()
    with frozen(network):
        assert not network.training
        assert not any(parameter.requires_grad for parameter in network.parameters())
    assert network.training
    assert [parameter.requires_grad for parameter in network.parameters()] == before  # type: ignore[unreachable]


@pytest.mark.parametrize(("norm", "delta"), [("linf", 0.15), ("l2", 1.0)])
def test_pgd_is_at_least_as_strong_as_foolbox(norm: str, delta: float) -> None:
    """Equal steps, equal step length, both from random starts: the mean loss reached is no smaller, up to its noise."""
    with warnings.catch_warnings():
        # foolbox's tensor wrapper eagerpy asks for functions that torch has marked as deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        import foolbox
    spec = InputSpec(1, 8, 8)
    member = build_member("cnn", input=spec, classes=4, mean=torch.zeros(1), std=torch.ones(1), seed=1).eval()
    member.requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    image, labels = torch.rand(300, 1, 8, 8, generator=generator), torch.randint(4, (300,), generator=generator)
    steps = 10

    def loss(x: Tensor) -> Tensor:
        return functional.cross_entropy(member(x), labels, reduction="none")

    ours = pgd(loss, image, ball=ball(norm, delta), steps=steps, step=2 * delta / steps, draws=Draws(1))
    kind = foolbox.attacks.LinfPGD if norm == "linf" else foolbox.attacks.L2PGD
    model = foolbox.PyTorchModel(member, bounds=(0, 1), device="cpu")  # type: ignore[attr-defined]
    torch.manual_seed(0)
    attack = kind(abs_stepsize=2 * delta / steps, steps=steps, random_start=True)
    # The criterion that nothing satisfies makes foolbox return its last point for every image.
    theirs = attack.run(model, image, foolbox.criteria.Misclassification(labels), epsilon=delta)
    gain = loss(ours) - loss(theirs)
    assert gain.mean() >= -3 * gain.std() / 300**0.5 - 1e-4
