"""Signatures: what they cover, down to the byte, and the sentences about those that do not fit."""

import base64
import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from robustinfer.errors import ModelFileError, SignatureError
from robustinfer.signing import (
    PrivateKey,
    PublicKey,
    check_answer,
    check_file,
    check_line,
    check_model,
    sign_certificate,
    sign_file,
    sign_model,
    signature_path,
)

CERTIFICATE: dict[str, Any] = {
    "label": 1,
    "radius": 0.25,
    "image": "sha256:" + 64 * "1",
    "model": {"name": "digits", "version": "1", "digest": "sha256:" + 64 * "2"},
}
KEY, OTHER = (PrivateKey(Ed25519PrivateKey.from_private_bytes(bytes(32 * [number]))) for number in (1, 2))
FOLDER_IS_KEPT = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def flipped(content: bytes, place: int, bit: int) -> bytes:
    changed = bytearray(content)
    changed[place % len(content)] ^= 1 << bit
    return bytes(changed)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    path = tmp_path / "five.json"
    path.write_text(json.dumps(CERTIFICATE) + "\n")
    sign_file(path, KEY)
    return path


@pytest.fixture
def several(tmp_path: Path) -> Path:
    path = tmp_path / "test.jsonl"
    lines = [{"header": {"seed": 0}}, *({"index": i, "truth": i, "certificate": CERTIFICATE} for i in range(3))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    sign_file(path, KEY)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "digits.onnx"
    path.write_bytes(bytes(range(256)))
    sign_model(path, KEY)
    return path


def refuse_flipped(file: Path, which: str, place: int, bit: int, check: Callable[[Path, PublicKey], object]) -> None:
    """Change one bit of a signed file, or of its signature: the check raises."""
    path = file if which == "file" else signature_path(file)
    before = path.read_bytes()
    path.write_bytes(flipped(before, place, bit))
    try:
        with pytest.raises(SignatureError):
            check(file, KEY.public)
    finally:
        path.write_bytes(before)


def test_a_statement_names_certificate_model_and_image(certificate: Path) -> None:
    envelope = json.loads(signature_path(certificate).read_text())
    statement = json.loads(base64.b64decode(envelope["payload"]))
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    assert [one["keyid"] for one in envelope["signatures"]] == [KEY.public.id]
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert [one["name"] for one in statement["subject"]] == ["certificate", "model", "image"]
    assert statement["subject"][1]["digest"] == {"sha256": 64 * "2"}
    check_file(certificate, KEY.public)


@pytest.mark.parametrize("which", ["file", "signature"])
@FOLDER_IS_KEPT
@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_no_bit_of_a_certificate_or_its_signature_can_be_changed(
    certificate: Path, which: str, place: int, bit: int
) -> None:
    refuse_flipped(certificate, which, place, bit, check_file)


@pytest.mark.parametrize("which", ["file", "signature"])
@FOLDER_IS_KEPT
@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_no_bit_of_a_model_or_its_signature_can_be_changed(model: Path, which: str, place: int, bit: int) -> None:
    refuse_flipped(model, which, place, bit, check_model)


def test_a_data_sets_file_is_signed_as_a_whole_and_line_by_line(several: Path) -> None:
    check_file(several, KEY.public)
    for line in range(4):
        check_line(several, line, KEY.public)
    content = several.read_text()
    several.write_text(content.replace('"truth": 2', '"truth": 1'))
    with pytest.raises(SignatureError, match="was changed after signing"):
        check_file(several, KEY.public)
    check_line(several, 1, KEY.public)
    with pytest.raises(SignatureError, match="was changed after signing"):
        check_line(several, 3, KEY.public)
    with pytest.raises(SignatureError, match="no signature of line 5"):
        check_line(several, 4, KEY.public)


def test_an_answer_carries_its_signature() -> None:
    answer = CERTIFICATE | {"signature": sign_certificate(CERTIFICATE, KEY)}
    before = copy.deepcopy(answer)
    check_answer(answer, KEY.public)
    assert answer == before
    changes: list[dict[str, Any]] = [{"radius": 9.75}, {"extra": 1}, {"signature": {}}, {"signature": None}]
    for change in [*changes, {"model": {}}]:
        with pytest.raises(SignatureError):
            check_answer(answer | change, KEY.public)
    with pytest.raises(SignatureError, match="is not signed"):
        check_answer(CERTIFICATE, KEY.public)


def test_another_key_is_named(certificate: Path, model: Path, tmp_path: Path) -> None:
    with pytest.raises(SignatureError, match="another key"):
        check_file(certificate, OTHER.public)
    with pytest.raises(SignatureError, match="another key"):
        check_model(model, OTHER.public)
    signature_path(model).unlink()
    with pytest.raises(SignatureError, match=r"is not signed: there is no file .*digits\.onnx\.sig"):
        check_model(model, KEY.public)


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa"])
@pytest.mark.parametrize("passphrase", [None, b"open sesame"])
def test_keys_are_private_and_come_back(tmp_path: Path, kind: Any, passphrase: bytes | None) -> None:
    path = tmp_path / "release.key"
    key = PrivateKey.generate(kind)
    public = key.write(path, passphrase=passphrase)
    assert path.stat().st_mode & 0o777 == 0o600
    assert PrivateKey.load(path, passphrase=passphrase).public.id == PublicKey.load(public).id == key.public.id
    with pytest.raises(SignatureError, match="never overwritten"):
        key.write(path)
    with pytest.raises(SignatureError, match="passphrase"):
        PrivateKey.load(path, passphrase=None if passphrase else b"none")
    path.chmod(0o640)
    with pytest.raises(SignatureError, match="can be read by users other than its owner"):
        PrivateKey.load(path, passphrase=passphrase)


def test_keys_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rsa.key"
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    encoding = serialization.Encoding.PEM
    path.write_bytes(key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    path.chmod(0o600)
    with pytest.raises(SignatureError, match="Ed25519 or ECDSA P-256"):
        PrivateKey.load(path)
    with pytest.raises(SignatureError, match="this is a private key"):
        PublicKey.load(path)
    path.write_text("no key")
    for load in (PrivateKey.load, PublicKey.load):
        with pytest.raises(SignatureError, match="is not a p"):
            load(path)
        with pytest.raises(SignatureError, match="Cannot read"):
            load(tmp_path / "none.key")


def test_weights_beside_a_model_are_signed_with_it(tmp_path: Path) -> None:
    path, weights = tmp_path / "digits.onnx", tmp_path / "digits.data"
    tensor = onnx.TensorProto(dims=[4], data_type=1, name="w", data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=weights.name)
    path.write_bytes(onnx.ModelProto(graph=onnx.GraphProto(initializer=[tensor])).SerializeToString())
    weights.write_bytes(bytes(16))
    sign_model(path, KEY)
    check_model(path, KEY.public)
    weights.write_bytes(bytes(15) + b"1")
    with pytest.raises(SignatureError, match="is not the file that was signed: its bytes were changed"):
        check_model(path, KEY.public)
    weights.unlink()
    with pytest.raises(ModelFileError, match="keep both files in one folder"):
        check_model(path, KEY.public)


def test_the_command_of_openssf_verifies_our_bundle_and_we_verify_its_own(tmp_path: Path) -> None:
    command = str(Path(sys.executable).with_name("model_signing"))
    path, key = tmp_path / "digits.onnx", PrivateKey.generate("ecdsa")
    path.write_bytes(bytes(range(256)))
    public = key.write(tmp_path / "key")
    ours = sign_model(path, key)
    verify = [command, "verify", "key", str(path), "--public_key", str(public), "--signature", str(ours)]
    assert subprocess.run(verify, capture_output=True, timeout=250).returncode == 0
    sign = [command, "sign", "key", str(path), "--private_key", str(tmp_path / "key"), "--signature", str(ours)]
    assert subprocess.run(sign, capture_output=True, timeout=250).returncode == 0
    check_model(path, PublicKey.load(public))
    path.write_bytes(bytes(255))
    assert subprocess.run(verify, capture_output=True, timeout=250).returncode != 0
    with pytest.raises(SignatureError, match="its bytes were changed"):
        check_model(path, PublicKey.load(public))
