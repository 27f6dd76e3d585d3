"""The report: self-contained, complete, honest in its rounding, and it loads in a browser."""

import base64
import copy
import dataclasses
import html.parser
import io
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from robustinfer.certificate import MemberVotes
from robustinfer.errors import ArgumentError, DataError, MissingExtraError
from robustinfer.report import read_sources, render
from robustinfer.report.headline import headline
from robustinfer.report.tables import confusion_table, votes_table
from robustinfer.smoothing.bounds import format_radius
from robustinfer.summary import percent

from ...docs.conftest import Quickstart, robust


class Page(html.parser.HTMLParser):
    """What a browser would load, and the text it would show."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def sources(self) -> list[str]:
        """The sources of all images."""
        return [str(attributes["src"]) for tag, attributes in self.tags if tag == "img"]


@pytest.fixture(scope="session")
def page(quickstart: Quickstart) -> Page:
    return Page((quickstart.out / "report.html").read_text())


def test_loads_nothing_from_elsewhere(page: Page) -> None:
    assert not {"script", "link", "iframe", "object", "embed", "form"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        for name in ("src", "href", "srcset", "data", "action", "background"):
            assert str(attributes.get(name, "data:")).startswith("data:"), (tag, attributes)
        assert str(attributes.get("xlink:href", "#")).startswith("#"), (tag, attributes)
        assert "onload" not in attributes
    assert "url(" not in page.text
    assert "@import" not in page.text


@pytest.mark.parametrize(
    ("stages", "booster", "votes", "words"),
    [
        (2, "greedy", False, "a boosted ensemble of 2 members gives"),
        (2, "independent", False, "an ensemble of 2 members trained apart gives"),
        (2, "minimax", False, "an ensemble of 2 members that vote gives"),
        (2, "independent", True, "an ensemble of 2 members that vote gives"),
        (1, "greedy", False, "one network gives"),
        (1, "independent", False, "one network gives"),
    ],
)
def test_the_headline_says_what_was_certified(
    quickstart: Quickstart, stages: int, booster: str, votes: bool, words: str
) -> None:
    material = read_sources([quickstart.out])
    (run,), certified = material.runs, material.sets[0]
    run = dataclasses.replace(run, stages=run.stages[:stages], recipe=run.recipe | {"booster": booster})
    if votes:
        (first, *others), member = certified.entries, MemberVotes(0.5, 0, 0.5, 0.9, 0.1, (9, 1), 0)
        certificate = copy.copy(first.certificate)
        object.__setattr__(certificate, "members", (member, member))  # what a votes file would have
        entries = [dataclasses.replace(first, certificate=certificate), *others]
        certified = dataclasses.replace(certified, entries=entries)
    found = headline(dataclasses.replace(material, runs=(run,), sets=(certified, *material.sets[1:])))
    assert words in found.sentence
    assert found.boxes[-1].label == ("training, 1 stage" if stages == 1 else "training, 2 stages")


@pytest.fixture(scope="session")
def plots(quickstart: Quickstart) -> list[ElementTree.Element]:
    text = (quickstart.out / "report.html").read_text()
    return [ElementTree.fromstring(plot) for plot in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]


def test_every_plot_is_drawn_and_named(plots: list[ElementTree.Element]) -> None:
    names = [plot.get("aria-label") for plot in plots]
    assert names == ["Certified accuracy against radius", "Accuracy by stage", "Training time by stage"]
    for plot in plots:
        assert plot.get("role") == "img"
        assert len(list(plot.iter())) > 50


def test_plots_share_no_ids_and_refer_to_their_own(plots: list[ElementTree.Element]) -> None:
    ids = [element.attrib["id"] for plot in plots for element in plot.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids)) > 0
    for plot in plots:
        own = {element.get("id") for element in plot.iter()}
        text = ElementTree.tostring(plot, encoding="unicode")
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', text)) <= own


def test_plots_have_the_colours_of_the_page_which_are_there_by_day_and_in_the_dark(
    plots: list[ElementTree.Element], quickstart: Quickstart
) -> None:
    found = {
        colour.strip()
        for plot in plots
        for element in plot.iter()
        for colour in re.findall(r"(?:fill|stroke):([^;]*)", f"{element.get('style', '')};")
    }
    assert found >= {"currentColor", "var(--series-1)", "var(--series-2)", "var(--grid)"}
    assert {colour for colour in found if not colour.startswith("var(")} <= {"none", "currentColor"}
    style = (quickstart.out / "report.html").read_text().partition("<style>")[2].partition("</style>")[0]
    day, dark = (
        dict(re.findall(r"(--[\w-]+): (#\w+);", block)) for block in re.findall(r":root \{(.*?)\}", style, re.S)
    )
    assert set(day) == set(dark) >= {colour[4:-1] for colour in found if colour.startswith("var(")}
    assert set(re.findall(r"var\((--[\w-]+)\)", style)) <= set(day)
    for scheme in (day, dark):
        for name in ("--ink", "--soft", "--blue", *(f"--series-{number}" for number in range(1, 6))):
            assert contrast(scheme[name], scheme["--paper"]) >= (4.5 if name in ("--ink", "--soft") else 3.0), name


def contrast(one: str, other: str) -> float:
    """The contrast ratio of the Web Content Accessibility Guidelines, which ask for 4.5 in text and 3 in graphics."""

    def luminance(colour: str) -> float:
        digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
        parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_picture_can_be_decoded(page: Page) -> None:
    pictures = [source for source in page.sources() if source.startswith("data:image/png;base64,")]
    assert len(pictures) >= 24
    assert len(pictures) == len(page.sources())
    for picture in pictures:
        image = Image.open(io.BytesIO(base64.b64decode(picture.partition(",")[2])))
        image.load()
        assert image.size == (8, 8)


def test_every_picture_has_words(page: Page) -> None:
    for tag, attributes in page.tags:
        if tag == "img":
            assert attributes["alt"]


def test_says_figures_details_and_digests(page: Page, quickstart: Quickstart) -> None:
    material = read_sources([quickstart.out])
    summary = material.sets[0].summary
    assert f"On {summary.images} test images of digits" in page.text
    assert percent(summary.accuracies[0].accuracy) in page.text
    assert summary.model["digest"] in page.text
    assert summary.linf_mean is not None
    assert "average radius, l_inf" in page.text
    assert format_radius(summary.linf_mean, 4) in page.text
    assert ", chosen by the caller" in page.text or ", chosen by the runtime" in page.text
    for section in (
        "Certified accuracy",
        "Certified accuracy per class",
        "The hardest confusions",
        "How sure the votes are",
        "Accuracy under attack, by stage",
        "Training time, by stage",
        "Certified images",
        "What fools an ordinary network",
        "What a certificate says, and what it does not",
        "Details and digests",
    ):
        assert section in page.text
    attacked = material.attacked
    assert attacked is not None
    for example in attacked.examples:
        assert example.distance < example.radius
        change = example.changed.astype(float) - example.original
        assert np.linalg.norm(change) / 255 == pytest.approx(example.distance)


def test_confusions_and_votes_are_those_of_the_certificates(quickstart: Quickstart) -> None:
    material = read_sources([quickstart.out])
    entries = material.sets[0].entries
    votes = np.array([entry.certificate.counts for entry in entries])
    truth = np.array([entry.truth for entry in entries])
    wrong = votes.argmax(axis=1) != truth
    confusions = confusion_table(material)
    assert confusions is not None, "the digits of quickstart are not all right"
    assert confusions["images"] == wrong.sum() > 0
    pairs, counts = np.unique(np.stack([truth, votes.argmax(axis=1)])[:, wrong], axis=1, return_counts=True)
    assert confusions["pairs"] == pairs.shape[1]
    first, taken, images, certified = confusions["rows"][0]
    assert images == f"{counts.max()} of {(truth == int(first)).sum()}"
    labels = [entry.certificate.label for entry in entries if entry.truth == int(first)]
    assert int(certified) == labels.count(int(taken))
    shares = votes[np.arange(len(truth)), truth] / votes.sum(axis=1)
    expected = [*np.histogram(shares[shares < 1], [0, 0.1, 0.5, 0.9, 0.99, 0.999, 1])[0], (shares == 1).sum()]
    assert [int(row[1]) for row in votes_table(material)["rows"]] == expected
    assert sum(expected) == len(entries)


def test_rates_never_look_better_than_they_are() -> None:
    assert percent(0.99999) == "99.9 %"
    assert percent(0.00001, failure=True) == "0.1 %"
    assert percent(0.015, failure=True) == "1.5 %"
    assert percent(0.575) == "57.5 %"
    assert percent(1.0) == "100.0 %"


def test_reports_a_run_alone_and_certificates_alone(quickstart: Quickstart) -> None:
    run = Page(render(read_sources([quickstart.out / "run"])))
    assert "Training time, by stage" in run.text
    assert "Certified images" not in run.text
    certificates = Page(render(read_sources([quickstart.out / "certificates.jsonl"]), title="<b>& title"))
    assert "Certified images" in certificates.text
    assert "<b>& title" in certificates.text
    assert "<title>&lt;b&gt;&amp; title</title>" in render(read_sources([quickstart.out / "run"]), title="<b>& title")
    assert "Training time" not in certificates.text


def test_without_the_model_there_is_no_gallery_and_it_says_so(quickstart: Quickstart, tmp_path: Path) -> None:
    alone = shutil.copy(quickstart.out / "certificates.jsonl", tmp_path / "certificates.jsonl")
    finished = robust("report", str(alone), "--out", "page.html", cwd=tmp_path)
    assert finished.code == 0, finished.err
    assert finished.out == "page.html\n"
    assert "There is no gallery: give the model file with --model" in finished.err
    assert "There is no gallery" in (tmp_path / "page.html").read_text()


def test_without_jinja2_it_names_the_extra(quickstart: Quickstart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match=r"robustinfer\[report\]"):
        render(read_sources([quickstart.out / "run"]))


def test_refuses_what_is_no_source(quickstart: Quickstart, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"Expected a run folder or a \.jsonl file of certificates, found"):
        read_sources([quickstart.out / "digits.onnx"])
    with pytest.raises(DataError, match="holds neither a run nor certificates"):
        read_sources([tmp_path])
    broken = tmp_path / "attacked.npz"
    broken.write_bytes(b"PK nothing")
    with pytest.raises(DataError, match="is not a file of attacked images"):
        read_sources([quickstart.out / "certificates.jsonl", broken])


def _browser() -> str | None:
    return next(filter(None, (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))), None)


_CHECK = """<script>
onload = () => {
  const images = [...document.images];
  const loaded = images.filter(image => image.complete && image.naturalWidth > 0 && image.clientWidth > 0);
  const wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
  const plots = [...document.querySelectorAll("svg")].filter(plot => plot.clientHeight > 100).length;
  const paper = getComputedStyle(document.body).backgroundColor;
  const width = wide ? "too wide" : "fits";
  document.title = `loaded ${loaded.length} of ${images.length}, ${plots} plots, ${width}, ${paper}`;
};
</script></head>"""


@pytest.mark.skipif(_browser() is None, reason="no chromium on this machine: the page is only parsed")
@pytest.mark.parametrize("size", ["1200,900", "390,844"], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["rgb(20, 24, 28)", "rgb(255, 255, 255)"], ids=["dark", "day"])
def test_every_figure_loads_and_the_page_fits(
    page: Page, quickstart: Quickstart, size: str, scheme: str, tmp_path: Path
) -> None:
    probe = tmp_path / "page.html"
    probe.write_text((quickstart.out / "report.html").read_text().replace("</head>", _CHECK, 1))
    command = [
        str(_browser()), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={size}",
        f"--blink-settings=preferredColorScheme={int(scheme == 'rgb(255, 255, 255)')}",
        "--virtual-time-budget=5000", "--dump-dom", probe.as_uri(),
    ]  # fmt: skip
    shown = subprocess.run(command, capture_output=True, text=True, timeout=250).stdout
    found = re.search(r"<title>(.*?)</title>", shown)
    assert found is not None, shown[:500]
    count = len(page.sources())
    assert found[1] == f"loaded {count} of {count}, 3 plots, fits, {scheme}"
