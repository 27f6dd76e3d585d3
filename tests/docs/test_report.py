"""The report: self-contained, complete, honest in its rounding, and it loads in a browser."""

import base64
import html.parser
import io
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from robustinfer.errors import DataError, SettingError
from robustinfer.report import read_sources, render
from robustinfer.report.figures import percent

from .conftest import Quickstart, robust

pytestmark = pytest.mark.xdist_group("quickstart")


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
        assert "onload" not in attributes
    assert "url(" not in page.text
    assert "@import" not in page.text


def test_every_picture_can_be_decoded(page: Page) -> None:
    plots = [source for source in page.sources() if source.startswith("data:image/svg+xml;base64,")]
    pictures = [source for source in page.sources() if source.startswith("data:image/png;base64,")]
    assert len(plots) == 3
    assert len(pictures) >= 24
    assert len(plots) + len(pictures) == len(page.sources())
    for plot in plots:
        root = ElementTree.fromstring(base64.b64decode(plot.partition(",")[2]))
        assert root.tag.endswith("svg")
        assert len(list(root.iter())) > 50
    for picture in pictures:
        image = Image.open(io.BytesIO(base64.b64decode(picture.partition(",")[2])))
        image.load()
        assert image.size == (8, 8)


def test_every_picture_has_words(page: Page) -> None:
    for tag, attributes in page.tags:
        if tag == "img":
            assert attributes["alt"]


def test_says_figures_settings_and_digests(page: Page, quickstart: Quickstart) -> None:
    material = read_sources([quickstart.out])
    summary = material.sets[0].summary
    assert f"On {summary.images} test images of digits" in page.text
    assert percent(summary.accuracies[0].accuracy) in page.text
    assert summary.model["digest"] in page.text
    for section in (
        "Certified accuracy",
        "Accuracy under attack, by stage",
        "Training time, by stage",
        "Certified images",
        "What fools an ordinary network",
        "What a certificate says, and what it does not",
        "Settings and digests",
    ):
        assert section in page.text
    attacked = material.attacked
    assert attacked is not None
    for example in attacked.examples:
        assert example.distance < example.radius
        change = example.changed.astype(float) - example.original
        assert np.linalg.norm(change) / 255 == pytest.approx(example.distance)


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
    assert "Training time" not in certificates.text


def test_without_the_model_there_is_no_gallery_and_it_says_so(quickstart: Quickstart, tmp_path: Path) -> None:
    alone = shutil.copy(quickstart.out / "certificates.jsonl", tmp_path / "certificates.jsonl")
    finished = robust("report", str(alone), "--out", "page.html", cwd=tmp_path)
    assert finished.code == 0, finished.err
    assert finished.out == "page.html\n"
    assert "There is no gallery: give the model file with --model" in finished.err
    assert "There is no gallery" in (tmp_path / "page.html").read_text()


def test_refuses_what_is_no_source(quickstart: Quickstart, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"Expected a run folder or a \.jsonl file of certificates, found"):
        read_sources([quickstart.out / "digits.onnx"])
    with pytest.raises(DataError, match="holds neither a run nor certificates"):
        read_sources([tmp_path])
    broken = tmp_path / "attacked.npz"
    broken.write_bytes(b"PK nothing")
    with pytest.raises(DataError, match="is no file of attacked images"):
        read_sources([quickstart.out / "certificates.jsonl", broken])


def _browser() -> str | None:
    return next(filter(None, (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))), None)


_CHECK = """<script>
onload = () => {
  const images = [...document.images];
  const loaded = images.filter(image => image.complete && image.naturalWidth > 0 && image.clientWidth > 0);
  const wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
  document.title = `loaded ${loaded.length} of ${images.length}, ${wide ? "too wide" : "fits"}`;
};
</script></head>"""


@pytest.mark.skipif(_browser() is None, reason="no chromium on this machine: the page is only parsed")
@pytest.mark.parametrize("size", ["1200,900", "390,844"], ids=["desktop", "phone"])
def test_every_figure_loads_and_the_page_fits(page: Page, quickstart: Quickstart, size: str, tmp_path: Path) -> None:
    probe = tmp_path / "page.html"
    probe.write_text((quickstart.out / "report.html").read_text().replace("</head>", _CHECK, 1))
    command = [
        str(_browser()), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={size}", "--virtual-time-budget=5000", "--dump-dom",
        probe.as_uri(),
    ]  # fmt: skip
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    found = re.search(r"<title>(.*?)</title>", shown)
    assert found is not None, shown[:500]
    count = len(page.sources())
    assert found[1] == f"loaded {count} of {count}, fits"
