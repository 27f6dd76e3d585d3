"""`robust keygen`: a key that signs certificates and model files."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from .console import print_text
from .options import PassphraseFile

__all__ = ["command"]


def command(
    path: Annotated[
        Path, typer.Argument(help="File for the private key; the public key is written beside it, to PATH.pub.")
    ],
    kind: Annotated[
        Literal["ed25519", "ecdsa"],
        typer.Option(help="ecdsa (P-256) for model files that model_signing will verify."),
    ] = "ed25519",
    passphrase_file: PassphraseFile = None,
) -> None:
    """Create a key pair for `robust sign`. An existing key is never overwritten.

    [bold]robust keygen release.key[/bold]
    """
    from ..signing import PrivateKey, read_passphrase

    key = PrivateKey.generate(kind)
    public = key.write(path, passphrase=read_passphrase(passphrase_file))
    print_text(f"{path}: private key, keep it secret")
    print_text(f"{public}: public key, give it to anybody who verifies; its id is {key.public.id}")
