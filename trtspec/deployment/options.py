# SPDX-License-Identifier: Apache-2.0
"""What is asked of a deployment, one value for every target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from trtspec.core.ports import LOOPBACK

OnEvent: TypeAlias = Callable[[str, str], None]  # (state, what happened): for people, as it happens
BeforeLive: TypeAlias = Callable[[str], None]  # gets the http address of a server that answered; raises to refuse it

DEFAULT_PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002, "openai": 9000}  # as in containers of Triton
PORTS = tuple(DEFAULT_PORTS)


@dataclass(frozen=True)
class DeployOptions:
    """How an artifact is to be served.

    Attributes:
        name: what the deployment is known by, in place of the recipe's name.
        host: the address that it listens at.
        openai_host: the address of the entry for OpenAI's clients; `host` where it is "".
        ports: by what answers there, of PORTS; those that are missing are left to the target.
        timeout_s: seconds until the first answer.
        drain_s: seconds that open requests get at the end; the target's own where it is None.
        skip_gates: gates that are not judged.
        manifest: the SHA-256 that the artifact's manifest must have; "" for any.
        trusted_report: the SHA-256 of the report in the artifact that settles its gates; "" for none.
        shares: percent of the requests that a new revision gets, one after the other; the recipe's where it is empty.
        shadow: percent of the others' requests that it gets as well, unheard; the recipe's where it is None.
        wait_warm: wait for a first text from each entry; a new revision of a live one has served texts before.
        settings: the target's own, by name.
        before_live: called once the server has answered; what it raises ends the deployment.
    """

    name: str | None = None
    host: str = LOOPBACK
    openai_host: str = ""
    ports: Mapping[str, int] = field(default_factory=dict)
    detach: bool = False
    timeout_s: float = 300.0
    drain_s: int | None = None
    skip_gates: tuple[str, ...] = ()
    manifest: str = ""
    trusted_report: str = ""
    shares: tuple[int, ...] = ()
    shadow: int | None = None
    wait_warm: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    on_event: OnEvent = lambda state, what: None
    before_live: BeforeLive | None = None

    def host_of(self, port_name: str) -> str:
        """Return the address at which a port, of PORTS, listens."""
        return (self.openai_host or self.host) if port_name == "openai" else self.host
