"""`robust quickstart`: from nothing to a trained, exported, attacked, certified and reported model."""

import json
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..extras import needed
from .console import interruptible, note, print_text, program, progress

if TYPE_CHECKING:
    from robust.train import Recipe, Run

    from ..predictor import Predictor

__all__ = ["command"]

_IMAGES, _SAMPLES, _ALPHA = 200, 5000, 0.001
_STEPS, _RESTARTS = 20, 2
_EXAMPLES = 10  # attacked images that are kept: the report shows the first of them, the page of `robust demo` all
_ORDINARY_EPOCHS = 8
_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def command(
    out: Annotated[Path, typer.Option(help="Output folder.")] = Path("quickstart"),
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one field of the recipe digits-l2; may be repeated."),
    ] = None,
    images: Annotated[int, typer.Option(help="Test images to certify.", min=1)] = _IMAGES,
    n: Annotated[int, typer.Option(help="Samples per image.", min=100)] = _SAMPLES,
    threads: Annotated[
        int,
        typer.Option(min=0, help="CPU threads for torch; one makes training reproducible on any number of cores."),
    ] = 1,
) -> None:
    """Train a boosted ensemble on scikit-learn's digits, export it, attack it, certify it, and write a report.

    Takes about a minute on two cores and needs no network. Run it again to resume after an interruption, or to see the
    results again.

    [bold]robust quickstart --out quickstart[/bold]
    """
    with needed(extra="all", why="robust quickstart"):  # the commands to try at the end need the other extras, too
        import onnxruntime  # noqa: F401
        import torch
        from robust.train import Recipe

    if threads:
        torch.set_num_threads(threads)
    try:
        _all_steps(Recipe.load("digits-l2").set(set_ or ()), out, images=images, n=n)
    except KeyboardInterrupt:
        note("Run the same command again to resume.")
        raise


def _all_steps(recipe: "Recipe", out: Path, *, images: int, n: int) -> None:
    begun = time.monotonic()
    with _step(1, "train a boosted ensemble on scikit-learn's digits"):
        run = _train(recipe, out / "run")
        ordinary = _train(_ordinary(recipe), out / "ordinary", quiet=True)
    with _step(2, "export it as one file, and its first member as another"):
        model = _export(run, out / "digits.onnx", name="digits", stages=None)
        single = _export(run, out / "first-member.onnx", name="first-member", stages=1)
    with _step(3, "attack every stage of it"):
        _evaluate(run)
    with _step(4, f"certify {images} test images, with both files"):
        certified = _certify(model, out / "certificates.jsonl", images, n)
        _certify(single, out / "certificates-first-member.jsonl", images, n)
    with _step(5, "verify one certificate by replay"):
        index = _verify(model, certified)
    with _step(6, "attack an ordinary network on the same images, and write the report"):
        _export(ordinary, out / "ordinary.onnx", name="ordinary", stages=None)  # `robust demo` compares with it
        _demonstrate(model, certified, ordinary, out / "attacked.npz", recipe.delta)
        _report(out)
        _write_images(out / "images")
    _next_commands(out, index, time.monotonic() - begun)


@contextmanager
def _step(number: int, what: str) -> Iterator[None]:
    begun = time.monotonic()
    note(f"[{number}/6] {what}")
    yield
    note(f"      done in {time.monotonic() - begun:.0f} s")


def _ordinary(recipe: "Recipe") -> "Recipe":
    """The same architecture as everybody trains it: one stage, no attack, no noise."""
    return recipe.replace(
        name="ordinary",
        description="the architecture of digits-l2, trained without attack and without noise",
        stages=1,
        epochs=min(_ORDINARY_EPOCHS, max(1, 2 * recipe.epochs)),
        attack="none",
        smoothing="none",
        sigma=0.0,
    )


def _train(recipe: "Recipe", folder: Path, *, quiet: bool = False) -> "Run":
    from robust.train import Run, train

    from ..errors import StoppedError
    from .training_progress import watching

    if (folder / "recipe.toml").is_file() and Run.open(folder).finished:
        run = train(recipe, folder, resume=True)  # trains nothing, but refuses a run of another recipe or data
    else:
        with watching(recipe) as watcher, interruptible() as stop:
            try:
                run = train(recipe, folder, resume=True, watcher=None if quiet else watcher, stop=stop.is_set)
            except StoppedError:
                raise KeyboardInterrupt from None
    if not quiet:
        for stage in run.stages:
            note(
                f"      stage {stage.number}: {stage.metrics['epochs']} epochs, {stage.seconds:.0f} s, held-out "
                f"{stage.metrics['clean_accuracy']:.1%} clean, {stage.metrics['robust_accuracy']:.1%} under attack"
            )
    return run


def _export(run: "Run", path: Path, *, name: str, stages: int | None) -> "Predictor":
    """Export, unless the file is there and was made of these stages."""
    from robust.export import export_run

    from ..files import sha256, write_text
    from ..predictor import Predictor

    chosen = run.stages[: stages or len(run.stages)]
    note_path = path.with_suffix(".source.json")
    source = {"stages": [stage.digest for stage in chosen], "betas": list(chosen[-1].betas)}
    made = json.loads(note_path.read_text(encoding="utf-8")) if note_path.is_file() and path.is_file() else None
    if made is None or made["source"] != source or made["digest"] != sha256(path):
        samples = 1000
        with progress(f"comparing {path.name} with the run", total=samples) as advance:
            exported = export_run(run, path, stages=stages, name=name, samples=samples, progress=advance)
        write_text(note_path, json.dumps({"source": source, "digest": exported.digest}) + "\n")
    predictor = Predictor.load(path, device="cpu")
    members = len(predictor.card.members)
    note(f"      {path}: {path.stat().st_size:,} bytes, {members} member{'s' if members > 1 else ''}")
    return predictor


def _evaluate(run: "Run") -> None:
    import torch
    from robust.train.evaluation.evaluation import EvaluationOptions, evaluate_run, load_test_images

    options = EvaluationOptions(attack="pgd", steps=_STEPS, restarts=_RESTARTS, certify=False)
    result = run.evaluation.get("attacks", {}).get(options.name)
    if result is None:
        data = load_test_images(None, run.recipe.data)
        parts = len(run.stages) + (len(run.stages) > 1)
        with progress("attacking", total=parts * len(data)) as advance:
            result = evaluate_run(
                run, data, options, device=torch.device("cpu"), progress=lambda _, done: advance(done)
            ).to_json()
    for row in result["rows"]:
        note(f"      {row['what']}: {row['clean']['rate']:.1%} clean, {row['robust']['rate']:.1%} under attack")


def _certify(predictor: "Predictor", path: Path, images: int, n: int) -> list[Any]:
    from ..certificate_file import certify_data
    from ..data import load_images

    data = load_images("digits", predictor.card)
    limit = min(images, len(data))
    with interruptible() as stop, progress(f"certifying {limit} images", limit) as advance:
        found = certify_data(predictor, data, path, limit=limit, stop=stop, progress=advance, n=n, alpha=_ALPHA)
        entries = list(found)
    if len(entries) < limit:
        note(f"Stopped after {len(entries)} of {limit} images: run the same command again to resume.")
        raise typer.Exit(130)
    right = sum(entry.correct for entry in entries)
    half = sum(entry.correct_radius >= 0.5 for entry in entries)
    note(f"      {predictor.card.name}: {right} of {limit} certified correctly, {half} of them up to radius 0.5")
    return entries


def _verify(predictor: "Predictor", entries: list[Any]) -> int:
    """Replay the certificate of the largest radius; its number."""
    from ..data import load_images
    from ..errors import CertificateError

    best = max(entries, key=lambda entry: entry.correct_radius)
    replay = predictor.verify(best.certificate, load_images("digits", predictor.card).read(best.index))
    if not replay.ok:
        raise CertificateError(f"The certificate of image {best.index} does not replay: {replay.reason}.")
    note(f"      image {best.index}: {replay.reason}")
    return int(best.index)


def _demonstrate(predictor: "Predictor", entries: list[Any], ordinary: "Run", path: Path, delta: float) -> None:
    from robust.train.evaluation.demonstration import attack_ordinary

    from ..data import load_images
    from ..report import save_attacked

    images = load_images("digits", predictor.card)
    save_attacked(path, attack_ordinary(ordinary, predictor, entries, images.read, delta=delta, examples=_EXAMPLES))


def _report(out: Path) -> None:
    from ..report import read_sources, write_report

    write_report(out / "report.html", read_sources([out]))
    note(f"      {out / 'report.html'}")


def _write_images(folder: Path) -> None:
    """The first test image of each digit, at its own size, under the name of its true label."""
    from PIL import Image

    from ..data import digits
    from ..files import replacing

    images, labels = digits("test")
    folder.mkdir(exist_ok=True)
    for digit, name in enumerate(_DIGITS):
        with replacing(folder / f"{name}.png") as temporary:
            Image.fromarray(images[list(labels).index(digit), 0]).save(temporary, format="PNG")
    note(f"      {folder / 'five.png'} and one image of every other digit")


def _next_commands(out: Path, index: int, seconds: float) -> None:
    from ..certificate_file import read_certificates
    from ..smoothing.bounds import format_radius
    from ..summary import percent, summarize

    summary = summarize(*read_certificates(out / "certificates.jsonl"))
    correct, middle = summary.accuracies[0], next((row for row in summary.accuracies if row.radius == 0.5), None)
    proven = f", {percent(middle.accuracy)} proven at l2 radius 0.5" if middle else ""
    print_text(
        f"{summary.images} test images: {percent(correct.accuracy)} certified with the right label{proven}; "
        f"average certified radius {format_radius(summary.acr)}. {seconds:.0f} s in all, "
        f"{time.process_time():.0f} s of processor time."
    )
    robust, model, image, certificates = (
        program(),
        *(shlex.quote(str(out / name)) for name in ("digits.onnx", "images/five.png", "certificates.jsonl")),
    )
    demo = f"{robust} demo" + ("" if out == Path("quickstart") else f" --out {shlex.quote(str(out))}")
    print_text(f"\nOpen {out / 'report.html'} in a browser, or play with the model: `{demo}`. Then try:\n")
    for command in (
        f"{robust} inspect {model}",
        f"{robust} certify {model} {image}",
        f"{robust} verify {certificates} --index {index} --data digits --model {model}",
        f"{robust} bench {model}",
        f"{robust} serve {model}",
    ):
        print_text(f"  {command}")
    activate = Path(robust).with_name("activate")
    if robust != "robust" and activate.is_file():
        print_text(f"\n`source {activate}` lets you write `robust` for `{robust}`.")
