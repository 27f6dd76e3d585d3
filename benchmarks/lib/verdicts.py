"""What the numbers say: comparisons of rows as plain sentences, and the paper's claims with what was found."""

import operator
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from benchmarks.lib.tables import Rows, grouped, markdown
from robustinfer.smoothing.bounds import format_radius

__all__ = [
    "compare",
    "cost_ratio",
    "is_boosted",
    "l2_verdicts",
    "linf_verdicts",
    "paired",
    "paper_claims",
    "published_verdicts",
    "same_images_verdicts",
    "word",
]

PGD = "pgd-20x10"
ATTACKS = {PGD: "PGD-20 (10 restarts)", "apgd-t": "APGD-T"}
PUBLISHED_N = "n=100000"


def is_boosted(row: Mapping[str, Any]) -> bool:
    """Whether a row is a boosted ensemble, and neither one network nor independent ones."""
    return bool(row["kind"] == "boosted")


def linf_verdicts(rows: Rows, attack: str = PGD) -> list[str]:
    """Which claims hold on these rows, decided by the intervals: a difference counts if they do not overlap."""
    attacked = {key: row for key, row in rows.items() if attack in row["ensemble"]}
    by_name = {name: found for (name,), found in grouped(attacked, "name").items()}
    boosted = [name for name, found in by_name.items() if is_boosted(found[0])]
    if not boosted:
        return []
    best = max(boosted, key=lambda name: fmean(row["ensemble"][attack]["rate"] for row in by_name[name]))
    ours = by_name[best][0]
    sentences = [f"Best boosted row under {ATTACKS[attack]}: {ours['label']}."]
    rivals = {name: by_name[name][0]["ensemble"][attack] for name in by_name if name not in boosted}
    rivals["its own last member"] = ours["last_member"][attack]
    if "clean-trained" in by_name and best != "clean-trained":
        rivals["the paper's form (`clean`, `trained`)"] = by_name["clean-trained"][0]["ensemble"][attack]
    for name, rival in rivals.items():
        label = by_name[name][0]["label"] if name in by_name else name
        sentences.append(f"Against {label}: {compare(ours['ensemble'][attack], rival)}.")
    return sentences


def compare(one: Mapping[str, float], other: Mapping[str, float]) -> str:
    """How two rates with intervals compare."""
    difference = f"{100 * one['rate']:.1f} % against {100 * other['rate']:.1f} %"
    if one["low"] > other["high"]:
        return f"better, {difference}"
    if one["high"] < other["low"]:
        return f"worse, {difference}"
    return f"no significant difference, {difference}"


def l2_verdicts(rows: Rows, n: str) -> list[str]:
    """How the best boosted row compares with every other kind, by paired differences of the certified radius."""
    boosted = {key: row for key, row in rows.items() if is_boosted(row)}
    if not boosted:
        return []
    best = max(boosted.values(), key=lambda row: row[n]["acr"])
    sentences = [f"Best boosted row: {best['label']}, ACR {format_radius(best[n]['acr'])}."]
    for row in rows.values():
        if row["seed"] == best["seed"] and row["name"] not in {other["name"] for other in boosted.values()}:
            mean, error = paired(best[n]["radii"], row[n]["radii"])
            sentences.append(
                f"Against {row['label']}: {word(mean, error)}, {mean:+.3f} in ACR over the same images "
                f"(standard error {error:.3f})"
                f", {_relative_cost(best, row)}."
            )
    return sentences


def paired(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """The mean difference over the same images, and its standard error."""
    differences = [one - other for one, other in zip(ours, theirs, strict=True)]
    return fmean(differences), stdev(differences) / len(differences) ** 0.5


def word(mean: float, error: float) -> str:
    """What a mean difference with this standard error says."""
    return "no significant difference" if abs(mean) < 1.96 * error else "better" if mean > 0 else "worse"


def _relative_cost(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """What the training of one row cost beside that of the other, if they were trained on one machine."""
    ratio = cost_ratio(one, other)
    return f"for {ratio} times its processor seconds" if ratio else "trained on another machine: costs do not compare"


def cost_ratio(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Processor seconds of one training as a multiple of another's; nothing if their machines differ."""
    if one.get("processor") != other.get("processor"):
        return ""
    return f"{one['training']['cpu_seconds'] / other['training']['cpu_seconds']:.2f}"


def published_verdicts(rows: Rows, n: str, published: Mapping[str, float]) -> list[str]:
    """The best boosted row beside figures from the literature, by the bound they were made with and by ours.

    Only at the n they were made with: fewer samples cannot prove as large radii, however good the model is.
    """
    boosted = [row[n] for row in rows.values() if is_boosted(row)]
    if not boosted or n != PUBLISHED_N:
        return []
    sentences = []
    for bound, key in (("two-class", "acr"), ("top-class", "acr_top_class")):
        best = max(boosted, key=operator.itemgetter(key))
        low, high = best["acr_interval"]
        spread = f" (95 % interval {format_radius(low)} to {format_radius(high)})" if key == "acr" else ""
        for name, figure in published.items():
            word = "at or above" if best[key] >= figure else "below"
            found = f"{format_radius(best[key])}{spread}"
            sentences.append(
                f"Boosted, {bound} bound: {found}, {word} the published {name} figure of {format_radius(figure)}."
            )
    return sentences


def same_images_verdicts(
    rows: Rows, n: str, network: Mapping[str, Any], published_figures: Mapping[str, float]
) -> list[str]:
    """The best boosted row beside a network of the literature whose radii were published image by image.

    A figure for all 10,000 test images says little about 500 of them: which images they are moves the ACR by more than
    the networks differ. Over the same images the comparison is a paired one. The log rounds to three digits, and so
    above what n samples can prove: such radii are taken back to it.

    The published figure plus the mean difference estimates our ACR on all test images (the difference estimator of
    survey sampling). Its error is that of the difference, which is far smaller than that of our mean. For it the log is
    taken as it stands, because the figure was made so; the figure is a mean over several networks, the log of one.
    """
    boosted = [row[n] for row in rows.values() if is_boosted(row)]
    if not boosted or n != PUBLISHED_N or len(network["radii"]) != boosted[0]["images"]:
        return []
    published, name = [min(radius, network["largest"]) for radius in network["radii"]], network["name"]
    figure = fmean(published)
    sentences = [f"The published log of one {name} network has ACR {format_radius(figure)} on these very images."]
    best = max(boosted, key=lambda row: row["acr"])
    mean, error = paired(best["radii"], published)
    sentences.append(
        f"Boosted, two-class bound, against {name} over the same images: {word(mean, error)}, {mean:+.4f} (standard "
        f"error {error:.4f})."
    )
    if name in published_figures:
        more, error = paired(best["radii"], network["radii"])
        whole = published_figures[name]
        low, found, high = (format_radius(whole + more + side * 1.96 * error) for side in (-1, 0, 1))
        sentences.append(
            f"So the estimate for all test images, where {name} has {format_radius(whole)}, is {found} (95 % "
            f"interval {low} to {high})."
        )
    top = max(row["acr_top_class"] for row in boosted)
    sentences.append(f"Boosted, top-class bound, against {name} over the same images: {top - figure:+.4f}.")
    return sentences


_LINF_CLAIMS = (
    (
        "the paper's form (`clean`, `trained`, doubling stages, N_1 = 1) beats one member of as many epochs",
        "clean-trained",
        "single",
    ),
    ("the best boosted row beats one member of the same training cost", "best", "single-18"),
    ("the best boosted row beats independent members of the same training cost", "best", "independent"),
    ("the best boosted row beats one network of three members' inference cost", "best", "wider"),
    (
        "the offset approximation (`clean`) is as good as attacking the ensemble (`exact`)",
        "clean-trained",
        "exact-trained",
    ),
    ("the best boosted row beats its own last member", "best", "last member"),
)


def paper_claims(linf: Mapping[str, Any] | None) -> str:
    """The paper's claims on robust accuracy, and those one would like it to make, one line per claim and radius."""
    lines = []
    for (delta,), found in grouped((linf or {}).get("rows", {}), "delta").items():
        rows = {row["name"]: row for row in found if PGD in row["ensemble"]}
        boosted = [row for row in rows.values() if is_boosted(row)]
        if not boosted:
            continue
        best = max(boosted, key=lambda row: row["ensemble"][PGD]["rate"])
        rates = {name: row["ensemble"][PGD] for name, row in rows.items()}
        rates |= {"best": best["ensemble"][PGD], "last member": best["last_member"][PGD]}
        for claim, one, other in _LINF_CLAIMS:
            if one in rates and other in rates:
                lines.append([claim, f"{delta:g}", compare(rates[one], rates[other])])
    return markdown(["claim", "l_inf radius", f"found, accuracy under {ATTACKS[PGD]}"], lines) if lines else ""
