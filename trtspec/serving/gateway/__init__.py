# SPDX-License-Identifier: Apache-2.0
"""The OpenAI-compatible gateway: a separate process that calls Triton over gRPC.

    HTTP -> connections, app, http, admission -> router -> completions, parameters, prompts
         -> triton (one gRPC stream per completion) -> generation (the response)

`python -m trtspec.serving.gateway --config FILE` runs the gateway. `command` writes FILE.
"""
