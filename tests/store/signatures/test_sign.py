# SPDX-License-Identifier: Apache-2.0
"""Bundles of key pairs, read by other implementations: sigstore's clients, securesystemslib, in-toto's protobuf."""

from __future__ import annotations

import base64
import hashlib
import json
import stat
import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests._support.npm import Unavailable, modules
from tests.store.registries.artifacts import DRAFT, contents, make_artifact
from tests.store.signatures.conftest import make_key
from trtspec.core.errors import DigestMismatch, TrtspecError
from trtspec.store.artifact import load_artifact, manifest_sha256, publish_artifact, verify_files
from trtspec.store.registries.push import push_artifact
from trtspec.store.signatures.keys import KeySigner, load_signer
from trtspec.store.signatures.sign import sign_directory

SCRIPTS = Path(__file__).with_name("javascript")
EXPECTED_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"


def only_bundle(root: Path) -> bytes:
    (path,) = (root / "attestations").glob("signature-*.sigstore.json")
    return path.read_bytes()


def test_bundle_is_read_by_sigstore_and_securesystemslib(signed: Path, keys: Path) -> None:
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import VerificationError
    from securesystemslib.signer import SSlibKey
    from sigstore_models.bundle.v1 import Bundle

    bundle = Bundle.from_json(only_bundle(signed))
    assert bundle.media_type == EXPECTED_TYPE
    pem = (keys / "release.pub").read_text()
    der = base64.b64decode("".join(pem.splitlines()[1:-1]))
    hint = base64.b64encode(hashlib.sha256(der).digest()).decode()
    assert bundle.verification_material.public_key is not None
    assert bundle.verification_material.public_key.hint == hint
    assert bundle.dsse_envelope is not None
    envelope = bundle.dsse_envelope
    key = SSlibKey("k", "ecdsa", "ecdsa-sha2-nistp256", {"public": pem})
    for payload, is_valid in ((envelope.payload, True), (envelope.payload.replace(b"tiny", b"tinx"), False)):
        document = {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": envelope.payload_type,
            "signatures": [{"keyid": "k", "sig": base64.b64encode(envelope.signatures[0].sig).decode()}],
        }
        with nullcontext() if is_valid else pytest.raises(VerificationError):
            Envelope.from_dict(document).verify([key], 1)


@pytest.fixture(scope="module")
def javascript() -> Path:
    """The npm packages of Sigstore's JavaScript client."""
    try:
        return modules(SCRIPTS)
    except Unavailable as reason:
        pytest.skip(str(reason))


def test_bundle_is_verified_by_sigstores_javascript_client(
    javascript: Path, signed: Path, keys: Path, tmp_path: Path
) -> None:
    changed = json.loads(only_bundle(signed))
    payload = base64.b64decode(changed["dsseEnvelope"]["payload"]).replace(b'"manifest.json"', b'"manifest.jsoN"')
    changed["dsseEnvelope"]["payload"] = base64.b64encode(payload).decode()
    (tmp_path / "changed").write_text(json.dumps(changed))
    release, (bundle,) = keys / "release.pub", (signed / "attestations").glob("*.sigstore.json")
    pairs = [release, bundle, keys / "other.pub", bundle, release, tmp_path / "changed"]
    command = ["node", SCRIPTS / "verify.js", javascript, *pairs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["verified", "SIGNATURE_ERROR", "SIGNATURE_ERROR"]


def test_statement_is_read_by_intotos_protobuf_and_has_both_manifests(signed: Path, tmp_path: Path) -> None:
    from google.protobuf.json_format import Parse
    from in_toto_attestation.v1 import statement_pb2

    payload = base64.b64decode(json.loads(only_bundle(signed))["dsseEnvelope"]["payload"])
    statement = Parse(payload.decode(), statement_pb2.Statement())
    assert statement.type == "https://in-toto.io/Statement/v1"
    assert statement.predicate_type == "https://sigstore.dev/cosign/sign/v1"
    pushed = push_artifact(signed, f"file:{tmp_path}/layout:v1")
    digests = {each.name: f"sha256:{each.digest['sha256']}" for each in statement.subject}
    assert digests == {"manifest.json": f"sha256:{manifest_sha256(signed)}", "tiny": pushed.digest}


def test_signatures_are_no_part_of_the_artifact(built: Path, signer: KeySigner) -> None:
    before = load_artifact(built)
    sign_directory(built, signer)
    assert load_artifact(built).digest == before.digest
    assert verify_files(built, before.manifest) == []


def test_signing_again_replaces_the_own_signature_only(
    signed: Path, signer: KeySigner, other_signer: KeySigner
) -> None:
    sign_directory(signed, other_signer)
    first = contents(signed / "attestations")
    sign_directory(signed, signer)
    second = contents(signed / "attestations")
    assert len(first) == len(second) == 2
    assert len({*first} & {*second}) == 1


def test_publishing_an_equal_artifact_keeps_signatures_and_another_drops_them(signed: Path, tmp_path: Path) -> None:
    artifact = load_artifact(signed)
    target = make_artifact(tmp_path / "other", 5000, 2000)
    files = {record.path: target / record.path for record in artifact.manifest.files}
    (signed / DRAFT).unlink()  # published again because a file is missing
    assert publish_artifact(signed, files, artifact.manifest) == "published"
    assert only_bundle(signed)
    changed = make_artifact(tmp_path / "changed", 5000, 2000, draft_seed=1)
    other = load_artifact(changed)
    publish_artifact(signed, {each.path: changed / each.path for each in other.manifest.files}, other.manifest)
    assert not (signed / "attestations").exists()


def test_damaged_artifact_is_not_signed(built: Path, signer: KeySigner) -> None:
    (built / DRAFT).write_bytes(b"x" * 2000)
    with pytest.raises(DigestMismatch, match="differs from its recorded digest"):
        sign_directory(built, signer)
    assert not (built / "attestations").exists()


def test_keys_of_openssl_and_cosign_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_key(tmp_path / "key.pem")
    plain = load_signer(str(path))
    monkeypatch.setenv("SIGNING_KEY", path.read_text())
    assert load_signer("env://SIGNING_KEY").public.hint == plain.public.hint
    for name, write in (("encrypted", write_encrypted), ("cosign", write_cosign)):
        write(plain, tmp_path / name, b"secret words")
        monkeypatch.setenv("TRTSPEC_KEY_PASSWORD", "secret words")
        assert load_signer(str(tmp_path / name)).public.hint == plain.public.hint
        monkeypatch.setenv("TRTSPEC_KEY_PASSWORD", "wrong")
        with pytest.raises(TrtspecError, match="or the password is wrong") as error:
            load_signer(str(tmp_path / name))
        assert "secret" not in str(error.value)


def write_encrypted(signer: KeySigner, path: Path, password: bytes) -> None:
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

    encryption = BestAvailableEncryption(password)
    path.write_bytes(signer.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))


def write_cosign(signer: KeySigner, path: Path, password: bytes) -> None:
    """Write a key in cosign's format."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from nacl.secret import SecretBox

    der = signer.key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    salt = b"s" * 32
    key = hashlib.scrypt(password, salt=salt, n=32768, r=8, p=1, maxmem=1 << 28, dklen=32)
    box = SecretBox(key).encrypt(der)
    document = {
        "kdf": {"name": "scrypt", "params": {"N": 32768, "r": 8, "p": 1}, "salt": base64.b64encode(salt).decode()},
        "cipher": {"name": "nacl/secretbox", "nonce": base64.b64encode(box.nonce).decode()},
        "ciphertext": base64.b64encode(box.ciphertext).decode(),
    }
    body = base64.encodebytes(json.dumps(document).encode()).decode()
    kind = "ENCRYPTED SIGSTORE PRIVATE KEY"
    path.write_text(f"-----BEGIN {kind}-----\n{body}-----END {kind}-----\n")


@pytest.mark.parametrize("text", ["", "no key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_unreadable_keys_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "key.pem").write_text(text)
    with pytest.raises(TrtspecError, match=r"not a readable private key"):
        load_signer(str(tmp_path / "key.pem"))


def test_absent_keys_and_other_curves_are_refused(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec

    with pytest.raises(TrtspecError, match="does not exist"):
        load_signer(str(tmp_path / "none.pem"))
    with pytest.raises(TrtspecError, match="empty or not set"):
        load_signer("env://NO_SUCH_VARIABLE")
    write_encrypted(KeySigner(ec.generate_private_key(ec.SECP384R1())), tmp_path / "key.pem", b"a")
    with pytest.raises(TrtspecError, match="password is wrong"):
        load_signer(str(tmp_path / "key.pem"))


def test_bundles_are_readable_like_other_files(signed: Path) -> None:
    for path in (signed / "attestations").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) & 0o044
