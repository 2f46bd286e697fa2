# SPDX-License-Identifier: Apache-2.0
"""Downloads with the real client, in a separate process, from a local hub."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests._support import forked
from tests._support.hub import COMMIT, Hub, serving
from trtspec.core.processes import wait_until

pytestmark = pytest.mark.slow  # one client process per test

# The client retries after 1, 2, 4 ... seconds; the tests skip the delays.
CLIENT = """
import json, sys, time
time.sleep = lambda _: None
from trtspec.checkpoints.hub import fetch_snapshot
from trtspec.core.errors import CheckpointError
model, revision, *pickles = sys.argv[1:]
try:
    fetch_snapshot(model, revision, pickles, lambda done, total: print(json.dumps([done, total])))
except CheckpointError as error:
    sys.exit(str(error))
"""
TOKEN = "hf_averysecrettoken"
CHUNK = 10 << 20  # the client's write buffer

Fetch = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with serving(tmp_path) as hub:
        yield hub


@pytest.fixture
def model(hub: Hub) -> Path:
    """The files of org/model: two shards, and many files that builds do not read."""
    root = hub.root / "org" / "model"
    (root / "original").mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "README.md", "pytorch_model.bin", "original/config.json"):
        (root / name).write_text(json.dumps(name))
    for name in ("one.safetensors", "two.safetensors", "consolidated.safetensors", "original/one.safetensors"):
        save_file({name: np.zeros(8, np.float32)}, root / name)
    weight_map = {f"{name}.safetensors": f"{name}.safetensors" for name in ("one", "two")}
    (root / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return root


def command(*pickles: str, model: str = "org/model", revision: str = COMMIT) -> list[str]:
    return [sys.executable, "-c", CLIENT, model, revision, *pickles]


@pytest.fixture
def fetch(hub: Hub, model: Path) -> Fetch:
    def run(*pickles: str, name: str = "org/model", revision: str = COMMIT, **variables: str) -> object:
        argv = command(*pickles, model=name, revision=revision)
        environment = hub.environment(**variables)
        return forked.run(argv, env=environment, timeout=60)

    return run  # type: ignore[return-value]


def snapshot(hub: Hub) -> Path:
    return hub.cache / "models--org--model" / "snapshots" / COMMIT


def fetched(hub: Hub) -> list[str]:
    root = snapshot(hub)
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


WHOLE = ["config.json", "model.safetensors.index.json", "one.safetensors", "tokenizer.json", "two.safetensors"]


class TestWhatIsFetched:
    def test_download_has_exactly_the_files_a_build_reads(self, fetch: Fetch, hub: Hub, model: Path) -> None:
        done = fetch()
        assert (done.returncode, done.stderr) == (0, "")
        assert fetched(hub) == WHOLE
        assert (snapshot(hub) / "two.safetensors").read_bytes() == (model / "two.safetensors").read_bytes()

    def test_download_without_an_index_has_every_safetensors_file(self, fetch: Fetch, hub: Hub, model: Path) -> None:
        (model / "model.safetensors.index.json").unlink()
        assert fetch().returncode == 0
        assert fetched(hub) == sorted({*WHOLE, "consolidated.safetensors"} - {"model.safetensors.index.json"})

    def test_pickle_is_downloaded_only_on_request(self, fetch: Fetch, hub: Hub) -> None:
        assert fetch("pytorch_model.bin").returncode == 0
        assert fetched(hub) == ["config.json", "model.safetensors.index.json", "pytorch_model.bin", "tokenizer.json"]

    def test_progress_is_reported_in_bytes(self, fetch: Fetch, model: Path) -> None:
        save_file({"one.safetensors": np.zeros(5 << 20, np.float32)}, model / "one.safetensors")
        told = [json.loads(line) for line in fetch().stdout.splitlines()]
        size = (model / "one.safetensors").stat().st_size + (model / "two.safetensors").stat().st_size
        assert told[-1] == [size, size]


class TestTheToken:
    def test_token_is_read_from_the_environment_and_not_printed(self, fetch: Fetch, hub: Hub) -> None:
        hub.token = TOKEN
        done = fetch(HF_TOKEN=TOKEN, HF_DEBUG="1")
        assert done.returncode == 0
        assert {asked.token for asked in hub.asked} == {TOKEN}
        assert TOKEN not in done.stdout + done.stderr

    def test_token_of_a_stored_login_is_not_sent(self, fetch: Fetch, hub: Hub) -> None:
        (hub.root / "home").mkdir()
        (hub.root / "home" / "token").write_text(TOKEN)
        assert fetch().returncode == 0
        assert {asked.token for asked in hub.asked} == {None}

    def test_token_with_invalid_characters_is_rejected_without_printing_it(self, fetch: Fetch, hub: Hub) -> None:
        done = fetch(HF_TOKEN="hf_sec ret")
        assert "HF_TOKEN contains characters that are not valid in a token" in done.stderr
        assert "sec ret" not in done.stderr
        assert hub.asked == []


def refused(done: subprocess.CompletedProcess[str], message: str, hint: str, revision: str = COMMIT) -> None:
    assert done.returncode == 1
    assert done.stderr.endswith(f"org/model at commit {revision}: {message}\nhint: {hint}\n")
    assert "Traceback" not in done.stderr
    assert TOKEN not in done.stdout + done.stderr


MAY_READ = "set HF_TOKEN to a token with read access"
AGAIN = "then build again: complete files are kept"


class TestWhatGoesWrong:
    @pytest.mark.parametrize("token", [{}, {"HF_TOKEN": "hf_another"}])
    def test_private_model_is_reported(self, fetch: Fetch, hub: Hub, token: dict[str, str]) -> None:
        hub.token = TOKEN
        refused(
            fetch(**token), "the model does not exist on the hub, or it is private", f"check the name, or {MAY_READ}"
        )

    def test_gated_model_is_reported(self, fetch: Fetch, hub: Hub) -> None:
        hub.refusals["one.safetensors"] = 403, "GatedRepo"
        hint = f"request access on the model's page, then {MAY_READ}"
        refused(fetch(HF_TOKEN=TOKEN), "access to the model is gated", hint)

    def test_token_without_permission_is_reported(self, fetch: Fetch, hub: Hub) -> None:
        hub.refusals["tree"] = 403, ""
        refused(fetch(HF_TOKEN=TOKEN), "the hub returned HTTP status 403", f"{MAY_READ}, or unset it")

    def test_missing_model_is_reported(self, fetch: Fetch, hub: Hub, model: Path) -> None:
        model.rename(hub.root / "elsewhere")
        refused(fetch(), "the model does not exist on the hub, or it is private", f"check the name, or {MAY_READ}")

    def test_missing_commit_is_reported(self, fetch: Fetch) -> None:
        hint = "copy one from the hub's list of commits"
        refused(fetch(revision="f" * 40), "the model has no such commit", hint, "f" * 40)

    def test_hub_error_500_is_reported(self, fetch: Fetch, hub: Hub) -> None:
        hub.refusals["tree"] = 500, ""
        refused(fetch(), "the hub returned HTTP status 500", AGAIN)

    def test_unreachable_hub_is_reported_without_its_credentials(self, fetch: Fetch, hub: Hub) -> None:
        done = fetch(HF_ENDPOINT="http://user:secret@127.0.0.1:9")
        hint = f"check the network, the proxy and HF_ENDPOINT; {AGAIN}"
        refused(done, "the download from 127.0.0.1 failed: ConnectError", hint)
        assert "secret" not in "".join(done.stderr.splitlines()[-2:])  # the lines before are the client's own output

    def test_response_that_is_not_json_is_reported(self, fetch: Fetch, hub: Hub) -> None:
        hub.refusals["tree"] = 200, ""
        hint = f"check the network, the proxy and HF_ENDPOINT; {AGAIN}"
        refused(fetch(), "the download from 127.0.0.1 failed: JSONDecodeError", hint)

    def test_unwritable_cache_is_reported(self, fetch: Fetch, hub: Hub, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        done = fetch(HF_HUB_CACHE=str(tmp_path / "file"))
        refused(
            done, "cannot be stored: Not a directory", f"free space in {tmp_path}/file or make it writable; {AGAIN}"
        )

    def test_model_with_only_pickles_is_rejected(self, fetch: Fetch, model: Path) -> None:
        for path in [*model.glob("*.safetensors"), model / "model.safetensors.index.json"]:
            path.unlink()
        digests = "allow_pickle: true and sha256: {pytorch_model.bin: <64 hex digits from the file's page on the hub>}"
        refused(fetch(), "*.safetensors is missing", f"if the weights are pickles, allow them in the recipe: {digests}")

    def test_missing_pickle_is_reported(self, fetch: Fetch) -> None:
        hint = "check the model's name, the commit and the names under sha256"
        refused(fetch("other.bin"), "other.bin is missing", hint)


class TestOffline:
    HINT = "unset HF_HUB_OFFLINE and build again"

    def test_missing_model_offline_is_an_error_without_requests(self, fetch: Fetch, hub: Hub) -> None:
        refused(fetch(HF_HUB_OFFLINE="1"), "not in the hub cache, and HF_HUB_OFFLINE is set", self.HINT)
        assert hub.asked == []

    def test_cached_model_offline_is_found_without_requests(self, fetch: Fetch, hub: Hub) -> None:
        fetch()
        hub.asked.clear()
        assert fetch(HF_HUB_OFFLINE="1").returncode == 0
        assert hub.asked == []

    def test_incomplete_model_offline_is_an_error(self, fetch: Fetch, hub: Hub) -> None:
        fetch()
        (snapshot(hub) / "two.safetensors").unlink()
        done = fetch(HF_HUB_OFFLINE="1")
        assert done.returncode == 1
        assert "the hub cache, and HF_HUB_OFFLINE is set\nhint: unset HF_HUB_OFFLINE" in done.stderr


class TestRoom:
    """The sizes of the weights are known before the first byte is downloaded."""

    def test_insufficient_disk_space_is_reported_before_any_download(self, fetch: Fetch, hub: Hub) -> None:
        hub.sizes["one.safetensors"] = 1 << 60
        done = fetch()
        assert done.returncode == 1
        assert "not enough disk space for the hub cache at " in done.stderr
        assert ": 1048576.0 TiB needed, " in done.stderr
        assert "hint: free space there, or point HF_HUB_CACHE at another disk" in done.stderr
        assert hub.got("one.safetensors") == hub.got("two.safetensors") == []

    def test_required_disk_space_excludes_cached_files(self, fetch: Fetch, hub: Hub) -> None:
        hub.refusals["two.safetensors"] = (404, "EntryNotFound")
        assert fetch().returncode == 1
        assert "one.safetensors" in fetched(hub)
        hub.refusals.clear()
        hub.sizes["one.safetensors"] = 1 << 60
        assert fetch().returncode == 0


class TestAnInterruption:
    def test_interrupted_connection_resumes_in_the_middle_of_a_shard(self, fetch: Fetch, hub: Hub, model: Path) -> None:
        shard = model / "two.safetensors"
        save_file({"two.safetensors": np.arange(3 << 20, dtype=np.float32)}, shard)
        hub.cuts["two.safetensors"] = CHUNK + 999
        assert fetch().returncode == 0
        assert [asked.range for asked in hub.got("two.safetensors")] == [None, f"bytes={CHUNK}-"]
        assert (snapshot(hub) / "two.safetensors").read_bytes() == shard.read_bytes()

    def test_killed_process_leaves_complete_files_for_the_next_download(self, fetch: Fetch, hub: Hub) -> None:
        hub.stops["two.safetensors"] = 50
        with forked.Popen(command(), env=hub.environment(), stdout=subprocess.DEVNULL) as process:
            arrived = wait_until(
                lambda: (snapshot(hub) / "one.safetensors").exists() and hub.got("two.safetensors"), 30
            )
            process.kill()
        assert arrived
        assert "two.safetensors" not in fetched(hub)
        hub.stops.clear()
        hub.asked.clear()
        assert fetch().returncode == 0
        assert fetched(hub) == WHOLE
        assert {asked.what for asked in hub.asked if asked.method == "GET"} == {"tree", "two.safetensors"}

    def test_complete_download_sends_no_requests_again(self, fetch: Fetch, hub: Hub) -> None:
        fetch()
        hub.asked.clear()
        assert fetch().returncode == 0
        assert hub.asked == []
