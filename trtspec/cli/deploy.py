# SPDX-License-Identifier: Apache-2.0
"""`trtspec deploy`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtspec.cli.options import AllowCode, Artifact, Baseline, Json, ManifestDigest, SkipGate, Undecided
from trtspec.core.ports import LOOPBACK

if TYPE_CHECKING:
    from trtspec.bench.verification_report import LeftOut

ROOT = "it runs as root, and so will the server and the models in it; a user of its own is safer (--systemd)"
ROOT_NOTE = "warned-of-root"  # in the cache: the warning comes once on a machine
KEYS = "TRTSPEC_OPENAI_KEYS"
HttpPort = Annotated[int | None, typer.Option(help="HTTP port; by default the name's last one, 8000 or the next free.")]
GrpcPort = Annotated[int | None, typer.Option(help="gRPC port; likewise, from 8001 on.")]
MetricsPort = Annotated[int | None, typer.Option(help="Port of Triton's metrics; likewise, from 8002 on.")]
OpenAIPort = Annotated[int | None, typer.Option(help="Port of OpenAI's API; likewise, from 9000 on.")]


def deploy(
    artifact: Artifact,
    target: Annotated[str, typer.Option(help="Where to: local is this machine; docker, kubernetes.")] = "local",
    name: Annotated[str | None, typer.Option(help="What it is known by, instead of the recipe's name.")] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where the server listens; 0.0.0.0: on all networks.")
    ] = LOOPBACK,
    openai_host: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Where OpenAI's clients are served, if not where Triton listens."),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return and leave the server running.")] = False,
    http_port: HttpPort = None,
    grpc_port: GrpcPort = None,
    metrics_port: MetricsPort = None,
    openai_port: OpenAIPort = None,
    timeout: Annotated[float, typer.Option(help="Seconds until the first answer.", min=1)] = 300.0,
    wait_warm: Annotated[
        bool, typer.Option("--wait-warm", help="Wait for a first text by Triton's entry and by OpenAI's.")
    ] = False,
    drain: Annotated[
        int | None,
        typer.Option(help="Seconds that open requests get at the end; here 10, in containers the longest's.", min=1),
    ] = None,
    allow_code: AllowCode = None,
    skip_gate: SkipGate = None,
    undecided: Undecided = None,
    baseline: Baseline = None,
    manifest: ManifestDigest = None,
    trust_report: Annotated[
        str | None,
        typer.Option(
            metavar="DIGEST", help="Take the gates from the report in the artifact, of this digest (sha256:HEX)."
        ),
    ] = None,
    canary: Annotated[
        str | None,
        typer.Option(metavar="5%,25%,100%", help="Shares of a live one's requests that it gets; else the recipe's."),
    ] = None,
    shadow: Annotated[
        str | None,
        typer.Option(metavar="30%", help="Share of a live one's requests that it gets as well, unheard; 0%: none."),
    ] = None,
    systemd: Annotated[
        bool, typer.Option("--systemd", help="Print a systemd unit that serves it with these options, and end.")
    ] = False,
    image: Annotated[
        str | None, typer.Option(metavar="NAME@sha256:...", help="The container image, by digest.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="A setting of the target; repeatable.")
    ] = None,
    render: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the target's files there, and run nothing.")
    ] = None,
    json: Json = False,
) -> None:
    """Serve an artifact on Triton Inference Server, after its gates were seen to hold.

    Over a live one of the same name it gets a growing share of the requests, and takes its place or is rolled back.

    Example: trtspec deploy build/quickstart --detach
    """
    from trtspec.bench.gates import check_gate_names
    from trtspec.cli.progress import counter
    from trtspec.cli.render import note, print_json
    from trtspec.cli.verify import left_out_lines
    from trtspec.core.errors import DeployError
    from trtspec.deployment.base import deploy as serve
    from trtspec.deployment.base import render as write
    from trtspec.deployment.options import DeployOptions
    from trtspec.store.manifest import parse_expected

    settings = settings_of(option or (), image)
    ports = {"http": http_port, "grpc": grpc_port, "metrics": metrics_port, "openai": openai_port}
    if openai_host is not None and target != "local":
        hint = "compose files and manifests say where each port is reachable"
        raise DeployError(f"--openai-host belongs to --target local, not {target}", hint=hint)
    expected = parse_expected(manifest) if manifest else ""
    trusted = parse_expected(trust_report, "--trust-report") if trust_report else ""
    if render is not None:
        skip = tuple(sorted(check_gate_names(skip_gate or ())))
        files = write(
            artifact,
            target,
            render,
            name=name,
            host=host,
            ports=ports,
            skip=skip,
            drain_s=drain,
            manifest=expected,
            trusted_report=trusted,
            settings=settings,
        )
        show_rendered(target, render, files, json)
        return
    for line in exposures(host, openai_host or ""):
        note(f"warning: {line}", "yellow")
    if systemd:
        given = {
            "openai-host": openai_host,
            "target": target,
            "name": name,
            **{f"{which}-port": port for which, port in ports.items()},
        }
        more = {
            "drain": drain,
            "skip-gate": skip_gate,
            "undecided": undecided,
            "allow-code": allow_code,
            "baseline": baseline,
        }
        more |= {"manifest": manifest, "trust-report": trust_report}
        flags = ["--wait-warm"] if wait_warm else []
        print_unit(artifact, host, {**given, "timeout": timeout, **more}, flags, json=json)
        return
    if target == "local" and os.geteuid() == 0 and is_first_time(ROOT_NOTE):
        note(f"warning: {ROOT}", "yellow")
    left_out: list[LeftOut] = []

    def leave_out(those: Sequence[LeftOut]) -> None:
        left_out.extend(those)
        for line in left_out_lines(those):
            note(line, "yellow")

    options = DeployOptions(
        name=name,
        host=host,
        openai_host=openai_host or "",
        ports={which: port for which, port in ports.items() if port is not None},
        detach=detach,
        timeout_s=timeout,
        drain_s=drain,
        skip_gates=tuple(sorted(check_gate_names(skip_gate or ()))),
        manifest=expected,
        trusted_report=trusted,
        shares=shares_of(canary),
        shadow=shadow_of(shadow),
        wait_warm=wait_warm,
        settings=settings,
        on_event=lambda state, what: note(f"  {state:<7} {what}"),
    )
    with counter() as on_progress:
        deployment = serve(artifact, target, options, on_progress=on_progress, baseline=baseline, on_left_out=leave_out)
    document = deployment.as_dict() | {"left_out": [asdict(each) for each in left_out]}
    if json:
        print_json(document)
    else:
        show(document)
    if not detach and "rollout" not in document:
        note("press Ctrl-C to stop")
        deployment.wait()  # unbounded: a server in the foreground, as long as its owner wants


def exposures(host: str, openai_host: str) -> list[str]:
    """Return what a server and its entry for OpenAI's clients expose at their addresses; DeployError for no address."""
    from trtspec.deployment.network import exposure, gateway_exposure

    has_keys = bool(os.environ.get(KEYS))
    found = [exposure(host)]
    if found[0] and has_keys:
        keep = f"--host {LOOPBACK} --openai-host {openai_host or host} keeps those on loopback"
        found.append(f"{KEYS} guards OpenAI's API alone, and Triton's ports at {host} answer anybody; {keep}")
    if openai_host and openai_host != host:
        found.append(gateway_exposure(openai_host, has_keys=has_keys))
    return [line for line in found if line]


def is_first_time(note: str) -> bool:
    """Return whether something was not noted in the cache of this machine before, and note it."""
    from trtspec.core.paths import cache_dir

    path = cache_dir() / note
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:  # nothing can be noted there: rather twice than never
        return True
    return True


def print_unit(artifact: Path, host: str, given: Mapping[str, Any], flags: Sequence[str], *, json: bool) -> None:
    """Print a systemd unit; nothing is checked of the artifact before the unit is started."""
    from trtspec.cli.render import note, print_json
    from trtspec.deployment.systemd import render_unit, unit_warnings

    warnings = unit_warnings(artifact, os.environ)
    for line in warnings:
        note(f"warning: {line}", "yellow")
    said = {name: value if isinstance(value, list) else [value] for name, value in given.items() if value is not None}
    options = [word for name, values in said.items() for value in values for word in (f"--{name}", str(value))]
    unit = render_unit(artifact, host, [*options, *flags], given["drain"], given["openai-host"] or "")
    if json:
        print_json({"format_version": 1, "unit": unit, "warnings": warnings})
    else:
        sys.stdout.write(unit)


def settings_of(given: Sequence[str], image: str | None) -> dict[str, str]:
    """Return the target's settings by name; DeployError for one without a value, or given twice."""
    from trtspec.core.errors import DeployError

    pairs = [each.partition("=") for each in (*given, *([f"image={image}"] if image else []))]
    settings = {key: value for key, _, value in pairs}
    if not all(between for _, between, _ in pairs) or len(settings) < len(pairs):
        raise DeployError("--option is KEY=VALUE, each key once", hint="as --option namespace=serving")
    return settings


def shadow_of(share: str | None) -> int | None:
    """Return a percent as a number, None for none; DeployError for what is none."""
    from trtspec.core.errors import DeployError

    if share is None:
        return None
    digits = share.strip().removesuffix("%")
    if not digits.isdecimal() or int(digits) > 100:
        raise DeployError(f"--shadow {share}: expected a percent", hint="as --shadow 30%; 0% for none")
    return int(digits)


def shares_of(canary: str | None) -> tuple[int, ...]:
    """Return percents as numbers, () for none; DeployError for what are none, or do not grow."""
    from trtspec.core.errors import DeployError

    words = canary.split(",") if canary else []
    shares = [int(digits) for word in words if (digits := word.strip().removesuffix("%")).isdecimal()]
    if len(shares) < len(words) or any(not 1 <= share <= 100 for share in shares) or shares != sorted({*shares}):
        raise DeployError(f"--canary {canary}: expected growing percents", hint="as --canary 5%,25%,100%")
    return tuple(shares)


def show_rendered(target: str, out: Path, files: Sequence[str], as_json: bool) -> None:
    """Show which files were written."""
    from trtspec.cli.render import print_json, say

    if as_json:
        print_json({"format_version": 1, "target": target, "rendered": str(out), "files": list(files)})
        return
    for path in files:
        say(str(out / path))


def show(document: dict[str, object]) -> None:
    """Show where the server answers and how it is stopped."""
    from trtspec.cli.render import say

    endpoints = document["endpoints"]
    if isinstance(endpoints, dict):
        for name, url in endpoints.items():
            say(f"  {name:<7} {url}")
    say(f"{document['name']} is {document['state']}; stop it with: trtspec stop {document['name']}", "green")


command = deploy
