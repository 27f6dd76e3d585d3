"""The addresses of the page: what anybody gets, what needs the token, and what the policy for browsers allows."""

import asyncio
import io
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from robust.serve import page
from robust.serve.page import PageModel, page_routes
from robust.serve.service.limits import Limits
from starlette.applications import Starlette

from robustinfer import Predictor
from robustinfer.settings import SETTINGS

from .conftest import BRIGHT, constant

STATIC = Path(page.__file__).with_name("static")
TOKEN = {"Authorization": "Bearer right"}


def png(level: int = BRIGHT) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(constant(level)[0]).save(stream, format="PNG")
    return stream.getvalue()


@dataclass(frozen=True)
class Asking:
    """Asks an application without a server."""

    app: Starlette

    def get(self, path: str, **options: Any) -> httpx.Response:
        return asyncio.run(self._ask("GET", path, options))

    def post(self, path: str, **options: Any) -> httpx.Response:
        return asyncio.run(self._ask("POST", path, options))

    async def _ask(self, method: str, path: str, options: dict[str, Any]) -> httpx.Response:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://page") as client:
            return await client.request(method, path, **options)


@pytest.fixture(scope="session")
def client(folder: Path, shown: Predictor, ordinary: Predictor) -> Asking:
    """The routes of a page with two models."""
    limits = Limits(max_n=10_000, max_body=4096, max_deadline=2.0)
    models = {
        "other": PageModel(ordinary, folder / "ordinary.onnx", limits),
        "tiny": PageModel(shown, folder / "tiny.onnx", limits),
    }
    routes = page_routes(models, permits=lambda header: header == TOKEN["Authorization"])
    return Asking(Starlette(routes=routes))


class Tags(HTMLParser):
    """The tags of a document, and the text inside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline = ""
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        self.inline += data if self._inside else ""


def test_every_file_comes_with_the_policy_and_without_a_token(client: Asking) -> None:
    names = {path.name for path in STATIC.iterdir()}
    assert {"index.html", "main.js", "page.css", "icon.svg"} <= names
    for name in (*names, ""):
        answer = client.get(f"/page/{name}")
        assert answer.status_code == 200
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["img-src"] == "'self' data: blob:"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert client.get("/page/main.js").headers["content-type"].startswith("text/javascript")


def test_the_page_has_nothing_inline_and_names_only_its_own_files() -> None:
    document = Tags((STATIC / "index.html").read_text())
    assert not document.inline.strip()
    ids = [attributes["id"] for _, attributes in document.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in document.tags:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        for name in ("src", "href"):
            if attributes.get(name):
                assert (STATIC / str(attributes[name])).is_file(), attributes
        if tag == "label" and "for" in attributes:
            assert attributes["for"] in ids
    for file in STATIC.iterdir():
        text = file.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search(r"https?://|//[a-z]+\.[a-z]", text), file.name
        assert not re.search(r"innerHTML|eval\(|document\.write", text), file.name
        for imported in re.findall(r'from "\./(.+?)"', text):
            assert (STATIC / imported).is_file()
        assert set(re.findall(r'\$\("([^"]+)"\)', text)) <= set(ids), file.name


def test_the_root_leads_to_the_page(client: Asking) -> None:
    for path in ("/", "/page"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["location"]) == (307, {"/": "page/", "/page": "/page/"}[path])


@pytest.mark.parametrize("name", ["no.js", "..%2froutes.py", "%2e%2e/routes.py", "__init__.py", "%00"])
def test_other_files_are_not_given_away(client: Asking, name: str) -> None:
    assert client.get(f"/page/{name}").status_code == 404


@pytest.mark.parametrize("what", ["views", "walk", "prices"])
def test_models_are_asked_with_the_token_only(client: Asking, what: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        for answer in (
            client.post(f"/page/api/tiny/{what}", content=png(), headers=headers),
            client.get("/page/api/models", headers=headers),
        ):
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "unauthorized"
    answer = client.post(f"/page/api/tiny/{what}", content=png(), headers=TOKEN)
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"


def test_describes_the_models(client: Asking) -> None:
    models = client.get("/page/api/models", headers=TOKEN).json()["models"]
    assert [model["name"] for model in models] == ["other", "tiny"]
    tiny = models[1]
    assert (tiny["sigma"], tiny["classes"], tiny["ordinary"]) == (0.25, ["dark", "medium", "bright"], True)
    assert tiny["choices"] == {"n": [100, 1000, 10_000], "alpha": [0.1, 0.01, 0.001, 0.0001, 0.000001], "deadline": 2.0}
    assert [(one["name"], one["attacked"]) for one in tiny["examples"]] == [
        ("bright, test image 7", True),
        ("bright", False),
        ("undecided", False),
    ]


def test_walks_along_an_attack_and_in_random_directions(client: Asking) -> None:
    def walk(**query: Any) -> list[dict[str, Any]]:
        answer = client.post("/page/api/tiny/walk", params=query, content=png(), headers=TOKEN)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["points"])

    attack = walk(attack="bright, test image 7", radius=0.5)
    assert {point["ordinary_name"] for point in attack} >= {"bright", "medium"}
    assert walk(random=1, radius=0.5) != walk(random=2, radius=0.5)


def test_views_are_drawn_from_a_seed_of_64_bits(client: Asking) -> None:
    query = {"seed": str(2**64 - 1), "first": "100", "count": "5"}
    answer = client.post("/page/api/tiny/views", params=query, content=png(), headers=TOKEN).json()
    assert (answer["seed"], answer["first"], len(answer["views"])) == (str(2**64 - 1), 100, 5)


@pytest.mark.parametrize(
    ("path", "query", "content", "status", "sentence"),
    [
        ("tiny/views", {}, b"not a picture", 415, "The body is not a PNG, JPEG, npy or JSON document"),
        ("tiny/views", {}, png()[:45], 422, "cannot be read"),
        ("tiny/views", {}, b"", 400, "The request has no body"),
        ("tiny/views", {}, b"\x89PNG\r\n\x1a\n" + bytes(5000), 413, "A body has at most 4096 bytes"),
        ("none/views", {}, png(), 404, "There is no such model"),
        ("tiny/views", {"count": "25"}, png(), 400, "from 1 to 24 for count"),
        ("tiny/views", {"seed": str(2**64)}, png(), 400, "for seed"),
        ("tiny/views", {"seed": "²"}, png(), 400, "for seed"),
        ("tiny/walk", {"radius": "nan"}, png(), 400, "for radius"),
        ("tiny/walk", {"radius": "-1"}, png(), 400, "for radius"),
        ("tiny/walk", {"radius": "1000.5"}, png(), 400, "from 1e-06 to 1000 for radius"),
        ("tiny/walk", {"radius": "far"}, png(), 400, "for radius"),
        ("tiny/walk", {"attack": "bright"}, png(), 422, "There is no attack direction for this picture"),
        ("tiny/walk", {"random": "x"}, png(), 400, "for random"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_gets_a_sentence(
    client: Asking, path: str, query: dict[str, str], content: bytes, status: int, sentence: str
) -> None:
    answer = client.post(f"/page/api/{path}", params=query, content=content, headers=TOKEN)
    assert answer.status_code == status
    assert sentence in answer.json()["error"]["message"]


def test_the_field_of_a_radius_has_the_limits_of_the_setting() -> None:
    html = (STATIC / "index.html").read_text()
    field = re.search(r'<input id="requested" type="number" min="(.*?)" max="(.*?)"', html)
    assert field is not None
    assert (float(field[1]), float(field[2])) == (SETTINGS["radius"].least, SETTINGS["radius"].most)
