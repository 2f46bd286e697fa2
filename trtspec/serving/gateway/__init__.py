# SPDX-License-Identifier: Apache-2.0
"""The OpenAI-compatible gateway: a separate process that calls Triton over gRPC.

    HTTP -> app, admission -> parameters, prompts -> tensors, triton (one gRPC stream per completion)
         -> generation -> response_format

`python -m trtspec.serving.gateway --config FILE` runs the gateway; `command` writes the file.
"""
