"""What a server must keep to itself: the token its clients send, and the key that signs its certificates."""

import os
import secrets

from robustinfer.errors import ServeError
from robustinfer.signing import PrivateKey, read_passphrase

from .options import ServeOptions

__all__ = ["TOKEN_ENVIRONMENT", "read_token", "signing_key"]

TOKEN_ENVIRONMENT = "ROBUST_SERVE_TOKEN"


def read_token(options: ServeOptions) -> tuple[str | None, bool]:
    """The token, and whether it was made here (then somebody has to be told)."""
    if options.auth == "none":
        return None, False
    if options.token_file is not None:
        try:
            token = options.token_file.read_text().strip()
        except OSError as error:
            raise ServeError(f"The token file {options.token_file} cannot be read: {error.strerror}.") from error
    else:
        token = os.environ.get(TOKEN_ENVIRONMENT, "").strip()
        if not token:
            return secrets.token_urlsafe(32), True
    if len(token) < 16:
        raise ServeError("A token has at least 16 characters; make one with: openssl rand -base64 32.")
    return token, False


def signing_key(options: ServeOptions) -> PrivateKey | None:
    """The key that signs, read before anything starts: a wrong one is refused with a sentence."""
    if options.sign_key is None:
        return None
    return PrivateKey.load(options.sign_key, passphrase=read_passphrase(options.passphrase_file))
