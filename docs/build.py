"""Fill in what is generated in the documentation: `make docs`.

    python docs/build.py [--quickstart quickstart]

Options of every command (docs/command-line.md) come from the command line itself, the results of the README from
benchmarks/results/*.json, its row on digits and its picture from a folder of `robust quickstart`. A generated part
stands between `<!-- NAME -->` and `<!-- /NAME -->`; a part whose source is missing stays as it is.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

from robustinfer.cli.main import app
from robustinfer.files import replacing, write_text

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


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{str(parameter.metavar or parameter.name).strip('[]')}`"
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


def result_rows() -> Iterator[str]:
    """The rows of the README's table, each with the command that makes it again."""
    yield from _linf_rows()
    yield from _l2_rows()
    economy = _load("sample_economy")
    if economy:
        claims = {claim["claim"]: claim["value"] for claim in economy["results"]["two-class"]["claims"]}
        fewer, lost = (claims[f"radius: {key}, on average"] for key in ("times fewer samples", "points lost"))
        yield (
            f"| deciding one radius, against n = 100,000 | {fewer:.0f} times fewer samples, {lost:.2f} points of "
            "certified accuracy lost | `python benchmarks/sample_economy.py` |"
        )
    speed = _load("certify_speed")
    if speed:
        yield from _speed_rows(speed["results"])
    export = _load("export_speed")
    if export:
        batches = {row["batch"]: row["times_faster"] for row in export["results"]["batches"]}
        shown = ", ".join(
            f"{faster:.1f} at batch {batch}" for batch, faster in batches.items() if batch in (1, 32, 256)
        )
        best = export["results"]["best_seconds_per_image"]
        yield (
            f"| the exported file against eager torch, 5 x ResNet-20, times as fast | {shown}; "
            f"{best['eager'] / best['onnx']:.1f} with each at its own best batch | "
            "`python benchmarks/export_speed.py` |"
        )
    questions = _load("question_speed")
    if questions:
        steps = {step["step"]: step["times the published loop"] for step in questions["results"]["steps"]}
        named = {"the same n": "batching", "tolerance 0.05": "tolerance 0.05", "radius 0.25": "radius 0.25"}
        shown = "; ".join(f"{name}: {steps[step]:.3g}" for name, step in named.items())
        yield (
            f"| digits, times as fast as the published loop of n = 100,000 | {shown} | "
            "`python benchmarks/question_speed.py` |"
        )
    load = _load("serving_load")
    if load:
        share, extra = load["found"]["certify_ratio"], load["found"]["lone_predict_extra_ms"]
        yield (
            f"| certificates over HTTP, 8 clients | {share:.0%} of the speed in the process; a lone prediction takes "
            f"{extra:.1f} ms more | `python benchmarks/serving_load.py` |"
        )


def _linf_rows() -> Iterator[str]:
    """One row a radius: the best boosted form beside its rivals."""
    for script, data in (("linf_mnist", "MNIST"), ("cifar10", "CIFAR-10")):
        rows = [row for row in _rows(script) if "pgd-20x10" in row["ensemble"]]
        for delta in sorted({row["delta"] for row in rows}, reverse=True):
            chosen = {row["label"]: row["ensemble"]["pgd-20x10"] for row in rows if row["delta"] == delta}
            forms = _best_first(rows, delta, "delta", lambda row: row["ensemble"]["pgd-20x10"]["rate"])
            shown = "; ".join(f"{label}: {_rate(chosen[label])}" for label in forms)
            yield (
                f"| {data}, l_inf {delta:.3g}, right under PGD-20 (10 starts) | {shown} | "
                f"`python benchmarks/{script}.py --data DIR` |"
            )


def _l2_rows() -> Iterator[str]:
    """One row a sigma and n: the best boosted form beside its rivals."""
    scripts = (("l2_mnist", "MNIST"), ("l2_long", "MNIST, long training"), ("cifar10_l2", "CIFAR-10"))
    for script, data in scripts:
        rows = _rows(script)
        for n in sorted({key for row in rows for key in row if key.startswith("n=")}, key=len):
            certified = [row for row in rows if n in row]
            for sigma in sorted({row["sigma"] for row in certified}):
                chosen = {row["label"]: row[n] for row in certified if row["sigma"] == sigma}
                forms = _best_first(certified, sigma, "sigma", lambda row, n=n: row[n]["acr"])  # type: ignore[misc]
                shown = "; ".join(f"{label}: {_down(chosen[label]['acr'])}" for label in forms)
                if (script, n) == ("l2_long", "n=100000"):
                    shown += _published(f"{sigma:g}")
                yield (
                    f"| {data}, l_2, sigma {sigma:g}, n = {int(n[2:]):,}, average certified radius | {shown} | "
                    f"`python benchmarks/{script}.py --data DIR` |"
                )


def _published(sigma: str) -> str:
    """What a published network has on the same images with the same n."""
    found = json.loads((BENCHMARKS / "published_radii.json").read_text(encoding="utf-8"))["networks"][sigma]
    mean = sum(min(radius, found["largest"]) for radius in found["radii"]) / len(found["radii"])
    return f"; {found['name']} as published, the same images: {mean:.3f}"


def _rows(script: str) -> list[dict[str, Any]]:
    return [row for row in (_load(script) or {}).get("rows", {}).values() if row["seed"] == 0]


def _best_first(
    rows: list[dict[str, Any]], value: float, key: str, worth: Callable[[dict[str, Any]], float]
) -> list[str]:
    """The labels of the best boosted row, then of the best of every other kind; RESULTS.md has them all."""
    best: dict[str, dict[str, Any]] = {}
    for row in rows:
        kind = _kind(row)
        if row[key] == value and (kind not in best or worth(row) > worth(best[kind])):
            best[kind] = row
    order = sorted(best, key=lambda kind: (kind != "boosted", -worth(best[kind])))
    return [best[kind]["label"] for kind in order]


def _kind(row: dict[str, Any]) -> str:
    """What a row is: boosted, independent members, one wider network, or one member."""
    if len(row["stages"]) > 1:
        return "independent" if row["recipe"]["booster"] == "independent" else "boosted"
    return "wider" if "inference cost" in row["label"] else "single"


def _speed_rows(results: dict[str, Any]) -> Iterator[str]:
    """Certificates against the engine alone and the published loop, by the clock."""
    for graph, found in results.items():
        claims = {claim["claim"]: claim["value"] for claim in found["claims"]}
        yield (
            f"| certificates, {graph} | {claims['(c)/(b)']:.0%} of the speed of the engine alone, "
            f"{claims['(c)/(a)']:.1f} times the published loop | `python benchmarks/certify_speed.py` |"
        )


def quickstart_row(folder: Path) -> str:
    """What `robust quickstart` found on digits."""
    from robustinfer.certificate_file import read_certificates
    from robustinfer.summary import summarize

    found = []
    for name in ("certificates.jsonl", "certificates-first-member.jsonl"):
        summary = summarize(*read_certificates(folder / name))
        half = next(row.accuracy for row in summary.accuracies if row.radius == 0.5)
        found.append((summary, half))
    (boosted, half), (single, single_half) = found
    attacks = json.loads((folder / "run" / "evaluation.json").read_text())["attacks"]
    attack = next(iter(attacks.values()))
    robust = [row["robust"] for row in attack["rows"] if row["stages"] is not None]
    command = "`make quickstart`"
    return "\n".join(
        [
            f"| digits, l_2 radius 0.5, certified: 3 members (first member alone) | {half:.1%} ({single_half:.1%}) of "
            f"{boosted.images} images; average radius {_down(boosted.acr)} ({_down(single.acr)}) | {command} |",
            f"| digits, l_2 length {attack['delta']:g}, attacked: 3 members (first member alone) | {_rate(robust[-1])} "
            f"({_rate(robust[0])}) right | {command} |",
        ]
    )


def _rate(rate: dict[str, float]) -> str:
    return f"{100 * rate['rate']:.1f} % [{100 * rate['low']:.1f}, {100 * rate['high']:.1f}]"


def _down(radius: float) -> str:
    return f"{int(radius * 1000) / 1000:.3f}"


def _load(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    document: dict[str, Any] | None = json.loads(path.read_text()) if path.is_file() else None
    return document


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
        "the change,\nfive times enlarged",
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
    fill(ROOT / "README.md", "results", "| what | result | again by |\n|---|---|---|\n" + "\n".join(result_rows()))
    if (folder / "attacked.npz").is_file():
        fill(
            ROOT / "README.md",
            "quickstart-results",
            "| what | result | again by |\n|---|---|---|\n" + quickstart_row(folder),
        )
        draw_picture(folder, ROOT / "docs" / "quickstart.png")


if __name__ == "__main__":
    main()
