# SPDX-License-Identifier: Apache-2.0
"""Signature policies: who may sign an artifact, how old a signature may be, and what its provenance must be.

A policy is a YAML file, read as strictly as a recipe. All of its problems are reported at once, with their positions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, field_validator

from trtspec.core.diagnostics import Diagnostic, Mark, RecipeError, raise_recipe_error, sort_diagnostics
from trtspec.core.errors import TrtspecError
from trtspec.core.files import describe_read_error, read_bounded
from trtspec.core.registry import did_you_mean
from trtspec.core.versions import version_key
from trtspec.recipe.schema import StrictModel, refuse
from trtspec.recipe.validate import explain_value, find_mark
from trtspec.recipe.yaml_tree import RecipeNode, RecipeText, locate, parse_document, plain
from trtspec.store.signatures.keys import PublicKey, load_public_key, read_key_file

FORMAT = "trtspec.signature-policy/1"
VARIABLE = "TRTSPEC_SIGNATURE_POLICY"
MAX_BYTES = 1 << 20
MAX_ENTRIES = 64
EXAMPLE = f"see docs/signatures.md; a policy begins with schema: {FORMAT}"
_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def _duration(text: str) -> str:
    parse_age(text)
    return text


def _time(text: str) -> str:
    parse_time(text)
    return text


def parse_age(text: str) -> timedelta:
    """Parse an age such as 30d, 12h or 2w."""
    if not (match := re.fullmatch(r"([1-9][0-9]{0,5})([mhdw])", text)):
        raise refuse("bad-value", f"{text[:40]!r} is not an age", "e.g. 30d, 12h or 2w")
    return timedelta(seconds=int(match[1]) * _UNITS[match[2]])


def parse_time(text: str) -> datetime:
    """Return, in UTC, a date or a time with its zone, such as 2026-11-01 or 2026-11-01T00:00:00Z."""
    form = r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}:[0-9]{2}(Z|[+-][0-9]{2}:[0-9]{2}))?"
    try:
        if not re.fullmatch(form, text):
            raise ValueError
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return found.astimezone(timezone.utc) if found.tzinfo else found.replace(tzinfo=timezone.utc)
    except (ValueError, OverflowError):
        raise refuse("bad-value", f"{text[:40]!r} is not a time", "e.g. 2026-11-01T00:00:00Z") from None


def _version(text: str) -> str:
    if version_key(text) is None:
        raise refuse("bad-value", f"{text[:40]!r} is not a version", "e.g. 1.2.0")
    return text


Pattern = Annotated[str, Field(min_length=1, max_length=500)]
Patterns = Annotated[list[Pattern], Field(min_length=1, max_length=MAX_ENTRIES)]


class SignerSection(StrictModel):
    """A key, or the identity of a keyless signature."""

    key: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    issuer: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    identity: Pattern | None = None

    @field_validator("identity")
    @classmethod
    def _has_issuer(cls, identity: str | None, info: ValidationInfo) -> str | None:
        if identity and not info.data.get("issuer"):
            raise refuse(
                "missing-key", "an identity requires the issuer that has verified it", "add issuer: https://..."
            )
        if identity and not identity.strip("*?"):
            raise refuse("bad-value", "this pattern accepts everyone", "name your repository or its owner")
        return identity


class ArtifactSection(StrictModel):
    """The accepted artifacts."""

    names: Patterns | None = None
    same_location: bool = False


class SignedSection(StrictModel):
    """The accepted times of a signature."""

    max_age: Annotated[str, AfterValidator(_duration)] | None = None
    not_before: Annotated[str, AfterValidator(_time)] | None = None


class ProvenanceSection(StrictModel):
    """The required provenance; an absent key accepts every value."""

    builders: Patterns | None = None
    recipes: Patterns | None = None
    sources: Patterns | None = None
    minimum_versions: dict[str, Annotated[str, AfterValidator(_version)]] | None = None


class PolicyDocument(StrictModel):
    """The content of a policy's file."""

    schema_: Literal["trtspec.signature-policy/1"] = Field(alias="schema")
    signers: Annotated[list[SignerSection], Field(min_length=1, max_length=MAX_ENTRIES)]
    artifact: ArtifactSection = ArtifactSection()
    signed: SignedSection = SignedSection()
    provenance: ProvenanceSection | None = None
    bom: bool = False
    trusted_root: Annotated[str, Field(min_length=1)] | None = None


_OPTIONAL = {
    name
    for section in (ArtifactSection, SignedSection, ProvenanceSection, PolicyDocument)
    for name, field in section.model_fields.items()
    if not field.is_required() and field.default is None
}


@dataclass(frozen=True)
class AcceptedKey:
    """A key that may sign; `label` is the name of its file."""

    label: str
    public: PublicKey


@dataclass(frozen=True)
class AcceptedIdentity:
    """An identity that may sign without a key; `identity` is a pattern with * and ?."""

    issuer: str
    identity: str

    @property
    def label(self) -> str:
        return f"{self.identity} ({self.issuer})"


@dataclass(frozen=True)
class Policy:
    """A policy with its loaded keys; `trusted_root` is the file of a private Sigstore instance, or None."""

    path: Path
    document: PolicyDocument
    signers: tuple[AcceptedKey | AcceptedIdentity, ...]
    trusted_root: Path | None


def matches(text: str, pattern: str) -> bool:
    """Return whether a text fits a pattern in which * stands for any text and ? for one character."""
    expression = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(expression, text, re.DOTALL) is not None


def load_policy(path: str | os.PathLike[str]) -> Policy:
    """Load a policy; raises RecipeError with all of its problems, and TrtspecError if it cannot be read."""
    path = Path(path)
    diagnostics: list[Diagnostic] = []
    text = _read(path)
    root = parse_document(text, RecipeText.of(str(path), path.absolute().parent, text), diagnostics)
    if not isinstance(root.value, dict):
        raise_recipe_error(root.mark, "wrong-type", "a policy is a mapping of keys to values", EXAMPLE)
    document = _validate(root, diagnostics)
    signers = _load_signers(root, document, path, diagnostics) if document else ()
    trusted_root = path.parent / document.trusted_root if document and document.trusted_root else None
    if trusted_root and not trusted_root.is_file():
        _report(root, ("trusted_root",), f"{trusted_root}: the file does not exist", None, diagnostics)
    if diagnostics or document is None:
        raise RecipeError(sort_diagnostics(diagnostics))
    return Policy(path, document, signers, trusted_root)


def find_policy(given: str | os.PathLike[str] | None) -> Policy | None:
    """Return the policy in the given file, else in the file of TRTSPEC_SIGNATURE_POLICY, else None.

    An empty text as well as None means the variable. Raises like `load_policy`.
    """
    chosen = given or os.environ.get(VARIABLE)
    return load_policy(chosen) if chosen else None


def _read(path: Path) -> str:
    try:
        return read_bounded(path, MAX_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        raise TrtspecError("the policy does not exist", where=str(path), hint=EXAMPLE) from None
    except UnicodeDecodeError:
        raise TrtspecError("the policy is not UTF-8", where=str(path)) from None
    except OSError as error:
        raise TrtspecError(describe_read_error(error), where=str(path)) from None


def _validate(root: RecipeNode, diagnostics: list[Diagnostic]) -> PolicyDocument | None:
    content = plain(root)
    for empty in _empty_keys(content):
        _report(
            root, empty, "it has no value, so it would require nothing", "remove the key, or add a value", diagnostics
        )
    try:
        return PolicyDocument.model_validate(content)
    except ValidationError as error:
        for finding in error.errors(include_url=False):
            path = tuple(str(part) for part in finding["loc"] if part != "[key]")
            code, message, hint = _explain(root, finding, path)
            mark = find_mark(root, "unknown-key" if code == "unknown-key" else "", path)
            diagnostics.append(Diagnostic(".".join(path), code, message, hint).at(mark))
        return None


def _empty_keys(content: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of optional keys without a value below a node; the others are refused by their types."""
    for name, value in content.items() if isinstance(content, dict) else ():
        if value is None and name in _OPTIONAL:
            yield (*path, name)
        yield from _empty_keys(value, (*path, str(name)))


def _explain(root: RecipeNode, finding: Any, path: tuple[str, ...]) -> tuple[str, str, str | None]:
    if finding["type"] == "extra_forbidden":
        known = _keys_below(path[:-1])
        hint = did_you_mean(path[-1], known) or f"known keys here: {', '.join(known)}"
        return "unknown-key", f"unknown key {path[-1][:40]!r}", hint
    if finding["type"] == "missing":
        hint = "signers: [{key: release.pub}]" if path[-1] == "signers" else f"add the line schema: {FORMAT}"
        return "missing-key", f"{path[-1]} is required", hint
    return explain_value(finding, path[-1], locate(root, path)[0].raw)


def _keys_below(path: tuple[str, ...]) -> list[str]:
    sections: dict[str, type[StrictModel]] = {
        "signers": SignerSection,
        "artifact": ArtifactSection,
        "signed": SignedSection,
        "provenance": ProvenanceSection,
    }
    model: type[StrictModel] = sections.get(path[0], PolicyDocument) if path else PolicyDocument
    return [field.alias or name for name, field in model.model_fields.items()]


def _load_signers(
    root: RecipeNode, document: PolicyDocument, path: Path, diagnostics: list[Diagnostic]
) -> tuple[AcceptedKey | AcceptedIdentity, ...]:
    found: list[AcceptedKey | AcceptedIdentity] = []
    for number, signer in enumerate(document.signers):
        place = ("signers", str(number))
        if (signer.key is None) == (signer.identity is None) or (signer.key and signer.issuer):
            message = "a signer is either a key, or an issuer with an identity"
            _report(root, place, message, "e.g. {key: release.pub}", diagnostics)
        elif signer.key is None:
            found.append(AcceptedIdentity(str(signer.issuer), str(signer.identity)))
        else:
            try:
                found.append(_load_key(signer.key, path.parent))
            except TrtspecError as error:
                message = f"{error.where}: {error.message}" if error.where else error.message
                _report(root, (*place, "key"), message, error.hint, diagnostics)
    return tuple(found)


def _load_key(text: str, folder: Path) -> AcceptedKey:
    if text.startswith("-----BEGIN "):
        public = load_public_key("the key", text.encode())
        return AcceptedKey(f"key {public.hint}", public)
    file = folder / os.path.expanduser(text)
    return AcceptedKey(text, load_public_key(str(file), read_key_file(file)))


def _report(
    root: RecipeNode, path: tuple[str, ...], message: str, hint: str | None, diagnostics: list[Diagnostic]
) -> None:
    mark: Mark = find_mark(root, "", path)
    diagnostics.append(Diagnostic(".".join(path), "bad-value", message, hint).at(mark))
