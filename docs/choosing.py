"""The tables and the picture of docs/choosing.md, from certificates in the repository; `make docs` calls this.

The radii at three sigmas are those that benchmarks/accuracy/certified.py --set long recorded, of one model file each.
What other n and alpha would give follows from the votes of the 500 certificates in benchmarks/certificates: n of the
100,000 votes, drawn without replacement, are distributed as n fresh votes, and the bound is computed again.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robustinfer.certificate_file import Entry, read_certificates
from robustinfer.files import replacing
from robustinfer.smoothing.bounds import format_radius, round_radius_down
from robustinfer.smoothing.estimates import Smoothing, estimate

__all__ = ["CERTIFICATES", "alpha_rows", "draw", "entries", "n_rows", "rethought", "sigma_rows"]

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
CERTIFICATES = BENCHMARKS / "certificates" / "l2_long-0.5.jsonl"
RECORD = BENCHMARKS / "results" / "l2_long.json"
SIGMAS = (0.25, 0.5, 1.0)
RADII = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5)
SIZES = (100, 1000, 10_000, 100_000)
ALPHAS = (0.05, 0.01, 0.001, 1e-6)
SIZE, ALPHA = 10_000, 0.001  # where the other one is varied

Radii = npt.NDArray[np.float64]


def rethought(entries: Sequence[Entry], *, n: int, alpha: float) -> Radii:
    """The radius of each image if n samples had voted and alpha were this one; -1 for a wrong label or none."""
    stream = np.random.default_rng(0)
    found = []
    for entry in entries:
        certificate = entry.certificate
        votes = np.array([*certificate.counts, certificate.invalid], dtype=np.int64)
        drawn = stream.multivariate_hypergeometric(votes, n) if n < votes.sum() else votes
        # The label was chosen on samples of its own; where none was certified, it is the one with the most votes.
        top = int(votes.argmax()) if certificate.label is None else certificate.label
        radius = round_radius_down(max(0.0, estimate(Smoothing(certificate.sigma), drawn, top, alpha).radius))
        found.append(radius if top == entry.truth and radius > 0 else -1.0)
    return np.array(found)


def recorded() -> dict[float, Radii]:
    """The radii of one kind of ensemble, trained and certified at three sigmas with n = 100,000; -1 as above."""
    rows = json.loads(RECORD.read_text(encoding="utf-8"))["rows"]
    found = {sigma: np.array(rows[f"{sigma:g}/0/boosted-equal"]["n=100000"]["radii"]) for sigma in SIGMAS}
    return {sigma: np.where(radii > 0, radii, -1.0) for sigma, radii in found.items()}


def _share(radii: Radii, radius: float) -> str:
    return f"{100 * float((radii >= radius).mean()):.1f} %"


def _average(radii: Radii) -> str:
    return format_radius(float(radii.clip(min=0).mean()))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def sigma_rows() -> str:
    """Certified accuracy at each radius, the best sigma in bold."""
    found, rows = recorded(), []
    for radius in RADII:
        shares = {sigma: float((radii >= radius).mean()) for sigma, radii in found.items()}
        best = max(shares.values())
        cells = [f"**{_share(found[s], radius)}**" if shares[s] == best else _share(found[s], radius) for s in SIGMAS]
        rows.append([f"{radius:g}", *cells])
    return _table(["radius", *(f"sigma {sigma:g}" for sigma in SIGMAS)], rows)


def _choice_rows(name: str, choices: Mapping[str, Radii]) -> str:
    rows = [
        [words, _average(radii), format_radius(float(radii.max())), *(_share(radii, r) for r in (0.0, 1.0, 1.5))]
        for words, radii in choices.items()
    ]
    return _table([name, "average radius", "largest", "certified at 0", "at 1", "at 1.5"], rows)


def n_rows(entries: Sequence[Entry]) -> str:
    """What each n gives."""
    return _choice_rows("n", {f"{n:,}": rethought(entries, n=n, alpha=ALPHA) for n in SIZES})


def alpha_rows(entries: Sequence[Entry]) -> str:
    """What each alpha gives."""
    return _choice_rows("alpha", {f"{alpha:g}": rethought(entries, n=SIZE, alpha=alpha) for alpha in ALPHAS})


def draw(entries: Sequence[Entry], path: Path) -> None:
    """Certified accuracy against the radius, one panel for each choice. Opaque, so that dark pages show it, too."""
    from matplotlib.figure import Figure

    panels: dict[str, Mapping[str, Radii]] = {
        "sigma (n = 100,000, alpha = 0.001)": {f"sigma {sigma:g}": radii for sigma, radii in recorded().items()},
        "n (sigma = 0.5, alpha = 0.001)": {f"n = {n:,}": rethought(entries, n=n, alpha=ALPHA) for n in SIZES},
        f"alpha (sigma = 0.5, n = {SIZE:,})": {
            f"alpha = {alpha:g}": rethought(entries, n=SIZE, alpha=alpha) for alpha in ALPHAS
        },
    }
    figure = Figure(figsize=(11, 3.4), layout="constrained", facecolor="white")
    for axes, (title, curves) in zip(figure.subplots(1, 3, sharey=True), panels.items(), strict=True):
        _panel(axes, title, curves)
    figure.axes[0].set_ylabel("certified accuracy, %")
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=110, metadata={"Software": None})


def _panel(axes: Any, title: str, curves: Mapping[str, Radii]) -> None:
    for (name, radii), style in zip(curves.items(), ("-", "--", "-.", ":"), strict=False):  # told apart without colour
        certified = np.sort(radii[radii > 0])
        share = 100 * (len(certified) - np.arange(len(certified))) / len(radii)
        axes.step([0, *certified, certified[-1]], [share[0], *share, 0], where="pre", linestyle=style, label=name)
    axes.set(title=title, xlabel="l2 radius, pixels in [0,1]", ylim=(0, 100))
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="lower left")  # a place that matplotlib need not look for


def entries() -> list[Entry]:
    """The certificates."""
    return read_certificates(CERTIFICATES)[1]
