# SPDX-License-Identifier: Apache-2.0
"""Questions to the hub that are answered in kilobytes: a model's newest commit, its list of files, parts of files.

Each answer is waited for within a bound.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple, cast
from urllib.parse import quote

from trtspec import __version__
from trtspec.checkpoints.hub import TRY_AGAIN, HubError, explained, hub_token
from trtspec.core.errors import CheckpointError
from trtspec.recipe.schema import COMMIT

CHECK_ENDPOINT = "check HF_ENDPOINT"
TIMEOUT_S = 20.0  # for each answer of the hub


class HubFile(NamedTuple):
    """A file of a commit: its bytes, and what the hub tells of its content; equal files have an equal digest."""

    nbytes: int
    digest: str


def newest_commit(model: str) -> str:
    """Return the newest commit of a hub model; raises CheckpointError for none."""
    with explained(model, TRY_AGAIN):
        commit = str(_info(model).get("sha"))
        if not re.fullmatch(COMMIT, commit):
            raise CheckpointError("the hub tells no commit of it", where=model, hint=CHECK_ENDPOINT)
        return commit


@dataclass(frozen=True)
class HubModel:
    """One commit of a hub model; its methods raise what the client raises, which `explained` puts into words."""

    model: str
    revision: str

    def __str__(self) -> str:
        return f"{self.model} at commit {self.revision}"

    def files(self) -> dict[str, HubFile]:
        """Return the files at the top of the commit, by name."""
        told = _info(f"{self.model}/revision/{self.revision}?blobs=true").get("siblings")
        return {
            str(each["rfilename"]): HubFile(int(each.get("size") or 0), str(each.get("blobId") or ""))
            for each in told or ()
            if "/" not in each["rfilename"]
        }

    def read(self, name: str, first: int, count: int) -> bytes:
        """Return `count` bytes of a file from `first` on, fewer where it ends before."""
        part = {"Range": f"bytes={first}-{first + count - 1}", "Accept-Encoding": "identity"}
        answer = _ask(f"{self.model}/resolve/{self.revision}/{quote(name)}", part)
        data = bytes(answer.content)
        if answer.status_code != 206 and (first or len(data) > count):
            hint = "trtspec build downloads all of them"
            raise HubError("the hub gives no parts of files", where=f"{self.model}/{name}", hint=hint)
        return data[:count]


def _info(path: str) -> dict[str, Any]:
    """Return what the hub tells of a model; raises CheckpointError where the answer is none of a hub's."""
    answer = _ask(f"api/models/{path}", {})
    try:
        found = answer.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise CheckpointError("the answer is not a hub's", where=str(answer.url), hint=CHECK_ENDPOINT)
    return found


def _ask(path: str, headers: dict[str, str]) -> Any:
    """Return the hub's answer; the client's own class for questions takes longer to import than they all take."""
    from huggingface_hub import constants, utils

    client = cast(Any, utils)  # which exports nothing by name
    answer = client.get_session().get(f"{constants.ENDPOINT}/{path}", headers=_own() | headers, timeout=TIMEOUT_S)
    client.hf_raise_for_status(answer)
    return answer


def _own() -> dict[str, str]:
    """Return who asks; the client's own headers look for every framework, which takes a tenth of a second."""
    token = hub_token()
    return {"User-Agent": f"trtspec/{__version__}"} | ({"Authorization": f"Bearer {token}"} if token else {})
