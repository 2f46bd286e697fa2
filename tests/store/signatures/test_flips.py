# SPDX-License-Identifier: Apache-2.0
"""Random bit flips in the manifest and in all attestations: a policy that requires them refuses each one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.store.registries.artifacts import write_artifact
from tests.store.signatures.documents import write_documents
from tests.store.signatures.policies import write_policy
from trtspec.core.errors import TrtspecError
from trtspec.store.registries.pull import check_directory
from trtspec.store.signatures.keys import KeySigner
from trtspec.store.signatures.policy import load_policy
from trtspec.store.signatures.sign import sign_directory

STRICT = "provenance: {builders: ['urn:*']}\nbom: true"


@pytest.mark.parametrize("count", [300, 10_000])
def test_random_flips_are_refused(tmp_path: Path, keys: Path, signer: KeySigner, count: int) -> None:
    root = write_artifact(tmp_path / "built", {"a.txt": b"a"})
    write_documents(root)
    sign_directory(root, signer)
    policy = load_policy(write_policy(tmp_path, keys, STRICT))
    assert len(check_directory(root, policy).checks) == 4
    files = [root / "manifest.json", *sorted((root / "attestations").iterdir())]
    assert len(files) == 6
    generator = random.Random(count)
    for number in range(count):
        path = files[number % len(files)]
        good = path.read_bytes()
        data = bytearray(good)
        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        path.write_bytes(data)
        with pytest.raises(TrtspecError):
            check_directory(root, policy)
        path.write_bytes(good)
    assert check_directory(root, policy)
