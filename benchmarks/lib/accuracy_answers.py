"""What the records say about accuracy: under attack, certified, published, after fine-tuning, and which recipes."""

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.lib.details import Document, published_radii
from benchmarks.lib.noise import difference
from benchmarks.lib.outcomes import Records, Rows, best_of, seeds, tally, values
from benchmarks.lib.tables import grouped, markdown
from benchmarks.lib.verdicts import PGD, PUBLISHED_N, compare, cost_ratio, paired, word
from robustinfer.smoothing.bounds import format_radius

__all__ = ["attacked", "certified", "finetuned", "minimax", "offsets", "published", "recipes"]

FINETUNED_RADII = (0.0, 0.1, 0.2)
RIVALS = {"single": "one member", "wider": "one wider network", "independent": "independent members"}
DATA = {
    "linf_mnist": "MNIST",
    "linf_full": "MNIST, all images",
    "cifar10": "CIFAR-10",
    "cifar10_linf": "CIFAR-10, all images",
    "l2_mnist": "MNIST",
    "l2_published": "MNIST, all images",
    "l2_long": "MNIST, long training",
    "cifar10_l2": "CIFAR-10",
    "cifar10_fast": "CIFAR-10, all images",
    "gtsrb_l2": "Traffic signs",
}


def _rate(found: Mapping[str, float]) -> str:
    return f"{100 * found['rate']:.1f} [{100 * found['low']:.1f}, {100 * found['high']:.1f}]"


def _attacked_rows(records: Records) -> Iterable[tuple[str, dict[str, Rows]]]:
    for name, document in records.items():
        for delta in values(document, "delta"):
            rows = [row for row in document["rows"].values() if row["delta"] == delta and PGD in row["ensemble"]]
            if best := best_of(rows, lambda row: float(row["ensemble"][PGD]["rate"])):
                yield f"{DATA[name]}, {delta:.3g}", best


def attacked(records: Records) -> tuple[str, str]:
    """The best boosted row under PGD beside the best of each other kind."""
    lines: list[list[str]] = []
    outcomes: dict[str, list[str]] = {kind: [] for kind in RIVALS}
    for what, best in _attacked_rows(records):
        if "boosted" not in best:
            continue
        rates = {kind: row["ensemble"][PGD] for kind, row in best.items()}
        lines.append([what, *(_rate(rates[kind]) if kind in rates else "" for kind in ("boosted", *RIVALS))])
        for kind, rate in rates.items():
            if kind in outcomes:
                outcomes[kind].append(compare(rates["boosted"], rate))
    table = markdown(["data, l_inf radius", "boosted", *RIVALS.values()], lines)
    tallies = "; ".join(f"against {RIVALS[kind]}, {tally(found)}" for kind, found in outcomes.items() if found)
    note = "Accuracy under PGD-20 (10 restarts) in %, the best row of each kind."
    return f"Boosted ensembles: {tallies}.", f"{note} {seeds(records.values())}\n\n{table}"


def offsets(records: Records) -> tuple[str, str]:
    """The paper's cached offset, its form of boosting, and the ensemble beside its own last member."""
    document = records["linf_mnist"]
    found: dict[str, list[str]] = {"offset": [], "form": [], "member": []}
    lines = []
    for delta in values(document, "delta"):
        rows = {r["name"]: r for r in document["rows"].values() if r["delta"] == delta and PGD in r["ensemble"]}
        best = best_of(rows.values(), lambda row: float(row["ensemble"][PGD]["rate"])).get("boosted")
        if best is None or not {"clean-trained", "exact-trained", "single"} <= rows.keys():
            continue
        clean, exact, single = (rows[name]["ensemble"][PGD] for name in ("clean-trained", "exact-trained", "single"))
        pairs = [(clean, exact), (clean, single), (best["ensemble"][PGD], best["last_member"][PGD])]
        words = [compare(*pair) for pair in pairs]
        for key, sentence in zip(found, words, strict=True):
            found[key].append(sentence)
        lines.append([f"{delta:g}", *words])
    verdict = (
        f"The cached offset (`clean`) compared with attacking the whole ensemble (`exact`): {tally(found['offset'])}. "
        f"The paper's form compared with one member of as many epochs: {tally(found['form'])}. "
        f"The best ensemble compared with its own last member: {tally(found['member'])}."
    )
    header = [
        "l_inf radius",
        "`clean` against `exact`",
        "paper's form against one member",
        "ensemble against last member",
    ]
    return verdict, markdown(header, lines)


def _certified_rows(name: str, document: Document) -> Iterable[tuple[str, str, dict[str, Rows]]]:
    for sigma in reversed(values(document, "sigma")):
        rows = [row for row in document["rows"].values() if row["sigma"] == sigma]
        for n in sorted({key for row in rows for key in row if key.startswith("n=")}, key=len):
            best = best_of((row for row in rows if n in row), lambda row, n=n: float(row[n]["acr"]))  # type: ignore[misc]
            yield f"{DATA[name]}, {sigma:g}, {int(n[2:]):,}", n, best


def acr(found: Mapping[str, Any]) -> str:
    """An average certified radius with its interval."""
    low, high = map(format_radius, found["acr_interval"])
    return f"{format_radius(found['acr'])} [{low}, {high}]"


def certified(records: Records) -> tuple[str, str]:
    """The best boosted row by its certified radii, paired with the best of each other kind; what has no boosted row."""
    lines: list[list[str]] = []
    alone: list[str] = []
    outcomes: dict[str, list[str]] = {kind: [] for kind in RIVALS}
    for name, document in records.items():
        for what, n, best in _certified_rows(name, document):
            if "boosted" not in best:
                alone += [f"{what}: {row['label']}, {_in_words(row, n)}" for row in best.values()]
            if "boosted" not in best or len(best) == 1:
                continue
            cells = [what, acr(best["boosted"][n]), _at_radii(best["boosted"], n)]
            for kind in RIVALS:
                if kind not in best:
                    cells.append("")
                    continue
                mean, error = paired(best["boosted"][n]["radii"], best[kind][n]["radii"])
                outcomes[kind].append(word(mean, error))
                cells.append(f"{mean:+.3f} ± {error:.3f}")
            rival = best.get("single") or best.get("wider")
            lines.append([*cells, cost_ratio(best["boosted"], rival) if rival else ""])
    tallies = "; ".join(f"against {RIVALS[kind]}, {tally(found)}" for kind, found in outcomes.items() if found)
    header = ["data, sigma, n", "boosted: ACR", "boosted: certified at radius 0, sigma, %"]
    header += [*(f"boosted minus {rival}" for rival in RIVALS.values()), "training cost, times that of one member"]
    table = markdown(header, lines)
    noisy = _under_noise(records["gtsrb_l2"]) if "gtsrb_l2" in records else ""
    rest = f" Without a boosted rival: {'; '.join(alone)}." if alone else ""
    note = f"ACR of the best row of each kind. {seeds(records.values())}{noisy}{rest}"
    return f"Boosted ensembles: {tallies}.", f"{note}\n\n{table}"


def _in_words(row: Rows, n: str) -> str:
    return f"ACR {acr(row[n])}, certified at radius 0, sigma: {_at_radii(row, n)} %"


def _at_radii(row: Rows, n: str) -> str:
    """Certified accuracy at radius 0 and at sigma: an ACR alone may hide that a few easy images have large radii."""
    accuracy = row[n]["accuracy"]
    return ", ".join(f"{100 * accuracy[key]:.1f}" for key in ("0", f"{row['sigma']:g}") if key in accuracy)


def _under_noise(document: Document) -> str:
    """The accuracy under noise on all traffic signs, each row beside one member of the same training cost."""
    sentences = []
    for sigma in reversed(values(document, "sigma")):
        measured = {key: r for key, r in document["rows"].items() if r["sigma"] == sigma and "noise" in r}
        named = {name: found for (name,), found in grouped(measured, "name").items()}
        if "single" not in named or len(named) == 1:
            continue
        one = named["single"][0]["noise"]
        figures = []
        for name, found in named.items():
            if name != "single":
                mean, error = difference(found, named["single"], "right")
                figures.append(f"{name} {100 * mean:+.1f} ± {100 * error:.1f}")
        sentences.append(
            f" Accuracy under noise of sigma {sigma:g} on {one['images']:,} traffic signs: one member "
            f"{100 * one['right']:.1f} %; difference in points: {', '.join(figures)}."
        )
    return "".join(sentences)


def published(records: Records) -> tuple[str, str]:
    """The best boosted row beside a network whose radii were published image by image."""
    document, lines, outcomes = records["l2_long"], [], []
    for sigma in reversed(values(document, "sigma")):
        rows = [row for row in document["rows"].values() if row["sigma"] == sigma and PUBLISHED_N in row]
        ours = best_of(rows, lambda row: float(row[PUBLISHED_N]["acr"])).get("boosted")
        network = published_radii()["networks"][f"{sigma:g}"]
        if ours is None or (document["every"], ours[PUBLISHED_N]["images"]) != (
            published_radii()["every"],
            len(network["radii"]),
        ):
            continue
        theirs = [min(radius, network["largest"]) for radius in network["radii"]]
        mean, error = paired(ours[PUBLISHED_N]["radii"], theirs)
        outcomes.append(word(mean, error))
        figures = format_radius(sum(theirs) / len(theirs))
        top = format_radius(ours[PUBLISHED_N]["acr_top_class"])
        lines.append([f"{sigma:g}", acr(ours[PUBLISHED_N]), top, figures, f"{mean:+.4f} ± {error:.4f}", outcomes[-1]])
    header = ["sigma", "boosted: ACR", "with the top-class bound", "SmoothAdv as published", "difference", "verdict"]
    note = "MNIST, n = 100,000, the same 500 test images; the published network is a LeNet trained for 90 epochs."
    bound = "Published radii are those of the top-class bound; ours, unless it says so, those of the two-class bound."
    verdict = f"Compared with one published SmoothAdv network, over the same images: {tally(outcomes)}."
    return verdict, f"{note} {bound} {seeds([document])}\n\n{markdown(header, lines)}"


def finetuned(records: Records) -> tuple[str, str]:
    """Fine-tuning for k epochs beside training from random parameters for 2k."""
    document = records["finetuning"]
    rows = {(row["way"], row["epochs"], row["seed"]): row for row in document["rows"].values() if row["kind"] == "row"}
    outcomes, figures = [], []
    for (way, epochs, seed), row in rows.items():
        rival = rows.get(("scratch", 2 * epochs, seed))
        if way != "fine-tuned" or rival is None:
            continue
        for radius in FINETUNED_RADII:
            pairs = [(row["radii"][key] >= radius, rival["radii"][key] >= radius) for key in row["radii"]]
            mean, error = paired([float(one) for one, _ in pairs], [float(other) for _, other in pairs])
            outcomes.append(word(mean, error))
            figures.append(f"{epochs} and {2 * epochs}, {radius:g}: {100 * mean:+.1f} ± {100 * error:.1f}")
    verdict = (
        f"A clean network of traffic signs, fine-tuned with noise of sigma {document['sigma']:g} and compared with one "
        f"trained from scratch for twice as long: {tally(outcomes)}."
    )
    plot = "![Certified accuracy after k epochs](plots/finetuning.png)\n"
    images, seeds = min(len(row["radii"]) for row in rows.values()), len({seed for _, _, seed in rows})
    note = f"{images} test images, {seeds} seed{'s' * (seeds > 1)}; the training of the clean network is not counted."
    return verdict, f"{plot}{note} Points of certified accuracy (epochs of each, radius): {'; '.join(figures)}.\n"


def minimax(records: Records) -> tuple[str, str]:
    """Greedy beside minimax boosting; the certificates of summed scores beside those of votes."""
    groups: dict[str, list[str]] = {}
    larger = []
    for document in records.values():
        for row in document["results"]["boosters"]:
            if row["robust"] is None:
                continue
            radii = _radii_of(document, row["booster"]) if row["threat"] == "l2" else []
            larger += [format_radius(radii[0]) >= max(map(format_radius, radii))] if radii else []
            acr = f", ACR {format_radius(radii[0])}" if radii else ""
            group = groups.setdefault(f"{document['arguments']['data']}, {row['threat']}", [])
            group.append(f"{row['booster']} {100 * row['robust']:.1f} %{acr}")
    images = {document["arguments"]["images"] for document in records.values()}
    which = "in every row" if all(larger) else "in most rows"
    votes = "summed scores certify at least as much as votes, to three digits"
    verdict = f"Neither booster is ahead everywhere; {which} {votes}."
    note = f"Robust accuracy on {min(images)} to {max(images)} test images, one seed: small differences may be chance."
    found = " ".join(f"{name}: {'; '.join(rows)}." for name, rows in groups.items())
    return verdict, f"{note} {found}\n"


def _radii_of(document: Document, booster: str) -> list[float]:
    return [row["mean radius"] for row in document["results"]["certificates"] if row["booster"] == booster]


def recipes(records: Records) -> tuple[str, str]:
    """How the default recipes were chosen."""
    digits, forms = records["digits_forms"], records["l2_forms"]
    sentences = []
    for norm in ("linf", "l2"):
        groups: dict[str, list[Rows]] = {}
        for row in digits["rows"].values():
            if row["norm"] == norm:
                groups.setdefault(row["label"], []).append(row)
        means = {label: sum(row["robust"]["rate"] for row in rows) / len(rows) for label, rows in groups.items()}
        best = best_of((rows[0] for rows in groups.values()), lambda row, means=means: means[row["label"]])  # type: ignore[misc]
        sentences.append(
            f"{best['boosted']['label']} reaches {100 * means[best['boosted']['label']]:.1f} %, "
            f"{best['single']['label'].partition(': ')[2]} {100 * means[best['single']['label']]:.1f} %"
        )
    tried, images = len({row["name"] for row in forms["rows"].values()}), digits["held_out_images"]
    verdict = f"On {images} held-out digits, accuracy under attack, mean of three seeds: {'; '.join(sentences)}."
    more = f"On MNIST, {tried} ways to train smoothed members were tried on held-out images."
    return verdict, f"{more}{_heads(records['head_forms']) if 'head_forms' in records else ''}\n"


def _heads(document: Document) -> str:
    """What the best heads keep of what whole members gain over the first one, under noise."""
    rows = {row["name"]: row for row in document["rows"].values() if row["seed"] == 0}
    found = {name: (*difference([row], [rows["first"]], "right"), row) for name, row in rows.items() if name != "first"}
    whole, best = found["whole"], max((found[name] for name in found if name != "whole"), key=lambda one: one[0])
    what = [
        f"{row['label']}: {100 * mean:+.1f} ± {100 * error:.1f} points at {row['mmac']:.0f} MMAC per sample"
        for mean, error, row in (whole, best)
    ]
    images = f"{document['held_out_images']:,} held-out traffic signs"
    return f" On {images} under noise, beside the first member alone: {what[0]}; best heads ({what[1]})."
