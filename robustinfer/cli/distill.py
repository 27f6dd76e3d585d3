"""`robust distill`: one network learns from a whole ensemble."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..extras import needed
from .console import note, print_json, print_text

__all__ = ["command"]


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of the ensemble's run.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Folder of the student's run.", show_default="RUN-student")] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Epochs of the student.", min=1, show_default="those of all stages together")
    ] = None,
    temperature: Annotated[float, typer.Option(help="Softens the ensemble's scores.")] = 1.0,
    data: Annotated[
        str | None,
        typer.Option(
            help="The run's data set, or the folder that holds it, if it has moved.",
            show_default="the run's; mnist, cifar10 and imagenet are in data/",
        ),
    ] = None,
    images: Annotated[
        int | None, typer.Option(help="Number of test images to compare on.", min=1, show_default="all")
    ] = None,
    restarts: Annotated[int, typer.Option(help="Random restarts of the attack used for the comparison.", min=1)] = 10,
    n: Annotated[int, typer.Option(help="Samples per image for certified accuracy.", min=10)] = 1000,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted distillation.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda[:N].")] = "auto",
    threads: Annotated[int, typer.Option(min=0, help="CPU threads for torch; 0 lets torch choose.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Train one network of a member's size to answer as the ensemble does, under the same threat or noise.

    The student is a run folder like any other. Both are then measured on the same test images: accuracy, robust and
    certified accuracy, and cost.

    [bold]robust distill runs/digits-l2[/bold]
    """
    with needed(extra="train", why="robust distill"):
        import torch
        from robust.train.distillation import compare, distill, student_recipe
        from robust.train.evaluation.evaluation import EvaluationOptions, load_test_images
        from robust.train.machine.processes import choose_device
        from robust.train.runs.run import Run

    from ..data import IN_ROOT, place_data
    from .training_progress import stoppable, watching

    if threads:
        torch.set_num_threads(threads)
    teacher = Run.open(run)
    name, root = place_data(data, teacher.recipe.data)
    folder = out if out is not None else run.with_name(f"{run.name}-student")
    with watching(student_recipe(teacher, epochs=epochs)) as watcher, stoppable(watcher, folder) as stop:
        student = distill(
            teacher,
            folder,
            epochs=epochs,
            temperature=temperature,
            root=root,
            data=name,
            resume=resume,
            device=device,
            watcher=watcher,
            stop=stop,
        )
    place = f"{name}:{root}" if name in IN_ROOT else name
    tests = load_test_images(place, teacher.recipe.data, images=images, model=teacher)
    options = EvaluationOptions(restarts=restarts, n=n)
    found = compare(teacher, student, tests, options, device=choose_device(device))
    if json:
        print_json({"run": str(student.path), **found.to_json()})
        return
    print_text("            members  parameters ms per image   clean  robust  certified radius (mean)")
    for name, one in (("ensemble", found.ensemble), ("student", found.student)):
        print_text(_line(name, one))
    note(f"The student is in {student.path}; export it with: robust export {student.path} --out student.onnx")


def _line(name: str, one: Any) -> str:
    from ..smoothing.bounds import format_radius

    row = one.row
    robust = "-" if row.robust is None else f"{row.robust.value:.1%}"
    radius = "-" if row.certified is None else format_radius(row.certified["average_radius"])
    return (
        f"{name:<10}  {one.members:>7}  {one.parameters:>10,}  {one.seconds_per_thousand:>11.3f}  "
        f"{row.clean.value:>6.1%}  {robust:>6}  {radius:>23}"
    )
