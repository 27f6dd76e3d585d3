"""Certifying a data set: every image once, whatever stops it; lines belong together, and so do shards."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robustinfer import Predictor
from robustinfer.certificate_file import Header, certify_data, read_certificates, shard_path
from robustinfer.data import ImageSet
from robustinfer.errors import CertificateError
from robustinfer.summary import merge, summarize

CONTINUOUS = (
    "if pixels and noise were added without rounding, the label of the smoothed classifier would be the same for every "
    "image at an l2 distance below the radius, except with probability at most alpha; the rounding of the sums is not "
    "covered"
)


@pytest.fixture
def images() -> ImageSet:
    pixels = np.random.default_rng(0).integers(0, 256, size=(30, 1, 2, 2), dtype=np.uint8)
    return ImageSet("squares", (pixels[:, 0, 0, 0] > 127).astype(np.int64), lambda i: pixels[i])


@pytest.fixture
def predictor(predictor_of: Callable[..., Predictor], half_space: Any) -> Predictor:
    return predictor_of(half_space)


def answers(path: Path) -> list[tuple[int, int, Any]]:
    """What a file says, without the times."""
    return [
        (entry.index, entry.truth, entry.certificate.to_json() | {"seconds": 0})
        for entry in sorted(read_certificates(path)[1], key=lambda entry: entry.index)
    ]


def test_every_image_once_and_in_order(predictor: Predictor, images: ImageSet, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    entries = list(certify_data(predictor, images, path, every=2, limit=10, n=200, seed=3))
    assert [entry.index for entry in entries] == list(range(0, 20, 2))
    header, read = read_certificates(path)
    assert read == entries
    assert (header.total, header.seed, header.settings) == (10, 3, {"n": 200})
    assert header.seed_origin == "caller"


def test_goes_on_after_a_line_was_cut(predictor: Predictor, images: ImageSet, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    list(certify_data(predictor, images, whole, n=200, seed=3))
    lines = whole.read_bytes().splitlines(keepends=True)
    for kept, partial in ((12, 30), (1, 5), (0, 40), (31, 0)):
        cut.write_bytes(b"".join(lines[:kept]) + lines[min(kept, 30)][:partial] * (partial > 0))
        list(certify_data(predictor, images, cut, n=200, seed=3))
        assert answers(cut) == answers(whole)


def test_a_stop_keeps_what_is_done(predictor: Predictor, images: ImageSet, tmp_path: Path) -> None:
    path, stop = tmp_path / "out.jsonl", threading.Event()
    for number, _ in enumerate(certify_data(predictor, images, path, n=200, seed=3, stop=stop)):
        if number == 4:
            stop.set()
    assert [entry.index for entry in read_certificates(path)[1]] == [0, 1, 2, 3, 4]
    assert len(list(certify_data(predictor, images, path, n=200, seed=3))) == 30
    assert [entry.index for entry in read_certificates(path)[1]] == list(range(30))


@pytest.mark.parametrize(
    ("change", "other"),
    [
        ({"n": 300}, "choice of settings"),
        ({"seed": 4}, "seed"),
        ({"every": 2}, "choice of images"),
        ({"shard": (0, 2)}, "choice of images"),
        ({"alpha": 0.01}, "choice of settings"),
    ],
)
def test_other_work_is_refused(change: Any, other: str, predictor: Predictor, images: ImageSet, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    list(certify_data(predictor, images, path, n=200, seed=3))
    before = path.read_bytes()
    with pytest.raises(CertificateError, match=f"certificates of another {other}: choose"):
        list(certify_data(predictor, images, path, **({"n": 200, "seed": 3} | change)))
    assert path.read_bytes() == before


def changed(images: ImageSet, *, pixel: int | None = None, label: int | None = None) -> ImageSet:
    """The same data set but for one pixel, or one label."""
    labels = images.labels.copy()
    if label is not None:
        labels[label] = 1 - labels[label]

    def read(number: int) -> Any:
        image = images.read(number).copy()
        image[0, 1, 1] ^= number == pixel
        return image

    return ImageSet(images.name, labels, read)


@pytest.mark.parametrize("change", [{"pixel": 0}, {"pixel": 29}, {"label": 29}])
def test_other_data_of_the_same_name_is_refused(
    change: dict[str, int], predictor: Predictor, images: ImageSet, tmp_path: Path
) -> None:
    path = tmp_path / "out.jsonl"
    list(certify_data(predictor, images, path, n=200, seed=3, limit=30))
    other = changed(images, **change)
    with pytest.raises(CertificateError, match="certificates of another data set: choose another file"):
        list(certify_data(predictor, other, path, n=200, seed=3, limit=30))
    list(certify_data(predictor, images, shard_path(path, (0, 2)), n=200, shard=(0, 2)))
    list(certify_data(predictor, other, shard_path(path, (1, 2)), n=200, shard=(1, 2)))
    with pytest.raises(CertificateError, match="are not of the same data set"):
        merge([shard_path(path, (0, 2)), shard_path(path, (1, 2))])


def test_a_file_of_an_older_version_is_known_by_its_images(
    predictor: Predictor, images: ImageSet, tmp_path: Path
) -> None:
    path = tmp_path / "out.jsonl"
    list(certify_data(predictor, images, path, n=200, seed=3))
    lines = path.read_bytes().splitlines(keepends=True)
    header = json.loads(lines[0])["header"]
    assert header.pop("data_digest").startswith("sha256:")
    assert header.pop("seed_origin") in ("caller", "runtime")
    path.write_bytes(json.dumps({"header": header}).encode() + b"\n" + b"".join(lines[1:11]))
    assert read_certificates(path)[0].data_digest == ""
    for other in (changed(images, pixel=9), changed(images, label=9)):
        with pytest.raises(CertificateError, match="certificates of another data set"):
            list(certify_data(predictor, other, path, n=200, seed=3))
    assert len(list(certify_data(predictor, images, path, n=200, seed=3))) == 30
    assert merge([path])[0].total == 30


def rewritten(path: Path, change: Callable[[list[Any]], None]) -> Path:
    """The file with its lines changed by a forger: [header, line, ...], each a JSON object."""
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    change(lines)
    path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    return path


def put(place: str, value: Any, line: int = 2) -> Callable[[list[Any]], None]:
    """Change one thing in a line: a field of the line, or of its certificate."""

    def change(lines: list[Any]) -> None:
        target = lines[line].get("header") or (lines[line] if place in lines[line] else lines[line]["certificate"])
        assert (target[place], type(target[place])) != (value, type(value))
        target[place] = value

    return change


FORGED: dict[str, tuple[Callable[[list[Any]], None], str]] = {
    "a line twice": (lambda lines: lines.append(lines[1]), "image 0 appears twice"),
    "two lines of one image": (put("index", 0), "image 0 appears twice"),
    "an image of another shard": (put("index", 1), "image 1 is not one of the images that the header names"),
    "an image beyond the data": (put("index", 40), "image 40 is not one of the images"),
    "a number of no image": (put("index", 2.0), "is not a file of certificates"),
    "a label that is none": (put("truth", True), "is not a file of certificates"),
    "a seed of one's own": (put("seed", 7), "image 2 has another seed than the one that follows from the header"),
    "another seed in the header": (put("seed", 7, line=0), "image 0 has another seed"),
    "another model": (
        put("model", {"name": "model", "version": "1", "digest": "sha256:other"}),
        "image 2 was certified by another model than the header names",
    ),
    "another alpha": (put("alpha", 0.5), "image 2 was certified with other settings than the header or the lines"),
    "another alpha in the header": (
        put("settings", {"n": 200, "alpha": 0.5}, line=0),
        "image 0 was certified with other",
    ),
    "another procedure in the header": (put("settings", {"n": 200, "radius": 0.1}, line=0), "with other settings"),
    "no settings": (put("settings", None, line=0), "is not a file of certificates"),
    "no step": (put("step", 0, line=0), "is not a file of certificates"),
}


@pytest.mark.parametrize("name", FORGED)
def test_lines_that_do_not_belong_under_their_header_are_refused(
    name: str, predictor: Predictor, images: ImageSet, tmp_path: Path
) -> None:
    """Figures speak of all lines at once, and a signature of one line used to be taken for that of its double."""
    change, sentence = FORGED[name]
    path = tmp_path / "out.jsonl"
    list(certify_data(predictor, images, path, n=200, alpha=0.001, seed=3, every=2))
    assert len(read_certificates(path)[1]) == 15
    with pytest.raises(CertificateError, match=sentence):
        read_certificates(rewritten(path, change))


def test_a_line_that_says_two_things_is_refused(predictor: Predictor, images: ImageSet, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    list(certify_data(predictor, images, path, n=200, seed=3, limit=3))
    path.write_bytes(path.read_bytes().replace(b'"truth": ', b'"truth": 5, "truth": ', 1))
    with pytest.raises(CertificateError, match="is not a file of certificates"):
        read_certificates(path)


def test_a_file_with_continuous_noise_is_read_and_not_continued(
    predictor: Predictor, images: ImageSet, tmp_path: Path
) -> None:
    """The other images would get another noise, and one table would be about two classifiers."""
    path = tmp_path / "out.jsonl"
    floating = ImageSet("squares", images.labels, lambda i: images.read(i) / np.float32(255))
    list(certify_data(predictor, floating, path, n=200, seed=3, limit=4))

    def continuous(lines: list[Any]) -> None:
        for line in lines[1:]:
            line["certificate"] |= {"noise": "philox4x64-10/continuous", "domain": "continuous"}
            line["certificate"]["guarantee"] = CONTINUOUS
        del lines[3:]

    rewritten(path, continuous)
    assert len(read_certificates(path)[1]) == 2
    with pytest.raises(CertificateError, match="of another noise, which is no longer drawn"):
        list(certify_data(predictor, floating, path, n=200, seed=3, limit=4))


def test_two_writers_are_refused(predictor: Predictor, images: ImageSet, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    first = certify_data(predictor, images, path, n=200)
    next(first)
    with pytest.raises(CertificateError, match="Another process is writing"):
        next(certify_data(predictor, images, path, n=200))
    first.close()  # type: ignore[attr-defined]


def test_shards_are_one_whole(predictor: Predictor, images: ImageSet, tmp_path: Path) -> None:
    whole = tmp_path / "out.jsonl"
    list(certify_data(predictor, images, whole, n=200, seed=3))
    paths = [shard_path(whole, (index, 4)) for index in range(4)]
    for index, path in enumerate(paths):
        list(certify_data(predictor, images, path, n=200, seed=3, shard=(index, 4)))
    header, entries = merge(paths)
    alone = read_certificates(whole)
    assert [(e.index, e.certificate.counts) for e in entries] == [(e.index, e.certificate.counts) for e in alone[1]]
    assert summarize(header, entries).accuracies == summarize(*alone).accuracies
    with pytest.raises(CertificateError, match="the same image"):
        merge([paths[0], paths[0]])
    assert summarize(*merge(paths[:3])).missing == 7


def test_files_of_other_work_do_not_merge(predictor: Predictor, images: ImageSet, tmp_path: Path) -> None:
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    list(certify_data(predictor, images, one, n=200, shard=(0, 2)))
    list(certify_data(predictor, images, other, n=300, shard=(1, 2)))
    with pytest.raises(CertificateError, match="not of the same"):
        merge([one, other])


@pytest.mark.parametrize("content", [b"", b"{}\n", b"no json\n", b'{"header": {"data": 1}}\n', b"\x89PNG\n"])
def test_other_files_are_no_certificates(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(content)
    with pytest.raises(CertificateError):
        read_certificates(path)


def test_header_names_its_images() -> None:
    assert list(Header({}, {}, "d", 10, 3, 4, 3, 0).numbers) == [3, 7, 11]
