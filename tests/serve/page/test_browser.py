"""The page in a real browser, on a real server: what a visitor sees is what the certificate says."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from selenium.webdriver.common.keys import Keys

from robustinfer import Certificate, Predictor
from robustinfer.cli import demo

from ..conftest import TOKEN, Server, serving
from ..models import brightness_model
from .browser import Browser, browser, missing
from .conftest import BRIGHT, constant, two_models

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]


@pytest.fixture(scope="module")
def site(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the page and two models, one of which has more noise; and a third, of other pictures."""
    log, elsewhere = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("elsewhere")
    third = brightness_model(elsewhere / "third.onnx", name="third", shape=(1, 4, 4), sigma=1.0)
    (elsewhere / "images").mkdir()
    Image.fromarray(np.zeros((4, 4), dtype=np.uint8)).save(elsewhere / "images" / "night.png")
    with serving(log, *map(str, (*two_models(folder), third)), "--page", engine="asgi") as server:
        yield server


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture
def page(chromium: Browser, site: Server) -> Iterator[Browser]:
    """The page after its first answer; at the end nothing may have gone wrong, or gone elsewhere."""
    chromium.driver.get("about:blank")
    chromium.requests(), chromium.complaints()
    chromium.driver.get(f"{site.url}/#token={TOKEN}")
    chromium.settled()
    yield chromium
    elsewhere = [url for url in chromium.requests() if not url.startswith((f"{site.url}/", "data:", "blob:"))]
    assert not elsewhere
    # A refusal is an answer; chromium writes each to the console, too.
    assert not [line for line in chromium.complaints() if "Failed to load resource: the server responded" not in line]


def pick(page: Browser, name: str) -> None:
    """Click on an example, and wait for its answer."""
    page.run("document.querySelector(`#examples img[alt^='${arguments[0]}']`).closest('label').click()", name)
    page.settled()


def choose(page: Browser, **settings: str) -> None:
    """Change settings as a visitor does, and wait for the answer."""
    for name, value in settings.items():
        page.run(
            "const e = document.getElementById(arguments[0]); e.value = arguments[1];"
            "for (const kind of ['input', 'change']) e.dispatchEvent(new Event(kind, {bubbles: true}))",
            name,
            value,
        )
    page.settled()


def download(page: Browser) -> Certificate:
    (page.downloads / "certificate.json").unlink(missing_ok=True)
    page.find("download").click()
    return Certificate.loads(page.downloaded("certificate.json"))


def test_shows_the_certificate_that_it_hands_out(page: Browser, shown: Predictor) -> None:
    certificate = download(page)
    assert page.text("label") == certificate.class_name == "bright"
    assert page.text("radius") == str(certificate.radius)
    assert str(certificate.alpha) in page.text("meaning")
    assert str(certificate.radius_linf) in page.text("meaning")
    votes = zip(("dark", "medium", "bright"), certificate.counts, strict=True)
    assert page.text("votes").split() == [word for name, count in votes for word in (name, f"{count:,}")]
    assert certificate.procedure == "deadline"
    # The page has the picture to the pixel, and the seed to the last digit: the certificate replays without the server.
    assert shown.verify(certificate, constant(BRIGHT)).ok
    page.find("facts").find_element("xpath", "..").click()
    assert str(certificate.seed) in page.text("facts")
    assert certificate.guarantee in page.text("guarantee")


def test_verifies_it_and_finds_a_forgery(page: Browser, tmp_path: Path) -> None:
    page.find("verify").click()
    page.until(lambda: page.text("verified").startswith("Verified: the same votes"))
    download(page)
    text = page.downloaded("certificate.json").decode()
    radius = page.text("radius")
    forged = tmp_path / "forged.json"
    forged.write_text(re.sub(rf'"(radius|radius_l1)": {radius}', r'"\1": 0.99', text))
    page.find("foreign").send_keys(str(forged))
    page.until(lambda: page.text("verified").startswith("Not true: the votes prove radius"))
    forged.write_text("[]")
    page.find("foreign").send_keys(str(forged))
    page.until(lambda: page.text("verified").startswith("Not verified:"))


def test_no_label_flips_inside_the_radius_in_many_directions(page: Browser) -> None:
    """The ordinary network flips along its attack, early; ours never does where it is proven not to."""

    def lanes() -> tuple[list[str], list[str]]:
        script = "return [...document.querySelectorAll('#' + arguments[0] + ' i')].map((piece) => piece.className)"
        return page.run(script, "ordinary-lane"), page.run(script, "own-lane")

    ordinary, own = lanes()
    assert page.find("attack").get_attribute("aria-pressed") == "true"
    inside = sum("proven" in piece for piece in own)
    assert 0 < inside < len(own)
    assert "other" in ordinary[:inside]
    assert not [piece for piece in own if "proven" in piece and "other" in piece]
    for number in range(1, 13):
        page.find("random").click()
        page.shows("step", "data-direction", str(number))
        _, own = lanes()
        assert 0 < sum("proven" in piece for piece in own) < len(own)
        assert not [piece for piece in own if "proven" in piece and "other" in piece]


def test_the_slider_says_what_is_proven_and_what_is_not(page: Browser) -> None:
    slider = page.find("step")
    slider.send_keys(Keys.HOME)
    assert page.text("own-mark") == "proven: within the radius"
    assert page.text("ordinary-mark") == "no proof"
    slider.send_keys(*[Keys.ARROW_RIGHT] * 8)
    assert page.text("ordinary-says") == "medium"
    assert "fooled" in page.text("ordinary-mark")
    assert page.text("own-says") == "bright"
    assert float(page.text("distance")) < float(page.text("radius"))
    slider.send_keys(Keys.END)
    assert page.text("own-mark") == "unproven: beyond the radius"
    assert float(page.text("distance")) >= float(page.text("radius"))
    assert "unproven" in str(slider.get_attribute("aria-valuetext"))


def test_a_radius_is_shown_before_the_end_only_where_it_is_proven(page: Browser) -> None:
    page.run(
        "window.said = []; new MutationObserver(() => { const one = document.getElementById('radius').textContent;"
        "if (one && document.documentElement.dataset.state === 'asking') said.push(Number(one)) })"
        ".observe(document.getElementById('radius'), {childList: true})"
    )
    page.find("again").click()
    page.settled()
    rising = page.run("return said")
    assert rising == sorted(rising)
    assert not rising or rising[-1] <= float(page.text("radius"))
    page.run("said = []")
    choose(page, procedure="fixed")
    assert page.run("return said") == []
    assert download(page).procedure == "fixed"
    choose(page, procedure="radius", requested="0.3")
    decided = download(page)
    assert (decided.procedure, decided.requested) == ("radius", 0.3)
    assert page.text("radius") == str(decided.radius)


def test_an_abstention_turns_the_page_grey(page: Browser) -> None:
    def colour() -> str:
        return str(page.run("return getComputedStyle(document.querySelector('main')).filter"))

    assert colour() == "none"
    choose(page, n="0")
    pick(page, "undecided")
    assert page.state() == "abstained"
    page.until(lambda: colour() == "grayscale(1)")
    assert page.text("label") == "abstains"
    assert download(page).abstained
    assert page.text("own-mark") == "nothing is proven for this picture"


def test_alpha_and_n_have_prices(page: Browser) -> None:
    def compared() -> list[list[str]]:
        page.find("compare").click()
        page.until(lambda: page.find("prices").is_displayed() and page.find("compare").is_enabled())
        return list(
            page.run(
                "return [...document.querySelectorAll('#prices tbody tr')].map((row) => row.innerText.split(/\\s+/))"
            )
        )

    # Sizes that would take more than some seconds, on a busy machine, are left out.
    rows = page.until(lambda: shown if len(shown := compared()) == 4 else None)
    assert [row[0] for row in rows] == ["100", "1,000", "10,000", "100,000"]
    for row in rows:
        radii = [float(cell) for cell in row[1:] if cell != ""]
        assert len(radii) == 5
        assert radii == sorted(radii, reverse=True)
    before = float(page.text("radius"))
    choose(page, n="1")
    assert download(page).n == 1000
    assert float(page.text("radius")) < before


def test_a_broken_file_gets_a_sentence_and_the_next_one_an_answer(page: Browser, tmp_path: Path) -> None:
    page.run(
        "const data = new DataTransfer(); data.items.add(new File(['this is not a picture'], 'broken.png'));"
        "document.body.dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true}))"
    )
    page.until(lambda: page.text("trouble"))
    assert "not a PNG, JPEG" in page.text("trouble")
    assert page.text("label") == ""
    own = tmp_path / "own picture.png"
    Image.fromarray(np.full((8, 8), 20, dtype=np.uint8)).save(own)
    page.find("file").send_keys(str(own))
    page.settled()
    assert page.text("label") == "dark"
    assert page.text("trouble") == ""
    assert "own-picture.png" in page.text("curl")
    assert not page.find("attack").is_enabled()


def test_a_picture_of_another_size_is_shrunk_if_the_visitor_wants_it(page: Browser, tmp_path: Path) -> None:
    large = tmp_path / "large.png"
    Image.fromarray(np.full((40, 60, 3), 240, dtype=np.uint8)).save(large)
    page.find("file").send_keys(str(large))
    page.until(lambda: page.find("shrink").is_displayed())
    assert page.text("trouble") == "Expected an image of 8 x 8 pixels, found 60 x 40."
    page.find("shrink").click()
    page.settled()
    assert page.text("label") == "bright"


def test_everything_can_be_reached_with_the_keyboard(page: Browser) -> None:
    def tab_to(name: str) -> None:
        for _ in range(40):
            page.press(Keys.TAB)
            if page.run("return document.activeElement.id || document.activeElement.name") == name:
                return
        raise AssertionError(f"{name} cannot be reached")

    tab_to("example")
    page.press(Keys.ARROW_RIGHT)
    page.until(lambda: "bright.png" in page.text("curl"))
    page.settled()
    for name in ("file", "random", "step", "alpha", "n", "procedure", "again", "compare", "verify", "download", "curl"):
        tab_to(name)
        outline = page.run("return getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none" or name == "file"  # whose label shows the focus
    page.find("step").send_keys(Keys.ARROW_RIGHT)
    assert float(page.text("distance")) > 0


def test_the_slider_of_the_noise_switches_between_files(page: Browser, folder: Path) -> None:
    assert page.text("model-title") == "noise, and the model for it"
    page.find("compare").click()
    page.until(lambda: page.find("prices").is_displayed() and page.find("compare").is_enabled())
    for place, file in reversed(list(enumerate(two_models(folder)))):
        choose(page, model=str(place))
        assert not page.find("prices").is_displayed()  # they were another model's
        predictor, certificate = Predictor.load(file, threads=1), download(page)
        assert (certificate.sigma, certificate.model.digest) == (predictor.card.sigma, predictor.digest)
        assert predictor.verify(certificate, constant(BRIGHT)).ok
        assert page.text("radius") == str(certificate.radius)
        assert page.text("model-shown") == f"sigma {predictor.card.sigma}, {file.stem}"
        assert f"/models/{file.stem}/" in page.text("curl")
        page.find("verify").click()
        page.until(lambda: page.text("verified").startswith("Verified: the same votes"))


def test_a_slider_between_models_of_one_noise_promises_no_other(
    chromium: Browser, folder: Path, tmp_path: Path
) -> None:
    quiet, _ = two_models(folder)
    with serving(tmp_path, f"one={quiet}", f"another={quiet}", "--page", engine="asgi") as server:
        chromium.driver.get(f"{server.url}/#token={TOKEN}")
        chromium.settled()
        assert chromium.find("model").is_displayed()
        assert chromium.text("model-title") == "model"


def test_a_model_of_other_pictures_brings_its_own(page: Browser, tmp_path: Path) -> None:
    choose(page, model="2")
    assert page.text("trouble") == ""
    assert page.text("label") == "dark"
    assert "night.png" in page.text("curl")
    assert not page.find("attack").is_enabled()
    own = tmp_path / "own.png"
    Image.fromarray(np.full((8, 8), BRIGHT, dtype=np.uint8)).save(own)
    choose(page, model="0")
    assert page.text("label") == "bright"
    page.find("file").send_keys(str(own))
    page.until(lambda: "own.png" in page.text("curl"))
    page.settled()
    choose(page, model="1")
    assert "own.png" in page.text("curl")  # what a visitor brought stays
    choose(page, model="0")


def test_the_calls_ask_exactly_this_question(page: Browser, tmp_path: Path) -> None:
    choose(page, n="1", alpha="1", procedure="fixed")
    page.find("save").click()
    (name,) = re.findall(r"-T (\S+)", page.text("curl"))
    (tmp_path / name).write_bytes(page.downloaded(name))
    environment = {"ROBUST_SERVE_TOKEN": TOKEN, "PATH": "/usr/bin:/bin"}
    command = f"{page.text('curl')} --silent --show-error"
    answer = subprocess.run(["/bin/sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, check=True)
    certificate = Certificate.loads(answer.stdout)
    shown = download(page)
    asked = ("image", "n", "n0", "alpha", "sigma", "procedure", "requested", "bound", "model", "domain")
    assert [getattr(certificate, name) for name in asked] == [getattr(shown, name) for name in asked]
    program = page.run("return document.getElementById('python').textContent")
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("bright 0.")


def test_without_its_token_the_page_asks_for_it(chromium: Browser, site: Server) -> None:
    chromium.driver.get("about:blank")
    chromium.driver.get(f"{site.url}/page/")
    chromium.run("sessionStorage.clear()")
    chromium.driver.refresh()
    chromium.until(lambda: chromium.find("token").is_displayed())
    assert not chromium.find("content").is_displayed()
    chromium.find("token").send_keys("wrong", Keys.ENTER)
    chromium.until(lambda: chromium.text("trouble"))
    chromium.find("token").clear()
    chromium.find("token").send_keys(TOKEN, Keys.ENTER)
    chromium.settled()
    assert "token" not in chromium.driver.current_url


def test_the_file_that_a_demo_opens_leads_to_the_page(chromium: Browser, site: Server, tmp_path: Path) -> None:
    chromium.driver.get("about:blank")
    with demo._way_to(f"{site.url}/page/#token={TOKEN}", tmp_path) as way:
        chromium.driver.get(way)
        chromium.until(lambda: chromium.driver.current_url == f"{site.url}/page/")
    chromium.settled()
    assert chromium.text("label") == "bright"


@pytest.mark.parametrize("width", [390, 1200])
def test_fits_a_phone_and_a_desk(page: Browser, width: int) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        assert page.run("return document.documentElement.scrollWidth") <= width
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
