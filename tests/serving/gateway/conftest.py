# SPDX-License-Identifier: Apache-2.0
"""A tritonserver with the quickstart and a gateway in front of it, shared by the gateway's tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.serving.triton.serving import Served, serving
from trtspec.core.paths import recipes_dir


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quickstart's artifact."""
    from trtspec.cli.app import main

    root = tmp_path_factory.mktemp("quickstart")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTSPEC_CACHE", str(root / "cache"))
        with pytest.raises(SystemExit) as ended:
            main(["build", str(recipes_dir() / "quickstart.yaml"), "--out", str(root / "artifact"), "--json"])
    assert ended.value.code == 0
    return root / "artifact"


@pytest.fixture(scope="session")
def served(quickstart: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A tritonserver that serves the quickstart."""
    with serving(tmp_path_factory.mktemp("server"), quickstart / "model_repository") as running:
        yield running


@pytest.fixture(scope="session")
def entry(quickstart: Path, served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """A gateway in front of the server, with a chat template added to the quickstart's tokenizer."""
    from tests.serving.gateway.running import serve_gateway, with_template
    from trtspec.serving.gateway.command import gateway_config

    config = gateway_config(quickstart, grpc=f"127.0.0.1:{served.grpc}", port=0)
    tokenizer = with_template(Path(config.tokenizer), tmp_path_factory.mktemp("chat") / "tokenizer")
    with serve_gateway(replace(config, tokenizer=str(tokenizer))) as entry:
        yield entry
