"""The detail pages, benchmarks/details/*.md: every row and table of the records, with what their scripts say."""

import ast
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.lib import operations
from benchmarks.lib.attack.ledger import table
from benchmarks.lib.claims import claims_section
from benchmarks.lib.figures import (
    plot_certified,
    plot_cost,
    plot_finetuning,
    plot_payoff,
    plot_progress,
    plot_steps,
)
from benchmarks.lib.noise import noise_table
from benchmarks.lib.record import BENCHMARKS
from benchmarks.lib.tables import (
    budget_table,
    digits_table,
    forms_table,
    l2_table,
    linf_table,
    markdown,
    time_table,
    votes_table,
)
from benchmarks.lib.verdicts import l2_verdicts, linf_verdicts, paper_claims, published_verdicts, same_images_verdicts

__all__ = ["PAGES", "Document", "Page", "command", "load", "page_of", "pages", "published_radii"]

Document = Mapping[str, Any]

# The plots that the pages show: one for each question, because the tables beside them have every figure.
PLOTS = {
    "linf-0.3.png",
    "l2_long-0.5-100000.png",
    "cifar10_fast-0.25-1000-payoff.png",
    "cifar10_linf-0.031373-payoff.png",
    "cost.png",
    "steps.png",
    "finetuning.png",
    "operations.png",
}


@functools.cache
def published_radii() -> Mapping[str, Any]:
    """Radii of published networks, image by image."""
    found: dict[str, Any] = json.loads((BENCHMARKS / "published_radii.json").read_text(encoding="utf-8"))
    return found


def load(results: Path, name: str) -> Document | None:
    """A record, or None if there is none."""
    file = results / f"{name}.json"
    found: dict[str, Any] | None = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    return found


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
    plotted: bool = True,
) -> str:
    """Tables of robust accuracy, one per radius; when `levels` (%) were reached, and what `budgets` (s) gave.

    Plots are named by the radius, so that one page of a radius has them (`plotted`).
    """
    parts = [f"{document['test_images']} test images. {training_facts(document['rows'])}"]
    if claimed := paper_claims(document):
        parts.append(f"## The paper's claims, as found here\n\n{claimed}")
    for delta, rows in split(document["rows"], "delta"):
        parts += [f"## Radius {delta:g}\n", linf_table(rows)]
        parts += [
            "".join(f"- {sentence}\n" for attack in ("pgd-20x10", "apgd-t") for sentence in linf_verdicts(rows, attack))
        ]
        name = f"linf-{delta:g}.png"
        if plotted and name in PLOTS:
            chosen = {key: row for key, row in rows.items() if row["seed"] == min(r["seed"] for r in rows.values())}
            plot_progress(chosen, plots / name, f"l_inf radius {delta:g}")
            parts.append(f"![Robust accuracy against training time at radius {delta:g}](../plots/{name})\n")
        measured = {key: row for key, row in rows.items() if "pgd-20x10" in row["ensemble"]}
        if (name := f"{document['benchmark']}-{delta:g}-payoff.png") in PLOTS and _has_budgets(measured):
            plot_payoff(
                measured, _resisted, plots / name, what="accuracy under PGD-20, %", title=f"l_inf radius {delta:g}"
            )
            parts.append(f"![Robust accuracy against training cost](../plots/{name})\n")
        reached = "Processor seconds until a robust accuracy on held-out images was first reached:\n"
        spent = "Robust accuracy on held-out images after a given number of processor seconds, in %:\n"
        parts += [reached, time_table(rows, levels), spent, budget_table(rows, budgets)]
        if any(row["kind"] == "independent" for row in rows.values()):
            parts.append("While independent members are trained, the one being trained is measured alone.\n")
    return "\n".join(parts)


def l2(document: Document, plots: Path) -> str:
    """Tables of certified accuracy, one per sigma and n."""
    parts = [training_facts(document["rows"])]
    for sigma, rows in split(document["rows"], "sigma"):
        parts += _noisy_rows(sigma, rows)
        for n in sorted({key for row in rows.values() for key in row if key.startswith("n=")}, key=len):
            certified = {key: row for key, row in rows.items() if n in row}
            images = next(iter(certified.values()))[n]["images"]
            parts += [f"## Sigma {sigma:g}, n = {int(n[2:]):,}, {images} test images; accuracy in % at each radius\n"]
            sentences = l2_verdicts(certified, n)
            if f"{sigma:g}" in document.get("published", {}):
                figures = document["published"][f"{sigma:g}"]
                sentences += published_verdicts(certified, n, figures)
                if document["every"] == published_radii()["every"]:
                    network = published_radii()["networks"][f"{sigma:g}"]
                    sentences += same_images_verdicts(certified, n, network, figures)
            parts += [l2_table(certified, n), "".join(f"- {sentence}\n" for sentence in sentences)]
            voted = {key: row for key, row in certified.items() if "votes" in row[n]}
            if voted:
                parts += ["Images by the share of votes for their true label, in %:\n", votes_table(voted, n)]
            name = f"{document['benchmark']}-{sigma:g}-{n[2:]}.png"
            if name in PLOTS:
                plot_certified(certified, n, plots / name, f"sigma {sigma:g}, {n}")
                parts.append(f"![Certified accuracy at sigma {sigma:g}](../plots/{name})\n")
            name = name.replace(".png", "-payoff.png")
            if name in PLOTS and _has_budgets(certified):
                worth = functools.partial(_radius, n=n)
                plot_payoff(certified, worth, plots / name, what="ACR", title=f"sigma {sigma:g}, {n}")
                parts.append(f"![ACR against training cost at sigma {sigma:g}](../plots/{name})\n")
    return "\n".join(parts)


def _has_budgets(rows: Mapping[str, Any]) -> bool:
    """Whether some kind of training was paid for more than once: one point is no curve."""
    kinds = [row["kind"] for row in rows.values()]
    return len(kinds) > len(set(kinds))


def _resisted(row: Mapping[str, Any]) -> tuple[float, float, float]:
    """Accuracy under PGD in per cent, with its interval."""
    found = row["ensemble"]["pgd-20x10"]
    return 100 * found["rate"], 100 * found["low"], 100 * found["high"]


def _radius(row: Mapping[str, Any], *, n: str) -> tuple[float, float, float]:
    """The average certified radius, with its interval."""
    return row[n]["acr"], *row[n]["acr_interval"]


def _noisy_rows(sigma: float, rows: Mapping[str, Any]) -> list[str]:
    """What was measured on all test images, if it was."""
    measured = {key: row for key, row in rows.items() if "noise" in row}
    if not measured:
        return []
    one = next(iter(measured.values()))["noise"]
    title = f"## Sigma {sigma:g}, under noise: {one['images']:,} test images, {one['copies']} noisy copies of each\n"
    note = "Differences are those from one member, over the same images and noise, ± one standard error over images "
    note += "and, where there are several, seeds.\n"
    done = {row["name"] for row in rows.values() if any(key.startswith("n=") for key in row)}
    missing = sorted({row["name"] for row in rows.values()} - done)
    without = [f"Not certified yet: {', '.join(missing)}.\n"] if missing else []
    return [title, noise_table(measured, "single"), note, *without]


def budgets(document: Document, plots: Path) -> str:
    """A budget that is spent by held-out loss beside fixed schedules of the same cost."""
    parts = [training_facts(document["rows"])]
    for name, of_set in split(document["rows"], "data"):
        for budget, rows in split(of_set, "budget"):
            one = next(iter(rows.values()))
            facts = f"{one['operations']:.3g} operations, {one['noise']['images']:,} test images"
            parts += [f"## {name}, {budget} epochs of one member: {facts}\n", noise_table(rows, "single")]
            parts += [_decisions(row) for row in rows.values() if "decisions" in row]
    return "\n".join(parts)


def _decisions(row: Mapping[str, Any]) -> str:
    """What a budget was spent on, slice by slice."""
    words = [
        f"{found['kind']} {found['part']} to {100 * found['spent'] / row['operations']:.0f} %"
        + ("" if found["deployed"] else " (not kept)")
        for found in row["decisions"]
    ]
    return f"Seed {row['seed']}, slices: {', '.join(words)}.\n"


def schedules(document: Document, plots: Path) -> str:
    """Schedules that can be cut anywhere beside one that falls over all epochs."""
    parts = [training_facts(document["rows"])]
    for name, of_set in split(document["rows"], "data"):
        for epochs, rows in split(of_set, "epochs"):
            images, part = next(iter(rows.values()))["noise"]["images"], "held-out" if name == "signs" else "test"
            parts += [f"## {name}, {epochs} epochs: {images:,} {part} images\n", noise_table(rows, "cosine")]
    return "\n".join(parts)


def forms(document: Document, plots: Path) -> str:
    """What was tried before a form of boosting became the default."""
    held_out = f"{document['held_out_images']} held-out images, n = {document['n']:,}. "
    tables = [f"## Sigma {sigma:g}\n\n{forms_table(rows)}" for sigma, rows in split(document["rows"], "sigma")]
    return "\n".join([held_out + training_facts(document["rows"]), *tables])


def heads(document: Document, plots: Path) -> str:
    """What further members and heads gain over the first member."""
    what = f"{document['held_out_images']:,} held-out images, {document['copies']} noisy copies each. "
    note = "Differences are those from the first member, over the same images and noise, ± one standard error.\n"
    return "\n".join([what + training_facts(document["rows"]), noise_table(document["rows"], "first"), note])


def digits(document: Document, plots: Path) -> str:
    """The candidates for the digits recipes, one table per norm."""
    held_out = f"{document['held_out_images']} held-out images. "
    tables = [f"## {norm}\n\n{digits_table(rows)}" for norm, rows in split(document["rows"], "norm")]
    return "\n".join([held_out + training_facts(document["rows"]), *tables])


def cost(document: Document, plots: Path) -> str:
    """What a certificate costs, as a plot and as tables."""
    plot_cost(document["results"]["sweeps"], plots / "cost.png")
    return f"![Seconds per certificate](../plots/cost.png)\n\n{claims_section(document)}"


def steps(document: Document, plots: Path) -> str:
    """From the published loop to a decided radius, as a plot and as a table."""
    plot_steps(document["results"]["steps"], plots / "steps.png")
    return f"![Seconds per image](../plots/steps.png)\n\n{claims_section(document)}"


def finetuning(document: Document, plots: Path) -> str:
    """What was tried on held-out images, and what each row certifies."""
    rows = {key: row for key, row in document["rows"].items() if row["kind"] == "row"}
    plot_finetuning(rows, plots / "finetuning.png")
    tried = [
        [row["way"], str(row["epochs"]), row["recipe"]["optimizer"], f"{row['recipe']['learning_rate']:g}", _noisy(row)]
        for row in document["rows"].values()
        if row["kind"] == "trial"
    ]
    radii = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25)
    lines = [
        [row["way"], str(row["epochs"]), str(row["seed"]), f"{row['training']['cpu_seconds']:.0f}", _noisy(row)]
        + [f"{100 * sum(one >= radius for one in row['radii'].values()) / len(row['radii']):.1f}" for radius in radii]
        for row in rows.values()
    ]
    noise = "accuracy under noise, held out, %"
    header = ["start", "epochs", "seed", "processor seconds", noise, *(f"certified at {radius:g}" for radius in radii)]
    images = {len(row["radii"]) for row in rows.values()}
    about = (
        f"{min(images)} test images, n = {document['n']:,}, alpha = {document['alpha']:g}, sigma {document['sigma']:g}."
    )
    chosen = f"{document['held_out_images']} held-out images, {document['copies']} noisy copies of each."
    return "\n".join(
        [
            f"![Certified accuracy after k epochs](../plots/finetuning.png)\n\n{about} In %:\n",
            markdown(header, lines),
            f"Tried before, with seed 0; {chosen}\n",
            markdown(["start", "epochs", "optimiser", "learning rate", noise], tried),
        ]
    )


def _noisy(row: Mapping[str, Any]) -> str:
    return f"{100 * row['right_under_noise']:.1f}"


def claims(document: Document, plots: Path) -> str:
    """The claims of a script about speed, cost or soundness."""
    return claims_section(document)


def attack(document: Document, plots: Path) -> str:
    """What a server under attack promised, and what was observed of each engine."""
    return table(document)


Section = Callable[[Document, Path], str]


@dataclass(frozen=True)
class Page:
    """A detail page: its title, and a section for each of its records with the file that describes it."""

    title: str
    records: Mapping[str, tuple[str, Section]]


_CIFAR = functools.partial(linf, levels=(15, 20, 25, 30, 35), budgets=(30, 60, 120, 240))
_FAST = functools.partial(linf, levels=(20, 25, 30, 35), budgets=(240, 480, 960, 1920))
_FULL = functools.partial(linf, levels=(80, 85, 90, 95), budgets=(240, 480, 960, 1920), plotted=False)


def _scripts(folder: str, *names: str, **sections: Section) -> dict[str, tuple[str, Section]]:
    return {name: (f"{folder}/{name}.py", sections.get(name, claims)) for name in names}


PAGES = {
    "linf_mnist": Page("MNIST, l_inf: robust accuracy", {"linf_mnist": ("lib/rows/linf_mnist.py", linf)}),
    "linf_full": Page("MNIST, l_inf: all training images", {"linf_full": ("lib/rows/linf_full.py", _FULL)}),
    "cifar10": Page("CIFAR-10, l_inf: robust accuracy", {"cifar10": ("lib/rows/cifar10.py", _CIFAR)}),
    "cifar10_linf": Page("CIFAR-10, l_inf: all training images", {"cifar10_linf": ("lib/rows/cifar10_linf.py", _FAST)}),
    "l2_mnist": Page("MNIST, l_2: certified accuracy", {"l2_mnist": ("lib/rows/l2_mnist.py", l2)}),
    "l2_published": Page("MNIST, l_2: beside published figures", {"l2_published": ("lib/rows/l2_published.py", l2)}),
    "l2_long": Page("MNIST, l_2: trained as long as the published networks", {"l2_long": ("lib/rows/l2_long.py", l2)}),
    "cifar10_l2": Page("CIFAR-10, l_2: certified accuracy", {"cifar10_l2": ("lib/rows/cifar10_l2.py", l2)}),
    "cifar10_fast": Page("CIFAR-10, l_2: all training images", {"cifar10_fast": ("lib/rows/cifar10_fast.py", l2)}),
    "gtsrb_l2": Page("Traffic signs, l_2: certified accuracy", {"gtsrb_l2": ("lib/rows/gtsrb_l2.py", l2)}),
    "budget": Page("Budgets beside fixed schedules", _scripts("accuracy", "budget", budget=budgets)),
    "schedules": Page("Schedules that can be cut anywhere", _scripts("accuracy", "schedules", schedules=schedules)),
    "l2_forms": Page("MNIST, l_2: forms of boosting that were tried", _scripts("accuracy", "l2_forms", l2_forms=forms)),
    "head_forms": Page("Traffic signs: heads on a trunk", _scripts("accuracy", "head_forms", head_forms=heads)),
    "digits_forms": Page(
        "Digits: how the recipes were chosen", _scripts("accuracy", "digits_forms", digits_forms=digits)
    ),
    "minimax": Page(
        "Greedy and minimax boosting, votes, students",
        dict.fromkeys(("minimax_digits", "minimax_mnist"), ("accuracy/minimax_digits.py", claims)),
    ),
    "wrapped": Page("Wrapped classifiers beside their own pipelines", _scripts("accuracy", "wrapped")),
    "finetuning": Page(
        "Fine-tuning beside training from scratch", _scripts("accuracy", "finetuning", finetuning=finetuning)
    ),
    "operations": Page(
        "Certified accuracy against operations", _scripts("accuracy", "operations", operations=operations.section)
    ),
    "samples": Page("Samples, radii and bounds", _scripts("speed", "sample_economy", "bound_choice")),
    "speed": Page(
        "Speed of certificates, of the exported file and of serving",
        _scripts(
            "speed",
            *("certify_speed", "domain_speed", "question_speed", "certify_cost"),
            *("scheduler_speed", "head_of_line", "export_speed", "cheap_samples", "serving_load", "import_time"),
            question_speed=steps,
            certify_cost=cost,
        )
        | _scripts("accuracy", "cascade_rules"),
    ),
    "training": Page(
        "Cost of training",
        _scripts("speed", "first_model", "training_step", "training_memory", "input_gradient")
        | _scripts("accuracy", "augmented_offsets"),
    ),
    "trust": Page(
        "Soundness, crashes and attacks",
        _scripts("trust", *sorted(path.stem for path in (BENCHMARKS / "trust").glob("*.py")), server=attack),
    ),
}


def page_of(record: str) -> str:
    """The page that shows a record; those that no page names are on `more`."""
    return next((name for name, page in PAGES.items() if record in page.records), "more")


def command(document: Document, record: str) -> str:
    """What reproduces a record."""
    files = [page.records[record][0] for page in PAGES.values() if record in page.records]
    known = str(document.get("command") or (f"python benchmarks/{files[0]}" if files else ""))
    return f"{known}{_minimax_options(document['arguments'])}" if page_of(record) == "minimax" else known


def _minimax_options(arguments: Mapping[str, Any]) -> str:
    """The data and numbers of that record."""
    data = " --data DIR" if arguments["data"] != "digits" else ""
    numbers = "".join(f" --{key} {arguments[key]}" for key in ("images", "n", "restarts"))
    return f"{data}{numbers} --threats {' '.join(arguments['threats'])}"


def about(document: Document) -> str:
    """Machine, commit and versions of a result in one line."""
    known = document.get("environment", document.get("machine", {}))
    packages = known.get("packages", document.get("versions", {}))
    facts = [str(known.get("processor", "")), f"{known.get('cores', '?')} cores", f"Python {known.get('python', '?')}"]
    facts += [f"{name} {packages[name]}" for name in ("torch", "onnxruntime") if name in packages]
    if known.get("commit"):
        facts.append(f"commit {known['commit'][:12]}")
    return ", ".join(facts)


def _opening(file: str) -> str:
    """What a script says about itself: its first sentence, and the rest for those who want it."""
    docstring = ast.get_docstring(ast.parse((BENCHMARKS / file).read_text(encoding="utf-8"))) or ""
    first, _, rest = docstring.partition("\n")
    return f"{first}\n\n<details><summary>How</summary>\n\n```text\n{rest.strip()}\n```\n\n</details>\n\n"


def _part(name: str, file: str, section: Section, document: Document, plots: Path) -> str:
    reproduced = command(document, name)
    words = f"Reproduce with `{reproduced}`. " if reproduced else ""
    record = f"Record: [`{name}.json`](../results/{name}.json); {about(document)}."
    return f"{_opening(file) if file else ''}{words}{record}\n\n{section(document, plots)}"


def pages(results: Path, plots: Path) -> dict[str, str]:
    """The text of every page that has a record, by name; their plots are drawn."""
    unknown = sorted(file.stem for file in results.glob("*.json") if page_of(file.stem) == "more")
    everything = PAGES | ({"more": Page("More records", dict.fromkeys(unknown, ("", claims)))} if unknown else {})
    found = {}
    for name, page in everything.items():
        parts = [
            (record, _part(record, file, section, document, plots))
            for record, (file, section) in page.records.items()
            if (document := load(results, record)) is not None
        ]
        if len(page.records) > 1 or name == "more":
            parts = [(record, f"## {record.replace('_', ' ').capitalize()}\n\n{text}") for record, text in parts]
        if parts:
            back = "Generated by `make results`. [All questions](../RESULTS.md)"
            found[name] = "\n".join([f"# {page.title}\n\n{back}\n", *(text for _, text in parts)]).rstrip("\n") + "\n"
    return found
