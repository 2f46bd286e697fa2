# SPDX-License-Identifier: Apache-2.0
"""Keys, signed artifacts and policies; each test has its own cache."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.store.registries.artifacts import make_artifact
from tests.store.registries.conftest import docker_registry, own_home, registry
from tests.store.signatures.policies import write_policy
from trtspec.store.signatures.keys import KeySigner, load_signer
from trtspec.store.signatures.policy import Policy, load_policy
from trtspec.store.signatures.sign import sign_directory

__all__ = ["docker_registry", "own_home", "registry"]


def make_key(path: Path) -> Path:
    """Write a private key with OpenSSL, and its public key with the suffix .pub."""
    curve = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
    subprocess.run(["openssl", "genpkey", *curve, "-out", path], check=True, capture_output=True, timeout=60)
    public = ["openssl", "pkey", "-in", path, "-pubout", "-out", path.with_suffix(".pub")]
    subprocess.run(public, check=True, capture_output=True, timeout=60)
    return path


@pytest.fixture(autouse=True)
def no_pause(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only one client writes, an index of referrers needs no time to settle."""
    if "docker_registry" not in request.fixturenames:
        monkeypatch.setattr("trtspec.store.registries.referrers.SETTLE_S", 0)


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the key pairs "release" and "other"."""
    root = tmp_path_factory.mktemp("keys")
    for name in ("release", "other"):
        make_key(root / f"{name}.pem")
    return root


@pytest.fixture
def signer(keys: Path) -> KeySigner:
    return load_signer(str(keys / "release.pem"))


@pytest.fixture
def other_signer(keys: Path) -> KeySigner:
    return load_signer(str(keys / "other.pem"))


@pytest.fixture
def policy(keys: Path, tmp_path: Path) -> Policy:
    """A policy that requires a signature with the release key."""
    return load_policy(write_policy(tmp_path, keys))


@pytest.fixture
def built(tmp_path: Path) -> Path:
    return make_artifact(tmp_path / "built", 5000, 2000)


@pytest.fixture
def signed(built: Path, signer: KeySigner) -> Path:
    sign_directory(built, signer)
    return built
