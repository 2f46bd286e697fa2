# SPDX-License-Identifier: Apache-2.0
"""The names of models in a repository, which are those of NVIDIA's inflight_batcher_llm repository.

The engine's model is called so whatever engine it is: clients, ensembles and BLS models ask for these names.
"""

from __future__ import annotations

ENSEMBLE, PREPROCESSING, POSTPROCESSING = "ensemble", "preprocessing", "postprocessing"
TARGET, DRAFT, BLS = "tensorrt_llm", "tensorrt_llm_draft", "tensorrt_llm_bls"
ADD_SPECIAL_TOKENS = "add_special_tokens"  # ours: an input of the models that take text
ENGINE_MODELS = {"target": TARGET, "draft": DRAFT}
SOCKETS = {"http": "http.sock", "metrics": "metrics.sock"}  # that a server behind a front listens at, by what answers
DEPARTURES = "departures"  # beside these sockets: the directory of clients that left
