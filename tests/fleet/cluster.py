# SPDX-License-Identifier: Apache-2.0
"""A real Ray cluster of several nodes on loopback: one process group per node, each with its own store and labels."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OBJECT_STORE_BYTES = 80 << 20  # the smallest that Ray accepts is 75 MiB
LOOPBACK = "127.0.0.2"  # Ray replaces 127.0.0.1 in an address by the address of a network interface
BUSY_S = 60


def ray_environment(without: Path) -> dict[str, str]:
    """Return the variables of Ray's processes.

    jsonschema imports rfc3987_syntax if it is installed, which compiles a grammar for seconds in each of Ray's
    processes. Modules in `without` make that import fail.
    """
    without.mkdir(exist_ok=True)
    (without / "rfc3987_syntax.py").write_text("raise ImportError\n")
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(without), os.environ.get("PYTHONPATH", "")))),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_enable_metrics_collection": "0",
        "RAY_agent_register_timeout_ms": str(BUSY_S * 1000),
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "1000",
    }


class RayCluster:
    """A head without processors for tasks, and nodes that can be added and killed."""

    def __init__(self, variables: Mapping[str, str], client_port: int) -> None:
        from ray.cluster_utils import Cluster

        self.variables = dict(variables)
        with variables_set(self.variables):
            head = {"num_cpus": 0, "ray_client_server_port": client_port, **_COMMON}
            self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address: str = self._cluster.address
        self.client_port = client_port

    def add(self, cache: Path, labels: Mapping[str, str], num_cpus: int = 1, **more: Any) -> Any:
        """Start a node whose processes use the store below `cache`."""
        with variables_set({**self.variables, "TRTSPEC_CACHE": str(cache)}):
            return self._cluster.add_node(num_cpus=num_cpus, labels=dict(labels), **_COMMON, **more)

    def kill(self, node: Any) -> None:
        self._cluster.remove_node(node, allow_graceful=False)

    def kill_raylet(self, identity: str) -> None:
        """Kill only the raylet of the node with this id; a head's GCS goes on."""
        (node,) = [each for each in self._cluster.list_all_nodes() if each.node_id == identity]
        os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)

    def remove(self, node: Any) -> None:
        """Kill a node, and wait until the cluster has noticed, so that no task is sent to it."""
        self.kill(node)
        self._cluster.wait_for_nodes(BUSY_S)

    def close(self) -> None:
        self._cluster.shutdown()


_COMMON: dict[str, Any] = {
    "object_store_memory": OBJECT_STORE_BYTES,
    "include_dashboard": False,
    "node_ip_address": LOOPBACK,
}


@contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables while the block runs."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
