# SPDX-License-Identifier: Apache-2.0
"""Key pairs: ECDSA on the curve P-256 with SHA-256, as PEM files or in environment variables.

Private keys are PKCS#8, or in cosign's own encrypted format, which `cosign generate-key-pair` writes. Source of that
format: secure-systems-lab/go-securesystemslib:encrypted/encrypted.go@v0.11.0 (scrypt and NaCl's secretbox).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.core.errors import TrtspecError
from trtspec.core.files import describe_read_error, read_bounded
from trtspec.store.signatures.envelope import pre_authentication, render_bundle

EXTRA = "pip install 'trtspec[sign]'"
MAX_KEY_BYTES = 1 << 16
PASSWORD = "TRTSPEC_KEY_PASSWORD"
COSIGN_PASSWORD = "COSIGN_PASSWORD"
ENVIRONMENT = "env://"
COSIGN_TYPES = (b"ENCRYPTED SIGSTORE PRIVATE KEY", b"ENCRYPTED COSIGN PRIVATE KEY")
MAX_SCRYPT_BYTES = 256 << 20
GENERATE = "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem"


@dataclass(frozen=True)
class PublicKey:
    """A public key; `hint` is the base64 of the SHA-256 of its DER form, by which bundles name it."""

    hint: str
    key: Any

    def has_signed(self, signature: bytes, payload: bytes) -> bool:
        """Return whether a DSSE signature of a payload was made with the private key."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        try:
            self.key.verify(signature, pre_authentication(payload), ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class KeySigner:
    """Signs statements with a private key."""

    key: Any

    @property
    def public(self) -> PublicKey:
        return _public(self.key.public_key())

    @property
    def name(self) -> str:
        """Return the name of the signer in messages."""
        return f"key {self.public.hint}"

    def sign(self, statement: bytes) -> bytes:
        """Return the bundle of a signed statement."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        signature = self.key.sign(pre_authentication(statement), ec.ECDSA(hashes.SHA256()))
        return render_bundle(statement, signature, self.public.hint)


def load_signer(reference: str) -> KeySigner:
    """Load the private key in a file, or in the variable NAME for "env://NAME".

    The password is the value of TRTSPEC_KEY_PASSWORD or COSIGN_PASSWORD. Raises TrtspecError with the reason, which
    contains no part of the key.
    """
    _require()
    from cryptography.hazmat.primitives.serialization import load_der_private_key, load_pem_private_key

    where, data = _read(reference)
    password = os.environ.get(PASSWORD, os.environ.get(COSIGN_PASSWORD, "")).encode()
    try:
        if any(b"-----BEGIN " + each in data for each in COSIGN_TYPES):
            key: Any = load_der_private_key(_decrypt_cosign(where, data, password), None)
        else:
            is_encrypted = b"ENCRYPTED" in data
            key = load_pem_private_key(data, password if is_encrypted else None)
    except (ValueError, TypeError):
        hint = f"it has to be PKCS#8 in PEM, as {GENERATE} writes it; {PASSWORD} is the password of an encrypted key"
        raise TrtspecError("not a readable private key, or the password is wrong", where=where, hint=hint) from None
    _check_curve(where, key)
    return KeySigner(key)


def load_public_key(where: str, data: bytes) -> PublicKey:
    """Load a public key in PEM; raises TrtspecError for anything else."""
    _require()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key: Any = load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        hint = "openssl pkey -in key.pem -pubout -out key.pub writes one"
        raise TrtspecError("not a public key in PEM", where=where, hint=hint) from None
    _check_curve(where, key)
    return _public(key)


def read_key_file(path: Path) -> bytes:
    """Return the bytes of a key's file; raises TrtspecError if it cannot be read."""
    try:
        return read_bounded(path, MAX_KEY_BYTES)
    except FileNotFoundError:
        raise TrtspecError("the key's file does not exist", where=str(path)) from None
    except OSError as error:
        raise TrtspecError(describe_read_error(error), where=str(path)) from None


def _read(reference: str) -> tuple[str, bytes]:
    if not reference.startswith(ENVIRONMENT):
        return reference, read_key_file(Path(reference))
    name = reference.removeprefix(ENVIRONMENT)
    if not os.environ.get(name):
        hint = f"export {name or 'NAME'} with the PEM, and use env://{name or 'NAME'}"
        raise TrtspecError(f"--key {reference}: the variable is empty or not set", hint=hint)
    return reference, os.environ[name].encode()


def _public(key: Any) -> PublicKey:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return PublicKey(base64.b64encode(hashlib.sha256(der).digest()).decode(), key)


def _check_curve(where: str, key: Any) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec

    if not isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
        raise TrtspecError("not an ECDSA key on the curve P-256", where=where, hint=GENERATE)


def _decrypt_cosign(where: str, data: bytes, password: bytes) -> bytes:
    """Return the DER of a private key in cosign's format; raises ValueError for a wrong password."""
    try:
        from nacl.exceptions import CryptoError
        from nacl.secret import SecretBox
    except ImportError:
        raise TrtspecError("a key in cosign's format requires PyNaCl", where=where, hint=EXTRA) from None
    try:
        body = b"".join(line for line in data.splitlines() if line and not line.startswith(b"-----"))
        document = json.loads(base64.b64decode(body, validate=True))
        kdf, cipher = document["kdf"], document["cipher"]
        cost = {name: int(kdf["params"][name]) for name in ("N", "r", "p")}
        if (kdf["name"], cipher["name"]) != ("scrypt", "nacl/secretbox"):
            raise ValueError("another encryption")
        key = hashlib.scrypt(
            password,
            salt=base64.b64decode(kdf["salt"]),
            n=cost["N"],
            r=cost["r"],
            p=cost["p"],
            maxmem=MAX_SCRYPT_BYTES,
            dklen=32,
        )
        return SecretBox(key).decrypt(base64.b64decode(document["ciphertext"]), base64.b64decode(cipher["nonce"]))
    except (binascii.Error, KeyError, TypeError, CryptoError) as error:
        raise ValueError("not decrypted") from error


def _require() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise TrtspecError("signatures require the package cryptography", hint=EXTRA) from None
