# SPDX-License-Identifier: Apache-2.0
"""The names of models in a repository, as in NVIDIA's inflight_batcher_llm repository.

The engine's model has the same name for every engine, because clients, ensembles and BLS models refer to it.
"""

from __future__ import annotations

ENSEMBLE, PREPROCESSING, POSTPROCESSING = "ensemble", "preprocessing", "postprocessing"
TARGET, DRAFT, BLS = "tensorrt_llm", "tensorrt_llm_draft", "tensorrt_llm_bls"
ADD_SPECIAL_TOKENS = "add_special_tokens"  # trtspec's extension: an input of the models that take text
ENGINE_MODELS = {"target": TARGET, "draft": DRAFT}
SOCKETS = {"http": "http.sock", "metrics": "metrics.sock"}  # sockets of a server behind the proxy, by protocol
DISCONNECTS = "departures"  # directory of disconnected clients, in the same directory as the sockets
