"""Certifying a data set: certificates stream into a JSONL file that survives a kill and is resumed where it stopped.

The first line is a header: model, settings, data, shard and seed. Every other line is one certificate with the number
of its image and the true label. Image i has the seed `derive_seed(seed, i)`, so the noise of an image depends neither
on the shard nor on how often the work was interrupted.
"""

import dataclasses
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Unpack

from .card import InputSpec
from .certificate import Certificate, read_json
from .data import ImageSet, choose, parse_data
from .errors import CertificateError, DataError
from .images import as_image, image_digest, to_unit
from .predictor import Predictor
from .settings import SETTINGS, CertifyManySettings
from .smoothing.noise import derive_seed, fresh_seed

__all__ = ["Entry", "Header", "certify_data", "read_certificates", "shard_path"]


@dataclass(frozen=True)
class Header:
    """What all certificates of a file have in common. The images are those from number `start`, every `step`-th.

    `data_digest` covers all images and labels that were chosen from the data set, those of other shards as well; files
    of older versions have none. `seed_origin` says who chose the seed of the data set, "runtime" or "caller"; files of
    older versions do not. `images` are the numbers of the images where they are no such row, and `split` is the part of
    the data set where it is not its test images; both are left out of a file that needs neither.
    """

    model: dict[str, str]
    settings: dict[str, Any]
    data: str
    total: int
    start: int
    step: int
    count: int
    seed: int
    data_digest: str = ""
    seed_origin: str = ""
    split: str = ""
    images: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The header as it stands in the file."""
        found = dataclasses.asdict(self)
        return {key: value for key, value in found.items() if value or key not in ("split", "images")}

    @property
    def data_name(self) -> str:
        """The data set for people: without the folders above it."""
        try:
            return parse_data(self.data).short
        except DataError:  # of a caller of Python, who may call it as he likes
            return self.data

    def difference(self, other: "Header") -> str | None:
        """What the work of two headers differs in, in a word, or None; their seeds and shards may differ."""
        if self.model != other.model:
            return "model"
        if self.data.partition(":")[0] != other.data.partition(":")[0] or self.split != other.split:
            return "data set"
        if self.total != other.total:
            return "choice of images"
        if self.data_digest and other.data_digest and self.data_digest != other.data_digest:
            return "data set"
        return "choice of settings" if self.settings != other.settings else None

    def detail(self, other: "Header") -> str:
        """What exactly differs: each value here and there."""
        values = [
            (f"`{key}`", self.settings.get(key), other.settings.get(key)) for key in self.settings | other.settings
        ]
        values += [
            ("the model", self.model.get("digest"), other.model.get("digest")),
            ("the data set", self.data, other.data),
            ("the split", self.split or "test", other.split or "test"),
            ("the number of images", self.total, other.total),
            ("the shard's number of images", self.count, other.count),
            ("the seed", self.seed, other.seed),
        ]
        found = [f"{name} is {there} there and {here} here" for name, there, here in values if there != here]
        return "; ".join(found) or "the images or their labels differ"

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of the images."""
        return self.images or range(self.start, self.start + self.step * self.count, self.step)


@dataclass(frozen=True)
class Entry:
    """The certificate of one image of a data set, the truth, and the image's file within the set if it is one."""

    index: int
    truth: int
    certificate: Certificate
    file: str = ""

    @property
    def correct(self) -> bool:
        """Whether the certified label is the true one; an abstention is not."""
        return self.certificate.label == self.truth

    @property
    def correct_radius(self) -> float:
        """The radius within which the label is certified and true; 0 otherwise."""
        return self.certificate.radius if self.correct else 0.0


def shard_path(path: Path, shard: tuple[int, int]) -> Path:
    """The file of one shard, beside the file of the whole."""
    index, total = shard
    return path if total == 1 else path.with_name(f"{path.stem}-{index}-of-{total}{path.suffix}")


def certify_data(
    predictor: Predictor,
    data: ImageSet,
    path: Path,
    *,
    every: int = 1,
    limit: int | None = None,
    numbers: Sequence[int] | None = None,
    shard: tuple[int, int] = (0, 1),
    seed: int | None = None,
    stop: threading.Event | None = None,
    progress: Callable[[int], None] | None = None,
    **settings: Unpack[CertifyManySettings],
) -> Iterator[Entry]:
    """Certify every `every`-th image of a data set, this shard's part of them; yields entries as they are written.

    A `limit` takes the first of them, or equally many of each class where the set lists class after class; `numbers`
    names the images instead. `settings` are those of `Predictor.certify_many`. Entries of an earlier, interrupted call
    with the same settings are kept and yielded first.
    """
    if seed is not None:
        seed = SETTINGS["seed"].check(seed)
    chosen = [int(i) for i in (choose(data.labels, every=every, limit=limit) if numbers is None else numbers)]
    index, total = shard
    plain = range(0, len(data), every)[: len(chosen)]
    in_a_row = chosen == list(plain)
    mine: Sequence[int] = (plain if in_a_row else chosen)[index::total]
    header = Header(
        model=dataclasses.asdict(predictor.model),
        settings=dict(settings),
        data=data.name,
        total=len(chosen),
        start=mine.start if isinstance(mine, range) else min(mine, default=0),
        step=mine.step if isinstance(mine, range) else 1,
        count=len(mine),
        seed=fresh_seed() if seed is None else seed,
        data_digest=data.digest(chosen),
        seed_origin="runtime" if seed is None else "caller",
        split="" if data.split == "test" else data.split,
        images=() if in_a_row else tuple(mine),
    )
    with _opened(path) as file:
        header, done = _resume(file, path, header, seed)
        if not header.data_digest:
            _check_images(path, done, data, predictor.card.input)
        yield from done
        if progress is not None:
            progress(len(done))
        finished = {entry.index for entry in done}
        rest = [number for number in mine if number not in finished]
        certificates = predictor.certify_many(
            (data.read(number) for number in rest),
            seed=header.seed,
            numbers=rest,
            stop=stop,
            **settings,
        )
        for number, certificate in zip(rest, certificates, strict=True):
            if stop is not None and stop.is_set():
                return  # what was cut short is done again, and better, by the next call
            entry = Entry(number, int(data.labels[number]), certificate, data.files[number] if data.files else "")
            named = {"file": entry.file} if entry.file else {}
            document = {"index": entry.index, "truth": entry.truth, **named, "certificate": certificate.to_json()}
            _append(file, document)
            if progress is not None:
                progress(1)
            yield entry


def read_certificates(path: Path) -> tuple[Header, list[Entry]]:
    """Read a file of certificates. A last line that a kill left incomplete does not count."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CertificateError(f"Cannot read the certificates {path}: {error.strerror or error}.") from error
    return _parse(content, path)


def _parse(content: bytes, path: Path) -> tuple[Header, list[Entry]]:
    lines = content.split(b"\n")[:-1]
    try:
        fields = read_json(lines[0])["header"]
        header = Header(**(fields | {"images": tuple(map(_number, fields.get("images", ())))}))
        entries = []
        for line in lines[1:]:
            document = read_json(line)
            certificate = Certificate.from_json(document["certificate"])
            number, truth = _number(document["index"]), _number(document["truth"])
            entries.append(Entry(number, truth, certificate, str(document.get("file", ""))))
        _check_entries(header, entries, path)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CertificateError(f"{path} is not a file of certificates as `robust certify --data` writes it.") from error
    return header, entries


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"expected a whole number, found {value!r}")
    return value


def _check_entries(header: Header, entries: list[Entry], path: Path) -> None:
    """Refuse lines that do not belong under their header, or do not belong together.

    The figures of a file speak of all its lines at once; and where a seed follows from that of the header, nobody can
    have chosen it for one image.
    """
    seen: set[int] = set()
    numbers = frozenset(header.images) or header.numbers
    for entry in entries:
        one, wrong = entry.certificate, ""
        if entry.index in seen:
            wrong = "appears twice"
        elif entry.index not in numbers:
            wrong = "is not one of the images that the header names"
        elif dataclasses.asdict(one.model) != header.model:
            wrong = "was certified by another model than the header names"
        elif one.seed != derive_seed(header.seed, entry.index):
            wrong = "has another seed than the one that follows from the header"
        elif _asked(one) != _asked(entries[0].certificate) or not _fits(one, header.settings):
            wrong = "was certified with other settings than the header or the lines before"
        if wrong:
            raise CertificateError(
                f"{path} was changed, or put together from several files: image {entry.index} {wrong}."
            )
        seen.add(entry.index)


def _asked(certificate: Certificate) -> tuple[Any, ...]:
    """What was asked about the image, but for its domain, which depends on its pixels."""
    one = certificate
    return one.alpha, one.sigma, one.n, one.bound, one.method, one.procedure, one.requested


def _fits(certificate: Certificate, settings: dict[str, Any]) -> bool:
    given = {name: value for name, value in settings.items() if value is not None}
    same = all(getattr(certificate, name) == given[name] for name in ("n", "alpha", "sigma", "bound") if name in given)
    procedure = next((name for name in ("tolerance", "radius", "deadline") if name in given), "fixed")
    return same and certificate.procedure == procedure and certificate.requested == given.get(procedure)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Open for reading and appending, and for one process only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # a system without file locks
            pass
        except OSError as error:
            raise CertificateError(
                f"Another process is writing {path}: wait for it, or choose another file."
            ) from error
        yield file


def _resume(file: IO[bytes], path: Path, header: Header, seed: int | None) -> tuple[Header, list[Entry]]:
    file.seek(0)
    content = file.read()
    complete = content.rfind(b"\n") + 1
    if complete < len(content):
        file.truncate(complete)  # a kill in the middle of a line: that image is done again
    if complete == 0:
        _append(file, {"header": header.to_json()})
        return header, []
    found, entries = _parse(content[:complete], path)
    other = found.difference(header)
    if other is None and list(found.numbers) != list(header.numbers):
        other = "choice of images"
    if other is None and seed not in (None, found.seed):
        other = "seed"
    if other is None and any(entry.certificate.domain == "continuous" for entry in entries):
        other = "noise, which is no longer drawn"
    if other is not None:
        wanted = header if seed is not None else dataclasses.replace(header, seed=found.seed)
        raise CertificateError(
            f"{path} holds certificates of another {other}: choose another file, or remove it. "
            f"In detail: {found.detail(wanted)}."
        )
    return found, entries


def _check_images(path: Path, entries: list[Entry], data: ImageSet, spec: InputSpec) -> None:
    """A file of an older version does not say of which data it is; its certificates say of which images."""
    for entry in entries:
        image = as_image(data.read(entry.index), spec)
        digests = {image_digest(image), image_digest(to_unit(image))}  # continuous noise is added to floating pixels
        if entry.certificate.image not in digests or entry.truth != int(data.labels[entry.index]):
            raise CertificateError(f"{path} holds certificates of another data set: choose another file, or remove it.")


def _append(file: IO[bytes], document: dict[str, Any]) -> None:
    """One whole line in one write, on the disk before anything else happens."""
    file.write(json.dumps(document, ensure_ascii=False).encode() + b"\n")
    file.flush()
    os.fsync(file.fileno())
