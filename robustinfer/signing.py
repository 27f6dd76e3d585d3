"""Signatures: who says that a certificate, a file of certificates or a model file is theirs.

A signature is a DSSE envelope around an in-toto statement (v1), made with an Ed25519 or ECDSA P-256 key. The statement
of a certificate names the digests of the signed bytes, of the model and of the image. A file of certificates is signed
as a whole and line by line, so that one line can be handed on with its proof. A model file gets a bundle as the OpenSSF
`model_signing` command writes and verifies it (with an ECDSA key: that command does not know Ed25519).

Needs securesystemslib and cryptography: pip install "robustinfer[sign]". Nothing here uses a network.
"""

import copy
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from .certificate import read_json
from .engines.external import external_files
from .errors import SignatureError
from .extras import require
from .files import write_bytes

__all__ = [
    "KeyKind",
    "PrivateKey",
    "PublicKey",
    "check_answer",
    "check_file",
    "check_line",
    "check_model",
    "read_passphrase",
    "sign_certificate",
    "sign_file",
    "sign_model",
    "signature_path",
]

KeyKind = Literal["ed25519", "ecdsa"]
Document = dict[str, Any]

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
CERTIFICATE_TYPE = "https://robustinfer/certificate/v1"
FILE_TYPE = "https://robustinfer/certificate-file/v1"
PASSPHRASE_ENVIRONMENT = "ROBUST_KEY_PASSPHRASE"
MODEL_TYPE = "https://model_signing/signature/v1.0"
BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_WHY = "Signing"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_RESOURCE = ("name", "algorithm", "digest")
_MODEL_SERIALIZATION = {"method": "files", "hash_type": "sha256", "allow_symlinks": False, "ignore_paths": []}


class PublicKey:
    """A key that checks signatures. `id` is the SHA-256 digest of its PEM text."""

    def __init__(self, key: Any) -> None:
        serialization = require("cryptography.hazmat.primitives.serialization", extra="sign", why=_WHY)
        signer = require("securesystemslib.signer", extra="sign", why=_WHY)
        self.pem: bytes = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        self.id = hashlib.sha256(self.pem).hexdigest()
        _check_kind(key)
        self.key = signer.SSlibKey.from_crypto(key, keyid=self.id)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "PublicKey":
        """Read a public key in PEM."""
        serialization = require("cryptography.hazmat.primitives.serialization", extra="sign", why=_WHY)
        content = _read(Path(path))
        try:
            key = serialization.load_pem_public_key(content)
        except Exception as error:  # cryptography raises several kinds for what is not a key
            hint = ": this is a private key, give the .pub file" if b"PRIVATE KEY" in content else ""
            raise SignatureError(f"{path} is not a public key in PEM{hint}.") from error
        return cls(key)


class PrivateKey:
    """A key that signs."""

    def __init__(self, key: Any) -> None:
        signer = require("securesystemslib.signer", extra="sign", why=_WHY)
        _check_kind(key)
        self._key = key
        self.public = PublicKey(key.public_key())
        self._signer = signer.CryptoSigner(key, self.public.key)

    @classmethod
    def generate(cls, kind: KeyKind = "ed25519") -> "PrivateKey":
        """A fresh key. ECDSA (P-256) is for bundles that the `model_signing` command checks."""
        if kind == "ed25519":
            ed25519 = require("cryptography.hazmat.primitives.asymmetric.ed25519", extra="sign", why=_WHY)
            return cls(ed25519.Ed25519PrivateKey.generate())
        ec = require("cryptography.hazmat.primitives.asymmetric.ec", extra="sign", why=_WHY)
        return cls(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, passphrase: bytes | None = None) -> "PrivateKey":
        """Read a private key in PEM, which nobody but its owner may be able to read."""
        serialization = require("cryptography.hazmat.primitives.serialization", extra="sign", why=_WHY)
        content = _read(Path(path))
        if os.name == "posix" and Path(path).stat().st_mode & _OTHERS:
            raise SignatureError(f"The private key {path} can be read by users other than its owner: chmod 600 {path}.")
        try:
            key = serialization.load_pem_private_key(content, passphrase)
        except TypeError as error:
            state = "needs a passphrase" if passphrase is None else "has no passphrase, but one was given"
            raise SignatureError(f"The private key {path} {state}.") from error
        except Exception as error:  # cryptography raises several kinds for what is not a key
            raise SignatureError(f"{path} is not a private key in PEM, or the passphrase is wrong.") from error
        return cls(key)

    def write(self, path: str | os.PathLike[str], *, passphrase: bytes | None = None) -> Path:
        """Write the key (PKCS #8, mode 0600) to `path` and the public key to `path`.pub, which is returned."""
        serialization = require("cryptography.hazmat.primitives.serialization", extra="sign", why=_WHY)
        encryption = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
        pem = self._key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        target = Path(path)
        if target.exists():
            raise SignatureError(f"{target} exists: a key is never overwritten.")
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=".key-")  # made with mode 0600
        with os.fdopen(handle, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(target)
        public = target.with_name(f"{target.name}.pub")
        write_bytes(public, self.public.pem)
        return public

    def envelope(self, statement: Mapping[str, Any]) -> Document:
        """A signed statement."""
        dsse = require("securesystemslib.dsse", extra="sign", why=_WHY)
        envelope = dsse.Envelope(_canonical(statement), PAYLOAD_TYPE, {})
        envelope.sign(self._signer)
        return dict(envelope.to_dict())


def read_passphrase(file: Path | None) -> bytes | None:
    """The passphrase of a private key: from a file, else from the environment, else none."""
    given = os.environ.get(PASSPHRASE_ENVIRONMENT, "").encode() if file is None else _read(file).strip()
    return given or None


def sign_certificate(document: Document, key: PrivateKey) -> Document:
    """The envelope of a certificate (its JSON object), as a server puts it beside the fields under `signature`."""
    plain = {name: value for name, value in document.items() if name != "signature"}
    return key.envelope(_certificate_statement(_canonical(plain), plain))


def check_answer(document: Document, key: PublicKey) -> None:
    """Raise SignatureError unless a certificate carries its signature, by this key."""
    if "signature" not in document:
        raise SignatureError("This certificate is not signed: it has neither a field signature nor a .sig file.")
    plain = {name: value for name, value in document.items() if name != "signature"}
    _check(document["signature"], _certificate_statement(_canonical(plain), plain), key)


def sign_file(path: Path, key: PrivateKey) -> Path:
    """Sign a certificate file, or a JSONL file of certificates as a whole and line by line; returns the .sig file."""
    content = _read(path)
    envelopes = [key.envelope(statement) for statement in _statements(content, path)]
    target = signature_path(path)
    write_bytes(target, b"".join(_compact(envelope) + b"\n" for envelope in envelopes))
    return target


def check_file(path: Path, key: PublicKey) -> None:
    """Raise SignatureError unless the .sig file beside `path` is a signature of all its bytes, by this key."""
    content = _read(path)
    _check(_signatures(path)[0], _statements(content, path)[0], key)


def check_line(path: Path, line: int, key: PublicKey) -> None:
    """Raise SignatureError unless line number `line` (from 0) of a JSONL file is signed by this key."""
    statements, signatures = _statements(_read(path), path), _signatures(path)
    if not 0 <= line + 1 < min(len(statements), len(signatures)):
        raise SignatureError(f"There is no signature of line {line + 1} in {signature_path(path)}.")
    _check(signatures[line + 1], statements[line + 1], key)


def sign_model(path: Path, key: PrivateKey) -> Path:
    """Sign a model file with a bundle in the format of OpenSSF model signing; returns the .sig file.

    Weights that lie in files beside it are signed with it, each under its location.
    """
    bundle = {
        "mediaType": BUNDLE_TYPE,
        "verificationMaterial": {"publicKey": {"hint": key.public.id}, "tlogEntries": []},
        "dsseEnvelope": key.envelope(_model_statement(path)),
    }
    target = signature_path(path)
    write_bytes(target, _compact(bundle) + b"\n")
    return target


def check_model(path: Path, key: PublicKey) -> None:
    """Raise SignatureError unless the bundle beside a model file is a signature of all its bytes, by this key."""
    (bundle,) = _signatures(path)[:1]
    if bundle.get("mediaType") != BUNDLE_TYPE:
        raise SignatureError(f"{signature_path(path)} is not a bundle of the type {BUNDLE_TYPE}.")
    if bundle.get("verificationMaterial") != {"publicKey": {"hint": key.id}, "tlogEntries": []}:
        raise SignatureError(f"The model {path} was signed by another key, not by {key.id}.")
    payload = _opened(bundle.get("dsseEnvelope"), key)
    expected = _model_statement(path)
    try:
        signed = (payload["_type"], payload["predicateType"], [one["digest"] for one in payload["subject"]])
        resources = [{name: one[name] for name in _RESOURCE} for one in payload["predicate"]["resources"]]
    except (KeyError, TypeError) as error:
        raise SignatureError(f"The signature of {path} is not that of a model file.") from error
    wanted = (STATEMENT_TYPE, MODEL_TYPE, [one["digest"] for one in expected["subject"]])
    if signed != wanted or resources != expected["predicate"]["resources"]:
        raise SignatureError(f"The model {path} is not the file that was signed: its bytes were changed.")


def signature_path(path: Path) -> Path:
    """Where the signature of a file stands."""
    return path.with_name(f"{path.name}.sig")


def _statements(content: bytes, path: Path) -> list[Document]:
    """What is signed of a file: the whole, and where it is JSONL each line."""
    if path.suffix != ".jsonl":
        return [_certificate_statement(content, _json(content, path))]
    lines = content.split(b"\n")[:-1]
    whole = _statement(FILE_TYPE, [_subject(path.name, _digest(content))], {"lines": len(lines)})
    parts = []
    for line in lines:
        document = _json(line, path)
        if "certificate" in document:
            parts.append(_certificate_statement(line, document["certificate"]))
        else:
            parts.append(_statement(FILE_TYPE, [_subject("header", _digest(line))], document))
    return [whole, *parts]


def _certificate_statement(content: bytes, certificate: Any) -> Document:
    """About a certificate: the signed bytes, the model and the image are the subjects."""
    try:
        model, image = certificate["model"]["digest"], certificate["image"]
        subjects = [
            _subject("certificate", _digest(content)),
            _subject("model", model.removeprefix("sha256:")),
            _subject("image", image.removeprefix("sha256:")),
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise SignatureError("What is to be signed is not a certificate: it names no model and image.") from error
    return _statement(CERTIFICATE_TYPE, subjects, {"certificate": certificate})


def _model_statement(path: Path) -> Document:
    """About a model: the subject is the digest over the digests of all its files, the model file first."""
    digests = {".": _digest(_read(path))}
    digests |= {location: _digest(_read(file)) for location, file in external_files(path).items()}
    root = _digest(b"".join(bytes.fromhex(digest) for digest in digests.values()))
    resources = [dict(zip(_RESOURCE, (name, "sha256", digest), strict=True)) for name, digest in digests.items()]
    predicate = {"serialization": _MODEL_SERIALIZATION, "resources": resources}
    return _statement(MODEL_TYPE, [_subject(path.name, root)], predicate)


def _statement(kind: str, subjects: list[Document], predicate: Any) -> Document:
    return {"_type": STATEMENT_TYPE, "subject": subjects, "predicateType": kind, "predicate": predicate}


def _subject(name: str, digest: str) -> Document:
    return {"name": name, "digest": {"sha256": digest}}


def _check(envelope: Any, expected: Document, key: PublicKey) -> None:
    if _canonical(_opened(envelope, key)) != _canonical(expected):
        raise SignatureError("The signature does not match: the content was changed after signing.")


def _opened(document: Any, key: PublicKey) -> Any:
    """The statement in an envelope, if the key has signed it."""
    dsse = require("securesystemslib.dsse", extra="sign", why=_WHY)
    try:
        envelope = dsse.Envelope.from_dict(copy.deepcopy(document))
        # Base64 can be written in several ways: only that of the writer is taken, so that no byte can be changed.
        exact = _canonical(envelope.to_dict()) == _canonical(document)
    except Exception as error:  # a document of any shape, from anybody
        raise SignatureError("The signature is damaged: it is not a DSSE envelope.") from error
    if not exact or envelope.payload_type != PAYLOAD_TYPE:
        raise SignatureError("The signature is damaged: it is not a DSSE envelope of an in-toto statement.")
    if "" in envelope.signatures:  # written by `model_signing`, which names its key in the bundle
        signature = envelope.signatures[""]
        signature.keyid = key.id
        envelope.signatures = {key.id: signature}
    if key.id not in envelope.signatures:
        raise SignatureError(f"Signed by another key: {', '.join(envelope.signatures)}, not by {key.id}.")
    try:
        envelope.verify([key.key], 1)
        return json.loads(envelope.payload)
    except Exception as error:  # the library has no common base for what a damaged signature raises
        raise SignatureError("The signature does not fit: what was signed, or the signature, was changed.") from error


def _signatures(path: Path) -> list[Document]:
    place = signature_path(path)
    if not place.is_file():
        raise SignatureError(f"{path} is not signed: there is no file {place}.")
    lines = _read(place).removesuffix(b"\n").split(b"\n")
    documents = [_json(line, place) for line in lines]
    if [_compact(document) for document in documents] != lines:
        raise SignatureError(f"The signature {place} is damaged.")
    return documents


def _json(content: bytes, path: Path) -> Document:
    try:
        document = read_json(content)
    except (ValueError, RecursionError) as error:
        raise SignatureError(f"{path} is damaged: it is not a JSON document.") from error
    if not isinstance(document, dict):
        raise SignatureError(f"{path} is damaged: expected a JSON object, found {type(document).__name__}.")
    return document


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SignatureError(f"Cannot read {path}: {error.strerror or error}.") from error


def _check_kind(key: Any) -> None:
    name = type(key).__name__.lower()
    if "ed25519" not in name and getattr(getattr(key, "curve", None), "name", "") != "secp256r1":
        raise SignatureError("Expected an Ed25519 or ECDSA P-256 key, found another kind: make one with robust keygen.")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _compact(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _canonical(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()
