# SPDX-License-Identifier: Apache-2.0
"""`trtspec deploy`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.cli.options import Artifact, Baseline, Json, SkipGate
from trtspec.system import LOOPBACK

if TYPE_CHECKING:
    from trtspec.measure.report import LeftOut

Port = Annotated[int | None, typer.Option(help="A port; a free one is found where none is given.")]


def deploy(
    artifact: Artifact,
    target: Annotated[str, typer.Option(help="Where to: local is this machine.")] = "local",
    name: Annotated[str | None, typer.Option(help="What it is known by, instead of the recipe's name.")] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where the server listens; 0.0.0.0: on all networks.")
    ] = LOOPBACK,
    detach: Annotated[bool, typer.Option("--detach", help="Return and leave the server running.")] = False,
    http_port: Port = None,
    grpc_port: Port = None,
    metrics_port: Port = None,
    timeout: Annotated[float, typer.Option(help="Seconds until the first answer.", min=1)] = 300.0,
    skip_gate: SkipGate = None,
    baseline: Baseline = None,
    json: Json = False,
) -> None:
    """Serve an artifact on Triton Inference Server, after its gates were seen to hold.

    Example: trtspec deploy build/quickstart --detach
    """
    from trtspec.cli.progress import counter
    from trtspec.cli.render import note, print_json
    from trtspec.cli.verify import left_out_lines
    from trtspec.deploy.address import exposure
    from trtspec.deploy.base import deploy as serve
    from trtspec.measure.gates import check_gate_names

    if exposed := exposure(host):
        note(f"warning: {exposed}", "yellow")
    left_out: list[LeftOut] = []

    def leave_out(those: Sequence[LeftOut]) -> None:
        left_out.extend(those)
        for line in left_out_lines(those):
            note(line, "yellow")

    with counter() as on_progress:
        deployment = serve(
            artifact,
            target,
            on_progress=on_progress,
            skip=sorted(check_gate_names(skip_gate or ())),
            baseline=baseline,
            on_left_out=leave_out,
            name=name,
            host=host,
            http_port=http_port,
            grpc_port=grpc_port,
            metrics_port=metrics_port,
            detach=detach,
            timeout_s=timeout,
            on_event=lambda state, what: note(f"  {state:<7} {what}"),
        )
    document = deployment.as_dict() | {"left_out": [asdict(each) for each in left_out]}
    if json:
        print_json(document)
    else:
        show(document)
    if not detach:
        note("press Ctrl-C to stop")
        deployment.wait()  # unbounded: a server in the foreground, as long as its owner wants


def show(document: dict[str, object]) -> None:
    """Show where the server answers and how it is stopped."""
    from trtspec.cli.render import say

    endpoints = document["endpoints"]
    if isinstance(endpoints, dict):
        for name, url in endpoints.items():
            say(f"  {name:<7} {url}")
    say(f"{document['name']} is {document['state']}; stop it with: trtspec stop {document['name']}", "green")


command = deploy
