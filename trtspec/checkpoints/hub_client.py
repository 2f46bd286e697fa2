# SPDX-License-Identifier: Apache-2.0
"""Small metadata requests to the hub: a model's newest commit, its file list, and ranges of files.

Every request has a time-out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple, cast
from urllib.parse import quote

from trtspec.checkpoints.hub import TRY_AGAIN, HubError, explain_hub_errors, hub_token
from trtspec.core.errors import CheckpointError
from trtspec.core.version import __version__
from trtspec.recipe.schema import COMMIT

CHECK_ENDPOINT = "check HF_ENDPOINT"
TIMEOUT_S = 20.0  # for each request


class HubFile(NamedTuple):
    """Size and content digest of a file of a commit; equal files have equal digests."""

    nbytes: int
    digest: str


def newest_commit(model: str) -> str:
    """Return the newest commit of a hub model; raise CheckpointError if the hub returns none."""
    with explain_hub_errors(model, TRY_AGAIN):
        commit = str(_info(model).get("sha"))
        if not re.fullmatch(COMMIT, commit):
            raise CheckpointError("the hub returned no commit", where=model, hint=CHECK_ENDPOINT)
        return commit


@dataclass(frozen=True)
class HubModel:
    """One commit of a hub model. Methods raise the client's errors; see `explain_hub_errors`."""

    model: str
    revision: str

    def __str__(self) -> str:
        return f"{self.model} at commit {self.revision}"

    def files(self) -> dict[str, HubFile]:
        """Return the files in the top-level folder of the commit, by name."""
        siblings = _info(f"{self.model}/revision/{self.revision}?blobs=true").get("siblings")
        return {
            str(each["rfilename"]): HubFile(int(each.get("size") or 0), str(each.get("blobId") or ""))
            for each in siblings or ()
            if "/" not in each["rfilename"]
        }

    def read(self, name: str, first: int, count: int) -> bytes:
        """Return `count` bytes of a file from offset `first` on, fewer at the end of the file."""
        part = {"Range": f"bytes={first}-{first + count - 1}", "Accept-Encoding": "identity"}
        answer = _get(f"{self.model}/resolve/{self.revision}/{quote(name)}", part)
        data = bytes(answer.content)
        if answer.status_code != 206 and (first or len(data) > count):
            hint = "trtspec build downloads whole files"
            raise HubError("the hub does not support range requests", where=f"{self.model}/{name}", hint=hint)
        return data[:count]


def _info(path: str) -> dict[str, Any]:
    """Return the hub's metadata of a model; raise CheckpointError if the response is not a JSON object."""
    answer = _get(f"api/models/{path}", {})
    try:
        found = answer.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise CheckpointError("the response does not come from a hub", where=str(answer.url), hint=CHECK_ENDPOINT)
    return found


def _get(path: str, headers: dict[str, str]) -> Any:
    """Return the hub's response. The client's API class is not used because importing it takes longer than the
    requests.
    """
    from huggingface_hub import constants, utils

    client = cast(Any, utils)  # its names are not exported
    answer = client.get_session().get(f"{constants.ENDPOINT}/{path}", headers=_headers() | headers, timeout=TIMEOUT_S)
    client.hf_raise_for_status(answer)
    return answer


def _headers() -> dict[str, str]:
    """Return user agent and token. The client's own headers take 0.1 s because they detect all frameworks."""
    token = hub_token()
    return {"User-Agent": f"trtspec/{__version__}"} | ({"Authorization": f"Bearer {token}"} if token else {})
