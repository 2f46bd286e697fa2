# SPDX-License-Identifier: Apache-2.0
"""Keyless signatures: a certificate for an identity of CI, made and verified by the package sigstore.

Signing requires Sigstore's public services: an identity token of the CI system, a certificate from Fulcio, and an entry
in the log Rekor. Verification requires only their keys, the trusted root.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from trtspec.core.errors import SignatureRefused, TrtspecError
from trtspec.store.signatures.keys import ENVIRONMENT, EXTRA
from trtspec.store.signatures.policy import matches

NO_TOKEN = (
    "run in CI with an identity token (GitHub: permissions: id-token: write; GitLab: id_tokens with "
    "SIGSTORE_ID_TOKEN and aud: sigstore), or sign with --key"
)


@dataclass(frozen=True)
class KeylessSigner:
    """Signs statements with a certificate of Fulcio for the identity in a token."""

    signer: Any
    name: str

    def sign(self, statement: bytes) -> bytes:
        """Return the bundle of a signed statement; raises TrtspecError if a service fails."""
        from sigstore.dsse import Statement

        bundle: str = _calling("signing", lambda: self.signer.sign_dsse(Statement(statement)).to_json())
        return bundle.encode()


def open_keyless_signer(token_reference: str = "") -> KeylessSigner:
    """Return a signer for the identity in a token: of "env://NAME", or of the CI system that this process runs in.

    Raises TrtspecError if a token is missing, or if a service of Sigstore fails.
    """
    _require()
    from sigstore.models import ClientTrustConfig
    from sigstore.oidc import IdentityToken
    from sigstore.sign import Signer, SigningContext

    token = _calling("reading the identity token", lambda: IdentityToken(_read_token(token_reference)))
    config = _calling("reading Sigstore's trusted root", ClientTrustConfig.production)
    context = SigningContext.from_trust_config(config)
    signer = _calling("requesting a certificate", lambda: Signer(token, context))
    return KeylessSigner(signer, f"{token.identity} ({token.federated_issuer})")


def verify_keyless(
    data: bytes, issuer: str, identity: str, trusted_root: Path | None, where: str
) -> tuple[bytes, datetime]:
    """Return the payload of a keyless bundle and the time of its certificate.

    The certificate has to be issued for `identity`, a pattern, by `issuer`, and the signature has to be in the log.
    Raises SignatureRefused with the reason, and TrtspecError if the trusted root cannot be read.
    """
    _require()
    from sigstore.errors import Error
    from sigstore.models import Bundle

    verifier = _verifier(trusted_root)
    try:
        bundle = Bundle.from_json(data)
        _, payload = verifier.verify_dsse(bundle, _IdentityPolicy(issuer, identity))
        return payload, bundle.signing_certificate.not_valid_before_utc
    except Error as error:
        raise SignatureRefused(str(error).splitlines()[0], where=where) from None
    except Exception as error:  # the package's parsers raise many types for malformed input
        raise SignatureRefused(f"not a valid bundle: {type(error).__name__}", where=where) from None


@dataclass(frozen=True)
class _IdentityPolicy:
    """A policy of the package sigstore: the certificate's issuer is equal, and one of its names fits the pattern."""

    issuer: str
    identity: str

    def verify(self, certificate: Any) -> None:
        from cryptography.x509 import RFC822Name, SubjectAlternativeName, UniformResourceIdentifier
        from sigstore.errors import VerificationError
        from sigstore.verify.policy import AnyOf, OIDCIssuer, OIDCIssuerV2

        AnyOf([OIDCIssuerV2(self.issuer), OIDCIssuer(self.issuer)]).verify(certificate)
        names = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
        found = [
            *names.get_values_for_type(RFC822Name),
            *names.get_values_for_type(UniformResourceIdentifier),
        ]
        if not any(matches(name, self.identity) for name in found):
            raise VerificationError(f"signed by {', '.join(found)[:200]}")


@cache
def _verifier(trusted_root: Path | None) -> Any:
    from sigstore.models import TrustedRoot
    from sigstore.verify import Verifier

    if trusted_root is None:
        return _calling("reading Sigstore's trusted root", Verifier.production)
    return _calling(str(trusted_root), lambda: Verifier(trusted_root=TrustedRoot.from_file(str(trusted_root))))


def _read_token(reference: str) -> str:
    from sigstore.oidc import detect_credential

    if not reference:
        if (found := detect_credential()) is None:
            raise TrtspecError("this is not a CI job with an identity token", hint=NO_TOKEN)
        return found
    name = reference.removeprefix(ENVIRONMENT)
    if not reference.startswith(ENVIRONMENT) or not os.environ.get(name):
        raise TrtspecError("--identity-token requires env://NAME of a variable that is set", hint=NO_TOKEN)
    return os.environ[name]


def _calling(what: str, call: Callable[[], Any]) -> Any:
    """Return the result of a function of sigstore; raises TrtspecError for its errors, which contain no token."""
    try:
        return call()
    except TrtspecError:
        raise
    except Exception as error:  # of its HTTP client, its parsers, and its own
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        hint = "Sigstore's services are needed; --key and a policy's trusted_root work without them"
        raise TrtspecError(f"{what} failed: {reason}", hint=hint) from None


def _require() -> None:
    try:
        import sigstore  # noqa: F401
    except ImportError:
        raise TrtspecError("keyless signatures require the package sigstore", hint=EXTRA) from None
