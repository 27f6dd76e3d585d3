"""The report: one self-contained HTML page about a run, its certificates, and images that show what they mean.

`read_sources` collects what there is (run folders, files of certificates, attacked images), `write_report` makes the
page of it: `figures` draws, `gallery` shows images, `page` writes the words.
"""

from ..attacked import Attacked, read_attacked, save_attacked
from .material import CertificateSet, Material, RunFacts, read_sources
from .page import render, write_report

__all__ = [
    "Attacked",
    "CertificateSet",
    "Material",
    "RunFacts",
    "read_attacked",
    "read_sources",
    "render",
    "save_attacked",
    "write_report",
]
