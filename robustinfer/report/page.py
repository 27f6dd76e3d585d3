"""The page of a report: one self-contained HTML file without scripts, for a phone, a dark room or a printer.

page.html has the words, page.css the looks; this module collects what they show. Everything is escaped by the template
but the style sheet and the figures, which are ours.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..certificate_file import Header
from ..errors import ArgumentError
from ..extras import require
from ..files import sha256, write_text
from ..smoothing.bounds import format_radius
from ..summary import percent
from .figures import accuracy_by_stage, certified_accuracy, time_by_stage
from .gallery import attacked_tiles, certified_tiles
from .headline import attack_words, headline
from .material import CertificateSet, Material, RunFacts
from .tables import budget_table, class_table, confusion_table, votes_table

__all__ = ["render", "write_report"]

_FOLDER = Path(__file__).parent


def write_report(path: Path, material: Material, *, title: str | None = None) -> None:
    """Write the page, all of it or nothing."""
    write_text(path, render(material, title=title))


def render(material: Material, *, title: str | None = None) -> str:
    """The page as text."""
    if not material.runs and not material.sets:
        raise ArgumentError("A report needs a run folder or a file of certificates.")
    jinja = require("jinja2", extra="report", why="A report")
    safe = require("markupsafe", extra="report", why="A report").Markup
    environment = jinja.Environment(
        loader=jinja.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    page: str = environment.get_template("page.html").render(
        heading=title or f"Robustness report: {_subject(material)}",
        style=safe((_FOLDER / "page.css").read_text(encoding="utf-8")),
        headline=headline(material),
        certified=_certified(material, safe) if material.sets else None,
        runs=[_run(run, safe) for run in material.runs if run.stages],
        tiles=certified_tiles(material),
        attacked={"facts": material.attacked, "tiles": tiles} if (tiles := attacked_tiles(material)) else None,
        details=list(_details(material)),
        notes=material.notes,
    )
    return page.lstrip()


def _subject(material: Material) -> str:
    return material.sets[0].name if material.sets else str(material.runs[0].recipe["name"])


def _certified(material: Material, safe: Any) -> dict[str, Any]:
    """Certified accuracy: the figure, the table, and what is said about them."""
    sets = material.sets
    first = sets[0].summary
    return {
        "against": f"{sets[0].name} against {sets[1].name}" if len(sets) > 1 else "",
        "sigma": f"{first.sigma:g}",
        "alpha": f"{first.alpha:g}",
        "samples": f"{first.samples:.0f}",
        "ceiling": _ceiling(sets[0]),
        # A prefix of the stages is not a rival: it was trained for a part of the time.
        "unequal": len(sets) > 1 and bool(material.runs),
        "figure": safe(certified_accuracy({found.name: found.entries for found in sets})),
        "head": ["radius", *(found.name for found in sets)],
        "rows": list(_accuracy_rows(material)),
        "classes": class_table(material),
        "confusions": confusion_table(material),
        "votes": votes_table(material),
    }


def _ceiling(found: CertificateSet) -> str:
    """The radius of an image that got every vote: more cannot be proven with so many samples."""
    unanimous = [
        entry.certificate.radius
        for entry in found.entries
        if entry.certificate.label is not None
        and entry.certificate.counts[entry.certificate.label] == entry.certificate.samples_used - entry.certificate.n0
    ]
    return format_radius(max(unanimous)) if unanimous else ""


def _accuracy_rows(material: Material) -> Iterator[list[str]]:
    tables = [{row.radius: row for row in found.summary.accuracies} for found in material.sets]
    for radius in sorted({radius for table in tables for radius in table}):
        yield [
            f"{radius:g}",
            *(percent(table[radius].accuracy) if radius in table else percent(0.0) for table in tables),
        ]
    summaries = [found.summary for found in material.sets]
    yield ["average radius", *(format_radius(summary.acr) for summary in summaries)]
    if any(summary.linf_mean is not None for summary in summaries):
        means = [summary.linf_mean for summary in summaries]
        yield ["average radius, l_inf", *("" if mean is None else format_radius(mean, 4) for mean in means)]
    yield ["abstained", *(percent(summary.abstained, failure=True) for summary in summaries)]
    yield ["wrong label", *(percent(summary.wrong, failure=True) for summary in summaries)]


def _run(run: RunFacts, safe: Any) -> dict[str, Any]:
    """A run: accuracy under attack and training time, by stage."""
    attack = run.attack
    return {
        "path": run.path,
        "smoothed": bool(run.recipe["sigma"]),
        "attack": attack
        and {"images": attack["images"], "words": attack_words(attack), "rows": list(_attack_rows(attack))},
        "budget": budget_table(run.budget),
        "accuracy_figure": safe(accuracy_by_stage(run)),
        "time_figure": safe(time_by_stage(run)) if run.seconds else "",
        "stages": [
            [
                stage["number"],
                f"{stage['beta']:.3f}",
                f"{stage['seconds']:.1f}",
                f"{stage['metrics'].get('edge', float('nan')):.2f}",
            ]
            for stage in run.stages
        ],
        "warnings": [
            f"Stage {stage['number']}: {found['message']}"
            for stage in run.stages
            for found in stage.get("warnings", ())
        ],
    }


def _attack_rows(attack: Mapping[str, Any]) -> Iterator[list[str]]:
    for row in attack["rows"]:
        robust = "" if row["robust"] is None else percent(row["robust"]["rate"])
        yield [row["what"], percent(row["clean"]["rate"]), robust]


def _details(material: Material) -> Iterator[dict[str, Any]]:
    for found in material.sets:
        yield {"title": f"Certificates of {found.name}", "rows": _certificate_rows(found)}
    for run in material.runs:
        recipe = {key: str(value) for key, value in run.recipe.items() if value not in ("", None)}
        yield {"title": f"Recipe {run.recipe['name']}", "rows": recipe}
        yield {"title": "Provenance of the run", "rows": _flat(run.provenance)}


def _certificate_rows(found: CertificateSet) -> dict[str, str]:
    header, one = found.header, found.entries[0].certificate
    settings = {key: str(value) for key, value in header.settings.items()}
    return {
        "model": f"{header.model['name']}, version {header.model['version']}",
        "model digest": header.model["digest"],
        "data": f"{header.data_name}, {len(found.entries)} of {header.total} images",
        "bound": f"{one.bound}, {one.method}",
        "noise": f"{one.noise}, sigma {one.sigma:g}, seed {header.seed}{_chosen(header)}",
        **settings,
        **{f"digest of {path.name}": sha256(path) for path in found.paths},
    }


def _chosen(header: Header) -> str:
    return f", chosen by the {header.seed_origin}" if header.seed_origin else ""


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    rows: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            rows |= _flat(value, f"{prefix}{key} ")
        else:
            rows[prefix + key] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return rows
