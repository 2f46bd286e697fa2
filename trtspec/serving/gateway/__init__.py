# SPDX-License-Identifier: Apache-2.0
"""The OpenAI-compatible gateway: a separate process that serves OpenAI clients and calls Triton over gRPC.

    HTTP -> app, admission -> parameters, prompts -> tensors, triton (one gRPC stream per text)
         -> generation -> response_format

`python -m trtspec.serving.gateway --config FILE` runs it; `command` writes that file.
"""
