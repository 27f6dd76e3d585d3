"""Certificates of files without labels: a JSONL file with everything, or a CSV file for a spreadsheet."""

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .certificate import Certificate
from .errors import ArgumentError

__all__ = ["COLUMNS", "check_table", "write_certificates"]

COLUMNS = (
    *("file", "label", "class_name", "abstained", "radius", "p_lower", "samples_used", "stopped"),
    *("alpha", "sigma", "seed", "image", "model"),
)
"""The columns of a CSV file; those of the same name are fields of the certificate, `model` is the model's digest."""


def write_certificates(path: Path, answers: Iterable[tuple[str, Certificate]]) -> Iterator[tuple[str, Certificate]]:
    """Write the certificate of each file as it comes, and hand it on; the suffix of `path` is .jsonl or .csv.

    Until all are there they stand in a file beside it, whose name ends in .part; an end before that keeps what is done
    under the name that was asked for. A file that is there is not written over.
    """
    check_table(path)
    return _written(path, answers)


def check_table(path: Path) -> None:
    """Refuse a place where no certificates can be written, before there are any."""
    if path.suffix not in (".jsonl", ".csv"):
        raise ArgumentError(f"Certificates go into a .jsonl or a .csv file; found {path.name}.")
    if path.exists():
        raise ArgumentError(f"{path} already exists: choose another --out, or remove it.")


def _written(path: Path, answers: Iterable[tuple[str, Certificate]]) -> Iterator[tuple[str, Certificate]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("w", encoding="utf-8", newline="") as stream:
            if path.suffix == ".csv":
                stream.write(_line(COLUMNS))
            for file, certificate in answers:
                if path.suffix == ".csv":
                    stream.write(_line(_row(file, certificate)))
                else:
                    document = {"file": file} | certificate.to_json()
                    stream.write(json.dumps(document, ensure_ascii=False) + "\n")
                stream.flush()
                yield file, certificate
            os.fsync(stream.fileno())
    finally:
        part.replace(path)


def _row(file: str, certificate: Certificate) -> list[Any]:
    found = certificate.to_json() | {"file": file, "model": certificate.model.digest}
    return [found[column] for column in COLUMNS]


def _line(values: Iterable[Any]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerow(["" if value is None else value for value in values])
    return stream.getvalue()
