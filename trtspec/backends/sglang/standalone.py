# SPDX-License-Identifier: Apache-2.0
"""SGLang's own server and Dynamo's worker on the checkpoints of an artifact: engine.json as options.

sgl-project/sglang:python/sglang/srt/server_args.py@v0.5.23 (an option has the name of its field).
"""

from __future__ import annotations

import json
from pathlib import Path

from trtspec.backends.common.standalone import options, with_absolute_paths
from trtspec.backends.serving import StandaloneServer
from trtspec.backends.sglang.repository import ENGINE_JSON

TOKENS_ALONE = "skip_tokenizer_init"  # set for Triton, whose models tokenize; here the engine does


def alone(repository: Path, artifact: str) -> StandaloneServer:
    """Return the command line of SGLang without Triton."""
    document = json.loads((repository / ENGINE_JSON).read_text(encoding="utf-8"))
    document = with_absolute_paths(document, ENGINE_JSON.parts[0], artifact)
    arguments = options({key: value for key, value in document.items() if key != TOKENS_ALONE})
    return StandaloneServer(
        framework="sglang",
        serve=("python3", "-m", "sglang.launch_server", "--host=0.0.0.0", *arguments),
        arguments=arguments,
    )
