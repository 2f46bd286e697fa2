# SPDX-License-Identifier: Apache-2.0
"""Questions to the hub that are answered in kilobytes: a model's newest commit, its list of files, parts of files.

Each answer is waited for within a bound.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from trtspec.checkpoint.hub import TRY_AGAIN, HubError, explained, hub_token
from trtspec.errors import CheckpointError
from trtspec.recipe.schema import COMMIT

TIMEOUT_S = 20.0  # for each answer of the hub


class HubFile(NamedTuple):
    """A file of a commit: its bytes, and what the hub tells of its content; equal files have an equal digest."""

    nbytes: int
    digest: str


def newest_commit(model: str) -> str:
    """Return the newest commit of a hub model; raises CheckpointError for none."""
    with explained(model, TRY_AGAIN):
        from huggingface_hub import HfApi

        found = HfApi().model_info(model, timeout=TIMEOUT_S, token=hub_token() or False)
        if not re.fullmatch(COMMIT, found.sha or ""):
            raise CheckpointError("the hub tells no commit of it", where=model, hint="check HF_ENDPOINT")
        return str(found.sha)


@dataclass(frozen=True)
class HubModel:
    """One commit of a hub model; its methods raise what the client raises, which `explained` puts into words."""

    model: str
    revision: str

    def __str__(self) -> str:
        return f"{self.model} at commit {self.revision}"

    def files(self) -> dict[str, HubFile]:
        """Return the files at the top of the commit, by name."""
        from huggingface_hub import HfApi

        token = hub_token() or False
        found = HfApi().model_info(
            self.model, revision=self.revision, timeout=TIMEOUT_S, files_metadata=True, token=token
        )
        return {
            each.rfilename: HubFile(int(each.size or 0), str(each.blob_id or ""))
            for each in found.siblings or ()
            if "/" not in each.rfilename
        }

    def read(self, name: str, first: int, count: int) -> bytes:
        """Return `count` bytes of a file from `first` on, fewer where it ends before."""
        from huggingface_hub import hf_hub_url

        asked = {"Range": f"bytes={first}-{first + count - 1}", "Accept-Encoding": "identity"}
        headers = _client().build_hf_headers(token=hub_token() or False) | asked
        url = hf_hub_url(self.model, name, revision=self.revision)
        answer = _client().get_session().get(url, headers=headers, timeout=TIMEOUT_S)
        _client().hf_raise_for_status(answer)
        data = bytes(answer.content)
        if answer.status_code != 206 and (first or len(data) > count):
            hint = "trtspec build downloads all of them"
            raise HubError("the hub gives no parts of files", where=f"{self.model}/{name}", hint=hint)
        return data[:count]


def _client() -> Any:
    """Return the client's tools, whose exports are not typed as such."""
    from huggingface_hub import utils

    return utils
