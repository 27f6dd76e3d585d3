"""Zip archives as torch reads them, with the same bytes for the same records."""

import io
import zipfile

__all__ = ["unzipped", "zipped"]

_ROOT = "model"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first moment a zip archive can name
_ALIGNMENT = 64  # torch maps records into memory, and wants them on such a boundary
_PADDING = b"FB"  # the extra field torch itself pads with


def unzipped(archive: bytes) -> dict[str, bytes]:
    """The records of an archive that torch wrote, without the folder they all lie in."""
    with zipfile.ZipFile(io.BytesIO(archive)) as reader:
        return {info.filename.partition("/")[2]: reader.read(info) for info in reader.infolist()}


def zipped(records: dict[str, bytes]) -> bytes:
    """An archive of these records, in this order, uncompressed and aligned, without dates or names of this machine."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as writer:
        for name, content in records.items():
            info = zipfile.ZipInfo(f"{_ROOT}/{name}", date_time=_EPOCH)
            info.create_system = 3
            info.external_attr = 0o600 << 16
            start = buffer.tell() + 30 + len(info.filename.encode()) + 4
            padding = -start % _ALIGNMENT
            info.extra = _PADDING + padding.to_bytes(2, "little") + b"Z" * padding
            writer.writestr(info, content)
    return buffer.getvalue()
