"""`robust sign`: certificates and model files get a signature beside them."""

from pathlib import Path
from typing import Annotated

import typer

from .console import existing, print_text
from .options import PassphraseFile

__all__ = ["command"]


def command(
    files: Annotated[list[Path], typer.Argument(help="Certificates (.json, .jsonl) and model files.")],
    key: Annotated[Path, typer.Option(help="Private key from robust keygen.", show_default=False)],
    passphrase_file: PassphraseFile = None,
) -> None:
    """Sign files: FILE.sig is written beside each. Check them with `robust verify --key`.

    [bold]robust sign five.json digits.onnx --key release.key[/bold]
    """
    from ..signing import PrivateKey, read_passphrase, sign_file, sign_model

    existing(files)
    signer = PrivateKey.load(key, passphrase=read_passphrase(passphrase_file))
    for file in files:
        target = (sign_file if file.suffix in {".json", ".jsonl"} else sign_model)(file, signer)
        print_text(f"{target}: signed by {signer.public.id}")
