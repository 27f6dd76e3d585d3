"""The page of a report: one HTML file with everything inside, no scripts, readable on a phone and on paper."""

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import SettingError
from ..files import sha256, write_text
from ..smoothing.bounds import format_radius
from .figures import accuracy_by_stage, certified_accuracy, percent, time_by_stage
from .gallery import attacked_section, certified_section
from .headline import attack_words, headline
from .material import CertificateSet, Material, RunFacts

__all__ = ["render", "write_report"]

_GUARANTEE = """
<section class="limits"><h3>What a certificate says, and what it does not</h3><ul>
<li>It is about the smoothed classifier: the label most votes go to when Gaussian noise is added to the image. The
plain scores of the same file have no guarantee.</li>
<li>No change of the image with l2 length below the radius alters that label. Lengths are in pixel units of [0,1], after
the image was brought to the model's size. Other changes (rotations, a new photograph) are not covered.</li>
<li>Each certificate is wrong with probability at most alpha, over its own noise; of many certificates, a share of alpha
may be wrong.</li>
<li>A certificate says that the label is stable, not that it is true: accuracy is measured with the labels of the test
set.</li>
<li>Accuracy under attack is what one attack did not find. Only certified accuracy is proven.</li>
</ul></section>
"""


def write_report(path: Path, material: Material, *, title: str | None = None) -> None:
    """Write the page, all of it or nothing."""
    write_text(path, render(material, title=title))


def render(material: Material, *, title: str | None = None) -> str:
    """The page as text."""
    if not material.runs and not material.sets:
        raise SettingError("A report needs a run folder or a file of certificates.")
    heading = title or f"Robustness report: {_subject(material)}"
    sections = [
        _certified(material),
        *(_under_attack(run) for run in material.runs),
        *(_training(run) for run in material.runs),
        certified_section(material),
        attacked_section(material),
        _GUARANTEE if material.sets else "",
        _settings(material),
    ]
    notes = "".join(f'<p class="note">{html.escape(note)}</p>' for note in material.notes)
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(heading)}</title>\n<style>\n{style}</style></head>\n<body><main>\n"
        f"<header><h1>{html.escape(heading)}</h1>{headline(material)}</header>\n"
        + "\n".join(section for section in sections if section)
        + f"\n{notes}</main></body></html>\n"
    )


def _subject(material: Material) -> str:
    return material.sets[0].name if material.sets else str(material.runs[0].recipe["name"])


def _certified(material: Material) -> str:
    if not material.sets:
        return ""
    first = material.sets[0].summary
    picture = certified_accuracy({found.name: found.entries for found in material.sets})
    against = (
        f", {html.escape(material.sets[0].name)} against {html.escape(material.sets[1].name)}"
        if len(material.sets) > 1
        else ""
    )
    return (
        "<section><h2>Certified accuracy</h2>"
        "<p>The share of test images whose label is right and proven to stay the same within the radius"
        f"{against}. Bands are 95 % confidence intervals for all images of this kind. "
        f"Sigma {first.sigma:g}, alpha {first.alpha:g}, {first.samples:.0f} samples an image on average"
        f"{_ceiling(material.sets[0])}.{_fairness(material)}</p>"
        f'<div class="columns"><img class="plot" src="{picture}" alt="Certified accuracy against radius">'
        f"{_accuracy_table(material)}</div></section>"
    )


def _fairness(material: Material) -> str:
    """A prefix of the stages is no rival: it was trained for a part of the time."""
    if len(material.sets) < 2 or not material.runs:
        return ""
    return " A model of fewer stages has also had less training; the times are below."


def _ceiling(found: CertificateSet) -> str:
    """The radius of an image that got every vote: more cannot be proven with so many samples."""
    unanimous = [
        entry.certificate.radius
        for entry in found.entries
        if entry.certificate.label is not None
        and entry.certificate.counts[entry.certificate.label] == entry.certificate.samples_used - entry.certificate.n0
    ]
    return f", which cannot prove a radius above {max(unanimous):.3f}" if unanimous else ""


def _accuracy_table(material: Material) -> str:
    head = "".join(f"<th>{html.escape(found.name)}</th>" for found in material.sets)
    tables = [{row.radius: row for row in found.summary.accuracies} for found in material.sets]
    rows = []
    for radius in sorted({radius for table in tables for radius in table}):
        cells = "".join(
            f"<td>{percent(table[radius].accuracy) if radius in table else '0.0 %'}</td>" for table in tables
        )
        rows.append(f"<tr><td>{radius:.2f}</td>{cells}</tr>")
    summaries = [found.summary for found in material.sets]
    facts = {
        "average radius": [format_radius(summary.acr) for summary in summaries],
        "abstained": [percent(summary.abstained, failure=True) for summary in summaries],
        "wrong label": [percent(summary.wrong, failure=True) for summary in summaries],
    }
    for label, values in facts.items():
        rows.append(f"<tr><td>{label}</td>{''.join(f'<td>{value}</td>' for value in values)}</tr>")
    return f'<div class="scroll"><table><tr><th>radius</th>{head}</tr>{"".join(rows)}</table></div>'


def _under_attack(run: RunFacts) -> str:
    if not run.stages:
        return ""
    attack = run.attack
    if attack is None:
        words = (
            "On images held out of the training set, under the attack that training measures itself by. "
            f"For test images and a stronger attack: <code>robust evaluate {html.escape(run.path)}</code>."
        )
        table = ""
    else:
        smoothed = " The attack and the answer both use mean scores over noise." if run.recipe["sigma"] else ""
        words = (
            f"On {attack['images']} test images, under a {html.escape(attack_words(attack))}: the share whose label "
            f"is right and stays right. Bars are 95 % confidence intervals.{smoothed}"
        )
        table = _attack_table(attack)
    picture = accuracy_by_stage(run)
    return (
        f"<section><h2>Accuracy under attack, by stage</h2><p>{words}</p>"
        f'<div class="columns"><img class="plot" src="{picture}" alt="Accuracy by stage">{table}</div></section>'
    )


def _attack_table(attack: Mapping[str, Any]) -> str:
    rows = []
    for row in attack["rows"]:
        robust = "" if row["robust"] is None else percent(row["robust"]["rate"])
        rows.append(
            f"<tr><td>{html.escape(row['what'])}</td><td>{percent(row['clean']['rate'])}</td><td>{robust}</td></tr>"
        )
    head = "<tr><th></th><th>no attack</th><th>attacked</th></tr>"
    return f'<div class="scroll"><table>{head}{"".join(rows)}</table></div>'


def _training(run: RunFacts) -> str:
    if not run.stages:
        return ""
    rows = "".join(
        f"<tr><td>{stage['number']}</td><td>{stage['beta']:.3f}</td><td>{stage['seconds']:.1f}</td>"
        f"<td>{stage['metrics'].get('edge', float('nan')):.2f}</td></tr>"
        for stage in run.stages
    )
    warnings = "".join(
        f'<p class="note">Stage {stage["number"]}: {html.escape(found["message"])}</p>'
        for stage in run.stages
        for found in stage.get("warnings", ())
    )
    return (
        "<section><h2>Training time, by stage</h2><p>Each stage trains one member against the frozen members before "
        "it. The weight beta is the one the member had when its stage ended; the edge is how much better than chance "
        "the member does, under attack, on the images the ensemble found hard.</p>"
        f'<div class="columns"><img class="plot" src="{time_by_stage(run)}" alt="Training time by stage">'
        '<div class="scroll"><table><tr><th>stage</th><th>beta</th><th>seconds</th><th>edge</th></tr>'
        f"{rows}</table>{warnings}</div></div></section>"
    )


def _settings(material: Material) -> str:
    blocks = [_block(f"Certificates of {found.name}", _certificate_rows(found)) for found in material.sets]
    for run in material.runs:
        recipe = {key: value for key, value in run.recipe.items() if value not in ("", None)}
        blocks.append(_block(f"Recipe {run.recipe['name']}", {key: str(value) for key, value in recipe.items()}))
        blocks.append(_block("Provenance of the run", _flat(run.provenance)))
    return f"<section><h2>Settings and digests</h2>{''.join(blocks)}</section>"


def _certificate_rows(found: CertificateSet) -> dict[str, str]:
    header, one = found.header, found.entries[0].certificate
    settings = {key: str(value) for key, value in header.settings.items()}
    return {
        "model": f"{header.model['name']}, version {header.model['version']}",
        "model digest": header.model["digest"],
        "data": f"{header.data}, {len(found.entries)} of {header.total} images",
        "bound": f"{one.bound}, {one.method}",
        "noise": f"{one.noise}, sigma {one.sigma:g}, seed {header.seed}",
        **settings,
        **{f"digest of {path.name}": sha256(path) for path in found.paths},
    }


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    rows: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            rows |= _flat(value, f"{prefix}{key} ")
        else:
            rows[prefix + key] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return rows


def _block(title: str, rows: Mapping[str, str]) -> str:
    wide = " two" if len(rows) > 20 else ""
    items = "".join(
        f"<div><dt>{html.escape(key)}</dt><dd>{html.escape(value)}</dd></div>" for key, value in rows.items()
    )
    return f'<h3>{html.escape(title)}</h3><dl class="settings{wide}">{items}</dl>'
