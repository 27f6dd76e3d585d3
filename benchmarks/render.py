"""Render benchmarks/RESULTS.md and its plots from benchmarks/results/*.json: `make results`.

No figure in RESULTS.md is typed by hand. A result that is not there yet is named as missing, with its command.
"""

import argparse
import ast
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from claims import claims_section
from figures import plot_certified, plot_cost, plot_progress, plot_steps
from tables import budget_table, digits_table, forms_table, l2_table, linf_table, time_table
from verdicts import l2_verdicts, linf_verdicts, paper_claims, published_verdicts, same_images_verdicts

from robustinfer.files import write_text

HERE = Path(__file__).parent
PUBLISHED_RADII = json.loads((HERE / "published_radii.json").read_text(encoding="utf-8"))
SPEED = (
    "certify_speed",
    "sample_economy",
    "bound_choice",
    "import_time",
    "export_speed",
    "training_step",
    "training_memory",
    "input_gradient",
    "serving_load",
)
_INTRODUCTION = """# Results

Rendered by `make results` from the JSON files in `benchmarks/results`, which hold versions, commit, machine, settings,
seeds and raw timings. Each section names the script that made it; the script's first lines say what it claims, and
`benchmarks/README.md` how to run it. Brackets are 95 % intervals over test images; parentheses hold the range over
seeds.
"""

Document = Mapping[str, Any]


def split(rows: Mapping[str, Any], key: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The rows of each value of `key`, in the order of the values."""
    for value in sorted({row[key] for row in rows.values()}):
        yield value, {name: row for name, row in rows.items() if row[key] == value}


def training_facts(rows: Mapping[str, Any]) -> str:
    """What all rows have in common, in one sentence."""
    recipes = [row["recipe"] for row in rows.values()]
    seeds = sorted({recipe["seed"] for recipe in recipes})
    images = {recipe["limit"] or "all" for recipe in recipes}
    words = ", ".join(str(number) for number in sorted(images, key=str))
    return f"Training images: {words}. Seeds: {', '.join(map(str, seeds))}.{machines(rows)}\n"


def machines(rows: Mapping[str, Any]) -> str:
    """Which rows come from another machine than most, if any do."""
    keys: dict[str, list[str]] = {}
    for key, row in rows.items():
        keys.setdefault(row.get("processor", "an unnamed machine"), []).append(f"`{key}`")
    most, *others = sorted(keys, key=lambda processor: -len(keys[processor]))
    if not others:
        return ""
    exceptions = "; ".join(f"{', '.join(keys[processor])} on {processor}" for processor in others)
    return f" Machine: {most}, but {exceptions}. Seconds compare only between rows of one machine."


def linf(
    document: Document,
    plots: Path,
    *,
    levels: Sequence[int] = (50, 60, 70, 80, 90),
    budgets: Sequence[int] = (10, 20, 40, 80),
) -> str:
    """The tables of robust accuracy, one a radius; when `levels` (%) were reached, and what `budgets` (s) gave."""
    parts = [f"{document['test_images']} test images. {training_facts(document['rows'])}"]
    for delta, rows in split(document["rows"], "delta"):
        name = f"linf-{delta:g}.png"
        chosen = {key: row for key, row in rows.items() if row["seed"] == min(r["seed"] for r in rows.values())}
        plot_progress(chosen, plots / name, f"l_inf radius {delta:g}")
        parts += [f"### Radius {delta:g}\n", linf_table(rows)]
        parts += [
            "".join(f"- {sentence}\n" for attack in ("pgd-20x10", "apgd-t") for sentence in linf_verdicts(rows, attack))
        ]
        parts.append(f"![Robust accuracy against training time at radius {delta:g}](plots/{name})\n")
        reached = "Processor seconds until a robust accuracy on held-out images was first reached:\n"
        spent = "Robust accuracy on held-out images after so many processor seconds, in %:\n"
        parts += [reached, time_table(rows, levels), spent, budget_table(rows, budgets)]
        if any(row["recipe"]["booster"] == "independent" for row in rows.values()):
            parts.append("While independent members are trained, the one at work is measured alone.\n")
    return "\n".join(parts)


def l2(document: Document, plots: Path) -> str:
    """The tables of certified accuracy, one a sigma and n."""
    parts = [training_facts(document["rows"])]
    for sigma, rows in split(document["rows"], "sigma"):
        for n in sorted({key for row in rows.values() for key in row if key.startswith("n=")}, key=len):
            certified = {key: row for key, row in rows.items() if n in row}
            name = f"{document['benchmark']}-{sigma:g}-{n[2:]}.png"
            plot_certified(certified, n, plots / name, f"sigma {sigma:g}, {n}")
            images = next(iter(certified.values()))[n]["images"]
            parts += [f"### Sigma {sigma:g}, {n}, {images} test images; accuracy in % at each radius\n"]
            sentences = l2_verdicts(certified, n)
            if f"{sigma:g}" in document.get("published", {}):
                figures = document["published"][f"{sigma:g}"]
                sentences += published_verdicts(certified, n, figures)
                if document["every"] == PUBLISHED_RADII["every"]:
                    network = PUBLISHED_RADII["networks"][f"{sigma:g}"]
                    sentences += same_images_verdicts(certified, n, network, figures)
            parts += [l2_table(certified, n), "".join(f"- {sentence}\n" for sentence in sentences)]
            parts.append(f"![Certified accuracy at sigma {sigma:g}](plots/{name})\n")
    return "\n".join(parts)


def forms(document: Document, plots: Path) -> str:
    """What was tried before a form of boosting became the default."""
    held_out = f"{document['held_out_images']} held-out images, n = {document['n']}. "
    tables = [f"### Sigma {sigma:g}\n\n{forms_table(rows)}" for sigma, rows in split(document["rows"], "sigma")]
    return "\n".join([held_out + training_facts(document["rows"]), *tables])


def digits(document: Document, plots: Path) -> str:
    """The candidates for the digits recipes, one table a norm."""
    held_out = f"{document['held_out_images']} held-out images. "
    tables = [f"### {norm}\n\n{digits_table(rows)}" for norm, rows in split(document["rows"], "norm")]
    return "\n".join([held_out + training_facts(document["rows"]), *tables])


def cost(document: Document, plots: Path) -> str:
    """What a certificate costs, as a plot and as tables."""
    plot_cost(document["results"]["sweeps"], plots / "cost.png")
    return f"![Seconds of a certificate](plots/cost.png)\n\n{claims_section(document)}"


def steps(document: Document, plots: Path) -> str:
    """From the published loop to a decided radius, as a plot and as a table."""
    plot_steps(document["results"]["steps"], plots / "steps.png")
    return f"![Seconds an image](plots/steps.png)\n\n{claims_section(document)}"


def claims(document: Document, plots: Path) -> str:
    """The claims of a script about speed or cost."""
    return claims_section(document)


Section = Callable[[Document, Path], str]
SECTIONS: dict[str, tuple[str, Section]] = {
    "linf_mnist": ("MNIST, l_inf: robust accuracy", linf),
    "l2_mnist": ("MNIST, l_2: certified accuracy", l2),
    "l2_published": ("MNIST, l_2: against published figures", l2),
    "l2_long": ("MNIST, l_2: trained as long as the published networks", l2),
    "l2_forms": ("MNIST, l_2: forms of boosting that were tried", forms),
    "cifar10": (
        "CIFAR-10, l_inf: robust accuracy",
        functools.partial(linf, levels=(15, 20, 25, 30, 35), budgets=(30, 60, 120, 240)),
    ),
    "cifar10_l2": ("CIFAR-10, l_2: certified accuracy", l2),
    "digits_forms": ("Digits: how the recipes were chosen", digits),
    "question_speed": ("From the published loop to a decided radius", steps),
    "certify_cost": ("What a certificate costs", cost),
    "augmented_offsets": ("Augmented images and cached offsets", claims),
    **{name: (name.replace("_", " ").capitalize(), claims) for name in SPEED},
}


def about(document: Document) -> str:
    """Machine, commit and versions of a result in one line."""
    known = document.get("environment", document.get("machine", {}))
    packages = known.get("packages", document.get("versions", {}))
    facts = [str(known.get("processor", "")), f"{known.get('cores', '?')} cores", f"Python {known.get('python', '?')}"]
    facts += [f"{name} {packages[name]}" for name in ("torch", "onnxruntime") if name in packages]
    if known.get("commit"):
        facts.append(f"commit {known['commit'][:12]}")
    return ", ".join(facts)


def opening(name: str) -> str:
    """What a script says about itself: its first sentence, and the rest for those who want it."""
    script = HERE / f"{name}.py"
    docstring = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) if script.is_file() else None
    first, _, rest = (docstring or "").partition("\n")
    return f"{first}\n\n<details><summary>How</summary>\n\n```text\n{rest.strip()}\n```\n\n</details>"


def render(results: Path, out: Path) -> str:
    """The whole page; plots are written beside it."""
    parts, missing = [_INTRODUCTION], []
    linf_file = results / "linf_mnist.json"
    claimed = paper_claims(json.loads(linf_file.read_text(encoding="utf-8")) if linf_file.is_file() else None)
    if claimed:
        parts.append(f"## Claims of the paper, as found on MNIST\n\n{claimed}")
    for name, (title, section) in SECTIONS.items():
        file = results / f"{name}.json"
        if not file.is_file():
            missing.append(f"`{name}.py`")
            continue
        document = json.loads(file.read_text(encoding="utf-8"))
        parts.append(f"## {title}\n\n{opening(name)}\n\n`benchmarks/{name}.py`; {about(document)}.\n")
        parts.append(section(document, out.parent / "plots"))
    unknown = sorted(file.stem for file in results.glob("*.json") if file.stem not in SECTIONS)
    for name in unknown:
        document = json.loads((results / f"{name}.json").read_text(encoding="utf-8"))
        parts.append(f"## {name.replace('_', ' ').capitalize()}\n\n{opening(name)}\n\n{about(document)}.\n")
        parts.append(claims(document, out.parent / "plots"))
    if missing:
        parts.append(f"## Not measured yet\n\nNo result of {', '.join(missing)} is in `benchmarks/results`.\n")
    return "\n".join(parts)


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md")
    options = parser.parse_args()
    write_text(options.out, render(options.results, options.out))
    print(f"written: {options.out}")


if __name__ == "__main__":
    main()
