# SPDX-License-Identifier: Apache-2.0
"""The names of the models in a Triton repository, as in NVIDIA's inflight_batcher_llm repository.

The model that runs the engine has the same name for every backend, because clients and other models refer to it.
"""

from __future__ import annotations

ENSEMBLE, PREPROCESSING, POSTPROCESSING = "ensemble", "preprocessing", "postprocessing"
TARGET, DRAFT, BLS = "tensorrt_llm", "tensorrt_llm_draft", "tensorrt_llm_bls"
ADD_SPECIAL_TOKENS = "add_special_tokens"  # trtspec's extension: an input of models with text input
TOKEN_CHANNELS = "token_channels"  # parameter in config.pbtxt of a model with channels (python_models/token_channel.py)
CHANNEL_PARAMETER, STREAM_PARAMETER = "trtspec_channel", "trtspec_stream"  # of requests
COUNTS_PARAMETER = "trtspec_counts"  # of requests whose channel needs counts
ENGINE_MODELS = {"target": TARGET, "draft": DRAFT}
SOCKETS = {"http": "http.sock", "metrics": "metrics.sock"}  # sockets of a server behind the proxy, by port name
DISCONNECTS = "departures"  # directory with a file per disconnected client, next to the sockets
