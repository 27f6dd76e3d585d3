"""Fill in what is generated in the documentation: `make docs`.

    python docs/build.py [--quickstart quickstart]

The options of every command (docs/command-line.md) come from the command line itself, the fields of a request
(docs/serving.md) from the table of settings, the results of the README from benchmarks/results/*.json, and its picture
from a folder of `robust quickstart`, if there is one. Tables and picture of docs/choosing.md come from certificates in
the repository. A generated part stands between `<!-- NAME -->` and `<!-- /NAME -->`.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for `docs`, which is not installed
from docs import choosing, members
from robustinfer.cli.help import argument_name
from robustinfer.cli.main import app
from robustinfer.files import replacing, write_text
from robustinfer.settings import MODE, SETTINGS
from robustinfer.smoothing.bounds import format_radius

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"
RESULTS = BENCHMARKS / "results"


def option_tables() -> str:
    """Every command with its sentence, arguments and options."""
    group: Any = typer.main.get_command(app)
    parts = []
    for name, command in group.commands.items():
        sentence = str(command.help).strip().splitlines()[0]
        rows = [f"### robust {name}\n\n{sentence}\n\n| | |\n|---|---|"]
        for parameter in command.params:
            if parameter.name == "help":
                continue
            rows.append(f"| {_names(parameter)} | {_explanation(parameter)} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


def setting_rows() -> str:
    """The fields of a request, from the one table that has them."""
    rows = ["| field | value | meaning |", "|---|---|---|"]
    for name, setting in {MODE.name: MODE, **SETTINGS}.items():
        default = setting.chosen or next(iter(setting.defaults.values()), None)
        shown = "" if default is None else f" Default: {default}."
        only = "" if len(setting.modes) > 1 else f" To {setting.modes[0]} only."
        rows.append(f"| `{name}` | {setting.expected} | {setting.help}{only}{shown} |")
    return "\n".join(rows)


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{argument_name(parameter)}`".replace("|", "\\|")
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    takes_value = not getattr(parameter, "is_flag", False)
    return names + (f" {parameter.metavar}" if takes_value and parameter.metavar else "")


def _explanation(parameter: Any) -> str:
    words = str(parameter.help or "").strip().replace("|", "\\|")
    variable = f" Environment: `{parameter.envvar}`." if getattr(parameter, "envvar", None) else ""
    return words + _default(parameter) + variable


def _default(parameter: Any) -> str:
    shown, default = parameter.show_default, parameter.default
    if isinstance(shown, str):
        return f" Default: {shown}."
    if not shown or default is None or default is False or default in ("", []) or callable(default):
        return ""
    return f" Default: `{parameter.opts[0] if default is True else default}`."  # True == 1: never look it up by value


# What the README shows of benchmarks/results: data, training, script, sigma and samples per image.
_SHOWN = (
    ("MNIST", "long", "l2_long", 1.0, 100_000),
    ("MNIST", "long", "l2_long", 0.5, 100_000),
    ("MNIST", "long", "l2_long", 0.5, 10_000),
    ("MNIST", "short", "l2_mnist", 0.5, 10_000),
    ("CIFAR-10", "short", "cifar10_l2", 0.25, 2000),
)
_RIVALS = {
    "single": "one network of a member's size",
    "wider": "one network of the ensemble's inference cost",
    "independent": "independent members, averaged",
}


def result_rows() -> Iterator[str]:
    """The README's table: the best boosted row and the best rival there is."""
    yield "| data, sigma, *n* | training | boosted | best rival | |"
    yield "|---|---|---|---|---|"
    for data, training, script, sigma, n in _SHOWN:
        best = _best(script, sigma, n)
        boosted = best.pop("boosted")
        if best:
            kind = max(best, key=lambda kind: best[kind])
            rival, radii = _RIVALS[kind], best[kind]
        else:
            rival, radii = _published(f"{sigma:g}")
        yield f"| {data}, {sigma:g}, {n:,} | {training} | {_shown(boosted)} | {_shown(radii)} | {rival} |"


_Radii = tuple[float, float]  # their average, and the share of images that reach sigma


def _shown(found: _Radii) -> str:
    average, share = found
    return f"{format_radius(average)} ({100 * share:.1f}%)"


def _best(script: str, sigma: float, n: int) -> dict[str, _Radii]:
    """The largest average certified radius by the kind of a row, with the certified accuracy at sigma."""
    best: dict[str, _Radii] = {}
    for row in json.loads((RESULTS / f"{script}.json").read_text(encoding="utf-8"))["rows"].values():
        if row["seed"] == 0 and row["sigma"] == sigma and f"n={n}" in row:
            found = row[f"n={n}"]
            radii = (found["acr"], found["accuracy"][f"{sigma:g}"])
            best[row["kind"]] = max(best.get(row["kind"], (0.0, 0.0)), radii)
    return best


def _published(sigma: str) -> tuple[str, _Radii]:
    """A published network, and its radii on the same images with the same n."""
    found = json.loads((BENCHMARKS / "published_radii.json").read_text(encoding="utf-8"))["networks"][sigma]
    radii = [min(radius, found["largest"]) for radius in found["radii"]]
    share = sum(radius >= float(sigma) for radius in radii) / len(radii)
    return f"{found['name']}, as published", (sum(radii) / len(radii), share)


def draw_picture(folder: Path, path: Path) -> None:
    """The README's picture: the certified accuracy of a quickstart, and an image that fools an ordinary network."""
    from matplotlib.figure import Figure

    from robustinfer.plot import certified_accuracy_figure
    from robustinfer.report import read_sources

    material = read_sources([folder])
    names = {"digits": "boosted, 3 members", "first-member": "its first member alone"}
    curves = {names.get(found.name, found.name): found.entries for found in material.sets}
    figure: Figure = certified_accuracy_figure(curves)
    figure.set_size_inches(10, 3.1)
    (axes,) = figure.axes
    grid = figure.add_gridspec(1, 4, width_ratios=[2.4, 1, 1, 1])
    axes.set_subplotspec(grid[0])
    assert material.attacked is not None
    example = material.attacked.examples[-1]  # the longest of the changes the report shows
    change = example.changed.astype(float) - example.original
    titles = (
        f"a test image:\nboth networks say {example.truth}",
        f"changed by {example.distance:.2f}: an ordinary\nnetwork says {example.fooled}, this one {example.answered}",
        "the change,\nmagnified five times",
    )
    for column, (image, title) in enumerate(
        zip((example.original, example.changed, 128 + 5 * change), titles, strict=True)
    ):
        panel = figure.add_subplot(grid[column + 1])
        panel.imshow(image[0], cmap="grey", vmin=0, vmax=255)
        panel.set_title(title, fontsize=9)
        panel.set_axis_off()
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=110, metadata={"Software": None})


def fill(path: Path, name: str, content: str) -> None:
    """Replace a generated part of a page."""
    text = path.read_text()
    pattern = re.compile(f"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"{path} has no part called {name}.")
    write_text(path, pattern.sub(lambda match: f"{match[1]}{content}\n{match[2]}", text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quickstart", type=Path, default=ROOT / "quickstart")
    folder = parser.parse_args().quickstart
    fill(ROOT / "docs" / "command-line.md", "options", option_tables())
    fill(ROOT / "docs" / "serving.md", "settings", setting_rows())
    fill(ROOT / "README.md", "results", "\n".join(result_rows()))
    if choosing.CERTIFICATES.is_file():
        entries, page = choosing.entries(), ROOT / "docs" / "choosing.md"
        fill(page, "sigma", choosing.sigma_rows())
        fill(page, "n", choosing.n_rows(entries))
        fill(page, "alpha", choosing.alpha_rows(entries))
        choosing.draw(entries, ROOT / "docs" / "choosing.png")
        found = members.comparisons()
        fill(page, "members", members.verdict(found))
        fill(page, "signs", members.under_noise())
        members.draw(found, ROOT / "docs" / "members.png")
    if (folder / "attacked.npz").is_file():
        draw_picture(folder, ROOT / "docs" / "quickstart.png")


if __name__ == "__main__":
    main()
