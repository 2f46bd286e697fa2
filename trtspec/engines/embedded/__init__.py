# SPDX-License-Identifier: Apache-2.0
"""The embedded engine: runs converted TensorRT-LLM checkpoints in torch, on any machine."""

from trtspec.engines.embedded.engine import Engine
from trtspec.engines.embedded.request import EngineSettings, Request, Result, Sampling, Stats, Update
from trtspec.engines.embedded.running import Ticket

__all__ = ["Engine", "EngineSettings", "Request", "Result", "Sampling", "Stats", "Ticket", "Update"]
