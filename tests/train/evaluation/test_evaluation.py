"""Evaluation: counts that can be checked by hand, certified accuracy from the runtime, files and sentences."""

import json
import sys
from pathlib import Path
from types import FrameType

import pytest
import torch
from robust.train import Ensemble, Recipe, Run, train
from robust.train.attacks.accuracy import PgdAttack, measure
from robust.train.attacks.autoattack import measure_strong
from robust.train.attacks.proportions import Proportion
from robust.train.data.datasets import ImageData, load_data
from robust.train.data.pixels import TensorPixels
from robust.train.evaluation.certified import certified_accuracy, memory_predictor
from robust.train.evaluation.evaluation import (
    EvaluationOptions,
    evaluate_model,
    evaluate_run,
    load_test_images,
)
from robust.train.machine.processes import Processes
from torch import Tensor, nn
from typer.testing import CliRunner

from robustinfer import InputSpec
from robustinfer.cli.main import app
from robustinfer.errors import ArgumentError, DataError

CPU = torch.device("cpu")


class Nearest(nn.Module):
    """Four classes of one pixel, at 0, 1/3, 2/3, 1: the nearest wins. Robust is who is far from the next border."""

    def forward(self, image: Tensor) -> Tensor:
        centres = torch.tensor([0, 1 / 3, 2 / 3, 1])
        return -10 * (image.flatten(1) - centres).square()


@pytest.fixture
def pixels() -> ImageData:
    """Borders are at 1/6, 1/2, 5/6. Distances to the next border, and class: see the table."""
    table = [(0.00, 0), (0.12, 0), (0.30, 1), (0.48, 1), (0.60, 2), (0.95, 3), (0.20, 0)]  # the last is wrong
    images = torch.tensor([round(255 * x) for x, _ in table], dtype=torch.uint8).view(-1, 1, 1, 1)
    return ImageData("pixels", TensorPixels(images), torch.tensor([label for _, label in table]), tuple("abcd"))


@pytest.mark.parametrize(("delta", "robust"), [(0.0, 6), (0.03, 5), (0.08, 4), (0.11, 3), (0.125, 2)])
def test_pgd_counts_what_a_ruler_counts(pixels: ImageData, delta: float, robust: int) -> None:
    attack = PgdAttack(norm="linf", delta=delta, steps=20, restarts=5)
    found = measure(Nearest(), pixels, attack, classes=4, processes=Processes(CPU), seed=(0,))
    assert (found.images, found.clean, found.robust) == (7, 6, robust)
    assert found.predicted == (2, 3, 1, 1)


@pytest.mark.parametrize("attack", ["apgd-ce", "apgd-t", "autoattack"])
def test_strong_attacks_count_the_same(pixels: ImageData, attack: str) -> None:
    found = measure_strong(Nearest(), pixels, attack, norm="linf", delta=0.08, seed=0, device=CPU)
    assert (found.clean, found.robust) == (6, 4)


def test_strong_attacks_leave_the_global_random_stream_alone(pixels: ImageData) -> None:
    before = torch.random.get_rng_state()
    measure_strong(Nearest(), pixels, "apgd-ce", norm="l2", delta=0.08, seed=0, device=CPU)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_strong_attacks_leave_a_debugger_its_hook(pixels: ImageData) -> None:
    def trace(frame: FrameType, event: str, argument: object) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        measure_strong(Nearest(), pixels, "apgd-ce", norm="linf", delta=0.08, seed=0, device=CPU)
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)


def test_certified_accuracy_is_the_runtimes(pixels: ImageData) -> None:
    """One pixel with noise of sigma: the radius of the nearest-centre rule is at most the distance to the border."""
    predictor = memory_predictor(Nearest(), classes=tuple("abcd"), input=InputSpec(1, 1, 1), sigma=0.02, device=CPU)
    found = certified_accuracy(predictor, pixels, n=2000, alpha=0.001, seed=0)
    assert found["accuracy"][0]["count"] >= 5
    assert found["accuracy"][0]["radius"] == 0
    assert found["accuracy"][1] == {"radius": 0.25, **Proportion(0, 7).to_json()}
    assert 0 < found["average_radius"] < 0.1


def test_intervals_against_published_values() -> None:
    """Clopper-Pearson for 5 of 10: (0.1871, 0.8129), and the rule of three for 0 of n."""
    assert Proportion(5, 10).interval == pytest.approx((0.1871, 0.8129), abs=1e-4)
    assert Proportion(0, 100).interval == pytest.approx((0, 1 - 0.025 ** (1 / 100)))
    assert str(Proportion(5, 10)) == "50.0 % [18.7, 81.3]"


@pytest.fixture(scope="module")
def smoothed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    recipe = Recipe(
        name="smoothed", data="digits", limit=256, width=0.125, stages=2, epochs=1, growth=1, batch=64, steps=1,
        norm="l2", delta=0.3, smoothing="scores", sigma=0.25, previous="adversarial", validation_images=30,
        optimizer="adam", learning_rate=0.01,
    )  # fmt: skip
    return train(recipe, tmp_path_factory.mktemp("runs") / "smoothed", device="cpu")


def test_a_run_is_measured_after_each_stage_and_its_last_member_alone(smoothed: Run) -> None:
    data = load_test_images(None, smoothed.recipe.data, images=40)
    assert len(data) == 40
    options = EvaluationOptions(steps=2, restarts=1, n=50)
    result = evaluate_run(smoothed, data, options, device=CPU)
    assert [row.what for row in result.rows] == ["1 of 2 stages", "2 of 2 stages", "last member alone"]
    assert all(row.certified is not None for row in result.rows)
    assert all(row.robust is not None and row.robust.count <= row.clean.count for row in result.rows)
    evaluate_run(smoothed, data, EvaluationOptions(attack="none", certify=False), device=CPU)
    stored = smoothed.evaluation
    assert set(stored["attacks"]) == {"pgd-2x1", "none"}
    assert stored["attacks"]["pgd-2x1"] == json.loads(json.dumps(result.to_json()))
    assert set(stored["certified"]) == {row.what for row in result.rows}
    with pytest.raises(ArgumentError, match="apgd-t needs a deterministic model"):
        evaluate_run(smoothed, data, EvaluationOptions(attack="apgd-t"), device=CPU)


def test_data_of_other_classes_is_refused(smoothed: Run, pixels: ImageData) -> None:
    with pytest.raises(DataError, match="The model knows the classes 0, 1, 2"):
        evaluate_run(smoothed, pixels, EvaluationOptions(), device=CPU)


def test_a_torchscript_file_is_attacked_as_the_run_is(smoothed: Run, tmp_path: Path) -> None:
    from robust.export import export_run

    data = load_test_images(None, "digits", images=40)
    model = tmp_path / "model.pt"
    export_run(smoothed, model, format="torchscript")
    options = EvaluationOptions(steps=2, restarts=1, n=50, prefixes=False)
    file = evaluate_model(model, data, options, device=CPU).rows[0]
    run = evaluate_run(smoothed, data, options, device=CPU).rows[0]
    assert file.certified is not None
    assert run.certified is not None
    assert file.clean.count == pytest.approx(run.clean.count, abs=1)
    assert file.robust is not None
    assert run.robust is not None
    assert file.robust.count == pytest.approx(run.robust.count, abs=2)
    assert file.certified["average_radius"] == pytest.approx(run.certified["average_radius"], abs=0.01)


def test_an_onnx_file_is_certified_as_the_run_is_and_not_attacked(smoothed: Run, tmp_path: Path) -> None:
    from robust.export import export_run

    data = load_test_images(None, "digits", images=40)
    model = tmp_path / "model.onnx"
    export_run(smoothed, model)
    result = evaluate_model(model, data, EvaluationOptions(n=50), device=CPU)
    run = evaluate_run(smoothed, data, EvaluationOptions(attack="none", n=50, prefixes=False), device=CPU).rows[0]
    assert result.attack == "none"
    assert result.rows[0].robust is None
    assert result.rows[0].certified is not None
    assert run.certified is not None
    assert result.rows[0].certified["average_radius"] == pytest.approx(run.certified["average_radius"], abs=0.01)
    with torch.no_grad():
        plain = smoothed.ensemble()(data.take(torch.arange(40)) / 255).argmax(dim=1)
    assert result.rows[0].clean.count == int((plain == data.labels).sum())
    answer = CliRunner().invoke(app, ["evaluate", str(model), "--images", "5", "--no-certify", "--device", "cpu"])
    assert answer.exit_code == 0, answer.output
    assert "model.onnx was not attacked" in answer.output


def test_the_commands_answer_in_json_and_in_words(tmp_path: Path) -> None:
    runner, folder = CliRunner(), tmp_path / "run"
    small = ["limit=128", "width=0.125", "stages=1", "epochs=1", "steps=1", "validation_images=30"]
    changes = [word for field in small for word in ("--set", field)]
    answer = runner.invoke(app, ["train", "digits-linf", "--out", str(folder), "--device", "cpu", "--json", *changes])
    assert answer.exit_code == 0, answer.output
    document = json.loads(answer.stdout)
    assert document["stages"][0]["metrics"]["epochs"] == 1
    words = ["evaluate", str(folder), "--images", "20", "--steps", "1", "--restarts", "1", "--device", "cpu"]
    table = runner.invoke(app, words)
    assert "1 of 1 stages" in table.stdout
    found = json.loads(runner.invoke(app, [*words, "--json"]).stdout)
    assert found["attack"] == "pgd-1x1"
    assert found["images"] == 20


def test_test_images_are_a_fixed_part_of_the_test_split() -> None:
    whole, some = load_data("digits", split="test"), load_test_images("digits", "mnist", images=25)
    assert some.digest() == load_test_images(None, "digits", images=25).digest()
    assert len(load_test_images(None, "digits")) == len(whole)
    numbers = some.indices
    assert numbers is not None
    assert torch.equal(some.take(torch.arange(25)), whole.take(numbers))


def test_an_ensemble_needs_one_beta_per_member() -> None:
    with pytest.raises(ValueError, match="one beta per member; found 1 members, 2 betas"):
        Ensemble([Nearest()], [1.0, 2.0])


def test_examples_of_an_attack_show_every_class_before_one_of_them_twice() -> None:
    from robust.train.evaluation.demonstration import _varied

    within = [(0.1, 4), (0.2, 0), (0.3, 2), (0.4, 1), (0.5, 3)]
    assert _varied(within, torch.tensor([7, 8, 7, 9, 7])) == [4, 1, 3, 0, 2]
