# SPDX-License-Identifier: Apache-2.0
"""The OpenAI-compatible entry: a process of its own that answers OpenAI's clients and asks Triton by gRPC.

    HTTP -> app, gate -> parameters, prompts -> tensors, triton (a gRPC stream a text) -> text -> answers

`python -m trtspec.openai --config FILE` runs it, `command` writes that file. What is heavy is imported there alone.
"""
