# SPDX-License-Identifier: Apache-2.0
"""`trtspec init` with hub ids, using the real client in separate processes and a local hub."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests._support import forked
from tests._support.hub import COMMIT, Hub, serving
from trtspec.checkpoints.previews import UNKNOWN_HEADER_BYTES
from trtspec.core.paths import recipes_dir

pytestmark = pytest.mark.slow  # a new client process for each command

MODELS = recipes_dir() / "models"
TOKEN = "hf_averysecrettoken"
# The client retries after 1, 2, 4 ... seconds; skip these waits.
COMMAND = """
import sys, time
time.sleep = lambda _: None
import trtspec.checkpoints.hub
trtspec.checkpoints.hub.TIMEOUT_S = 2.0
from trtspec.cli.app import main
main(sys.argv[1:])
"""

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A hub that serves the quickstart's models as org/NAME to clients with the token."""
    for name in ("target", "draft", "eagle3", "medusa"):
        shutil.copytree(MODELS / f"quickstart-{name}", tmp_path / "served" / "org" / name)
    with serving(tmp_path / "served") as hub:
        hub.token = TOKEN
        yield hub


@pytest.fixture
def command(hub: Hub, tmp_path: Path) -> Command:
    """Run a command in an empty directory."""
    place = tmp_path / "place"
    place.mkdir()

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = hub.environment(TRTSPEC_CACHE=str(tmp_path / "cache"), **{"HF_TOKEN": TOKEN, **variables})
        argv = [sys.executable, "-c", COMMAND, *arguments]
        return forked.run(argv, cwd=place, env=environment, timeout=120)

    return run


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def sent(hub: Hub) -> int:
    """Return the number of requested bytes of weights; a complete file counts as a very large number."""
    total = 0
    for asked in hub.asked:
        if asked.method == "GET" and asked.what.endswith(".safetensors"):
            first, last = (asked.range or "bytes=0-999999999").removeprefix("bytes=").split("-")
            total += int(last) - int(first) + 1
    return total


def test_hub_pair_is_checked_without_its_weights_and_built(command: Command, hub: Hub) -> None:
    made = document(command("init", "org/target", "org/draft", "--json"))
    assert made["ok"] is True
    assert made["recipe"]["target"] == {"model": "org/target", "revision": COMMIT}
    assert made["recipe"]["speculation"]["draft"] == {"model": "org/draft", "revision": COMMIT}
    whys = {choice["path"]: choice["why"] for choice in made["choices"]}
    assert whys["target.revision"] == "the newest commit when this was written"
    assert sent(hub) == 2 * UNKNOWN_HEADER_BYTES
    assert {asked.token for asked in hub.asked} == {TOKEN}
    hub.asked.clear()
    assert command("check", "target.yaml").returncode == 0
    assert hub.asked == []
    built = command("build", "target.yaml")
    assert built.returncode == 0, built.stderr
    assert TOKEN not in built.stdout + built.stderr + json.dumps(made)
    hub.asked.clear()
    again = document(command("init", "org/target", "org/draft", "--json", "--force"))
    assert again["recipe"] == made["recipe"]
    assert [asked.what for asked in hub.asked] == ["info", "info"]
    offline = document(command("init", "org/target", "org/draft", "--json", "--force", HF_HUB_OFFLINE="1"))
    assert offline["recipe"] == made["recipe"]
    whys = {choice["path"]: choice["why"] for choice in offline["choices"]}
    assert whys["target.revision"] == "the newest commit in the hub cache when this was written"


@pytest.mark.parametrize("method", ["eagle3", "medusa"])
def test_hub_head_is_checked_without_its_weights(method: str, command: Command, hub: Hub) -> None:
    """The id tables of EAGLE-3 are downloaded, since the check compares them."""
    made = document(command("init", "org/target", f"org/{method}", "--json"))
    assert made["recipe"]["speculation"]["method"] == method
    assert sent(hub) < 3 * UNKNOWN_HEADER_BYTES


def test_header_of_each_shard_is_read(command: Command, hub: Hub) -> None:
    from safetensors.torch import load_file, save_file

    root = hub.root / "org" / "target"
    tensors = load_file(root / "model.safetensors")
    (root / "model.safetensors").unlink()
    weight_map = {}
    for number, name in enumerate(sorted(tensors)):
        weight_map[name] = f"model-{number % 2}.safetensors"
    for shard in set(weight_map.values()):
        save_file({name: tensors[name] for name in tensors if weight_map[name] == shard}, root / shard)
    (root / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert document(command("init", "org/target", "--json"))["ok"] is True
    assert {asked.what for asked in hub.asked if asked.what.endswith(".safetensors")} == set(weight_map.values())


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 1
    shown = " ".join((done.stdout + done.stderr).split())
    for each in words:
        assert each in shown
    assert "Traceback" not in shown
    assert TOKEN not in shown


def test_unavailable_model_is_an_error_and_nothing_is_written(command: Command, hub: Hub) -> None:
    elsewhere = "there is no directory ./org/nosuch either"
    no_model = (
        "error: org/nosuch: the model does not exist on the hub, or it is private hint: check the name, or set HF_TOKEN"
    )
    refused(command("init", "org/nosuch"), no_model, elsewhere)
    refused(
        command("init", "org/target", HF_TOKEN=""),
        "error: org/target: the model does not exist on the hub, or it is private",
    )
    refused(
        command("init", "org/target", HF_ENDPOINT="http://127.0.0.1:9"),
        "error: org/target: the download from 127.0.0.1 failed: ConnectError hint: check the network, the proxy and",
    )
    offline = "error: org/target: not in the hub cache, and HF_HUB_OFFLINE is set hint: unset HF_HUB_OFFLINE and"
    refused(command("init", "org/target", HF_HUB_OFFLINE="1"), offline)
    (hub.root / "org" / "draft" / "config.json").unlink()
    refused(command("init", "org/target", "org/draft"), "error: org/draft: no config.json hint: a checkpoint is")
    pickled = hub.root / "org" / "medusa"
    os.rename(pickled / "medusa_lm_head.safetensors", pickled / "medusa_lm_head.pt")
    refused(
        command("init", "org/target", "org/medusa"),
        "org/medusa: lacks *.safetensors; medusa_lm_head.pt is a pickle, and pickles are not opened",
    )
    assert sorted(path.name for path in (hub.root.parent / "place").iterdir()) == []


def test_incompatible_pair_is_reported_by_its_hub_ids(command: Command, hub: Hub) -> None:
    for name in ("draft", "eagle3"):
        config = hub.root / "org" / name / "config.json"
        config.write_text(config.read_text().replace('"num_hidden_layers": 1', '"num_hidden_layers": 3'))
    done = command("init", "org/target", "org/draft", "-o", "draft.yaml")
    refused(done, "org/draft")
    assert "previews" not in done.stdout + done.stderr
    # the layers of a head are counted from its tensors
    assert command("init", "org/target", "org/eagle3", "-o", "eagle3.yaml").returncode == 0


@pytest.mark.parametrize("name", ["info", "model.safetensors"])
def test_unresponsive_hub_causes_a_timeout_error(name: str, command: Command, hub: Hub) -> None:
    hub.stops[name] = 20
    refused(command("init", "org/target"), "the download from 127.0.0.1 failed: ReadTimeout")


def test_invalid_safetensors_header_is_an_error(command: Command, hub: Hub) -> None:
    (hub.root / "org" / "draft" / "model.safetensors").write_bytes((20).to_bytes(8, "little") + b"not a header at all!")
    refused(command("init", "org/target", "org/draft"), "not a safetensors file: invalid header: not valid JSON")
