# SPDX-License-Identifier: Apache-2.0
"""The tools of the nodes that will run a recipe's engine builder, for a plan on a machine without them.

Step keys contain versions of the builder, the GPU and its driver. The plan takes them from the node that runs the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trtspec.backends.base import AUTO, needs_gpu
from trtspec.backends.context import BuilderTools
from trtspec.core.errors import TrtspecError
from trtspec.fleet.labels import Requirement
from trtspec.fleet.pool import Pool
from trtspec.recipe.schema import Engine

GPU_LABEL = "gpu"


def engine_labels(engine: Engine) -> dict[str, str]:
    """Return the labels of a node that builds or runs an engine: its GPU kind, and the engine's name and version."""
    gpu = {GPU_LABEL: engine.gpu.lower()} if engine.gpu else {}
    return {**gpu, engine.backend: engine.version} if engine.version and engine.backend != AUTO else gpu


class RemoteTools:
    """Probes the nodes of a pool; equal probes of several recipes run once."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._found: dict[tuple[Requirement, str], Mapping[str, BuilderTools]] = {}

    def probe(self, labels: Mapping[str, str], function: Callable[[], Any], engine: Engine) -> Any:
        """Return the result of a probe on the nodes that have `labels` and the labels of the engine.

        Without such a node, this machine is probed: the steps cannot be placed, or they wait for a node, which then
        compares its tools with the key. Raises TrtspecError if the nodes have different tools, because one
        key cannot stand for all of them.
        """
        wanted = {**labels, **engine_labels(engine)}
        requirement = Requirement(tuple(sorted(wanted.items())), int(needs_gpu(engine)))
        key = requirement, repr(function)
        if key not in self._found:
            self._found[key] = self._pool.call(function, requirement)
            _check_equal(self._found[key], requirement)
        return next(iter(self._found[key].values()), None) or function()


def _check_equal(found: Mapping[str, BuilderTools], requirement: Requirement) -> None:
    nodes = list(found.items())
    for name, tools in nodes[1:]:
        if tools.identity != nodes[0][1].identity:
            first = dict(nodes[0][1].identity)
            differing = [
                f"{each} {first.get(each) or 'absent'} and {value or 'absent'}"
                for each, value in tools.identity
                if first.get(each) != value
            ]
            raise TrtspecError(
                f"{nodes[0][0]} and {name} both have {requirement}, but other tools: {', '.join(differing)}",
                hint="give the nodes different labels, and name one of them in the recipe's fleet.labels",
            )
