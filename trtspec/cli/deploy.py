# SPDX-License-Identifier: Apache-2.0
"""`trtspec deploy`: serve an artifact on Triton Inference Server."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import trtspec
from trtspec.cli.options import AllowCode, Baseline, Json, ManifestDigest, SignaturePolicy, SkipGate, Undecided
from trtspec.cli.progress import counter, transfer_bars
from trtspec.cli.render import note, print_line, print_result, show_diagnostics, warn
from trtspec.cli.verify import skipped_check_lines
from trtspec.core.errors import DeployError
from trtspec.core.paths import cache_dir
from trtspec.core.ports import LOOPBACK

if TYPE_CHECKING:
    from trtspec.bench.gates import SkippedCheck
    from trtspec.deployment.options import DeployOptions

ArtifactOrRecipe = Annotated[
    str,
    typer.Argument(
        metavar="ARTIFACT",
        help="Artifact directory or oci:// location, or with --render a recipe.",
        show_default=False,
    ),
]
ROOT = "running as root, as will the server and its models; use a dedicated user (--systemd)"
ROOT_NOTE = "warned-of-root"  # marker in the cache: warn once per machine
KEYS = "TRTSPEC_OPENAI_KEYS"


def deploy(
    artifact: ArtifactOrRecipe,
    target: Annotated[
        str, typer.Option(help="Deployment target, such as local (this machine), docker or kubernetes.")
    ] = "local",
    name: Annotated[str | None, typer.Option(help="Deployment name (default: the recipe's name).")] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Bind address of the server; 0.0.0.0 for all networks.")
    ] = LOOPBACK,
    openai_host: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Bind address of the OpenAI API (default: --host)."),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Run the server in the background.")] = False,
    http_port: Annotated[
        int | None, typer.Option(help="HTTP port (default: the last one used, else the first free from 8000).")
    ] = None,
    grpc_port: Annotated[int | None, typer.Option(help="gRPC port (default: as --http-port, from 8001).")] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Metrics port of Triton (default: as --http-port, from 8002).")
    ] = None,
    openai_port: Annotated[
        int | None, typer.Option(help="OpenAI API port (default: as --http-port, from 9000).")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait until the server is ready.", min=1)] = 300.0,
    wait_warm: Annotated[
        bool, typer.Option("--wait-for-warmup", help="Wait until Triton and the OpenAI API have generated a text.")
    ] = False,
    drain: Annotated[
        int | None,
        typer.Option(
            help="Seconds for open requests at shutdown (default: 10; in containers, the longest request).", min=1
        ),
    ] = None,
    allow_code: AllowCode = None,
    skip_gate: SkipGate = None,
    undecided: Undecided = None,
    baseline: Baseline = None,
    manifest: ManifestDigest = None,
    signature: SignaturePolicy = None,
    trust_report: Annotated[
        str | None,
        typer.Option(
            metavar="DIGEST", help="Use the artifact's verification report if it has this digest (sha256:HEX)."
        ),
    ] = None,
    canary: Annotated[
        str | None,
        typer.Option(
            metavar="5%,25%,100%", help="Traffic shares of a rollout over a live revision (default: the recipe's)."
        ),
    ] = None,
    shadow: Annotated[
        str | None,
        typer.Option(metavar="30%", help="Share of live requests to mirror; responses are discarded."),
    ] = None,
    systemd: Annotated[
        bool, typer.Option("--systemd", help="Print a systemd unit with these options and exit.")
    ] = False,
    image: Annotated[str | None, typer.Option(metavar="NAME@sha256:...", help="Container image, by digest.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--target-option", metavar="KEY=VALUE", help="Setting of the deployment target; repeatable."),
    ] = None,
    render: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Only write the deployment files to this directory; also of a recipe."),
    ] = None,
    json: Json = False,
) -> None:
    """Serve an artifact on Triton Inference Server.

    The artifact's gates are checked first. If a deployment of this name is live, the new revision receives a growing
    share of its requests and is then promoted or rolled back.

    Example: trtspec deploy build/quickstart --detach
    """
    from trtspec.bench.gates import check_gate_names
    from trtspec.deployment.base import obtain_artifact, serves_in_containers
    from trtspec.deployment.options import DeployOptions
    from trtspec.store.artifact import parse_expected
    from trtspec.store.signatures.policy import find_policy

    settings = parse_pairs("--target-option", [*(option or ()), *([f"image={image}"] if image else [])])
    asked = {"http": http_port, "grpc": grpc_port, "metrics": metrics_port, "openai": openai_port}
    ports = {service: port for service, port in asked.items() if port is not None}
    if openai_host is not None and serves_in_containers(target):
        hint = "set the address in the compose file or manifest"
        raise DeployError(f"target {target} does not support --openai-host", hint=hint)
    expected = parse_expected(manifest or "")
    trusted = parse_expected(trust_report or "", "--trust-report")
    policy = None if systemd or is_unbuilt(artifact, render) else find_policy(signature)
    with transfer_bars() as on_transfer:
        place, expected, source = obtain_artifact(artifact, target, expected, policy=policy, on_progress=on_transfer)
    if render is None:
        refuse_recipe(place)
    else:
        options = DeployOptions(
            name=name,
            host=host,
            ports=ports,
            drain_s=drain,
            skip_gates=tuple(sorted(check_gate_names(skip_gate or ()))),
            manifest=expected,
            trusted_report=trusted,
            settings=settings,
            source=source,
        )
        files = write_files(place, target, render, options)
        pinned = {"source": source.address} if source else {}
        if source:
            note(f"  artifact  {source.address}")
        print_result(
            {"format_version": 1, "target": target, "rendered": str(render), "files": files, **pinned},
            lambda: print_line("\n".join(str(render / path) for path in files)),
            as_json=json,
        )
        return
    for line in exposure_warnings(host, openai_host or ""):
        warn(line)
    if systemd:
        given = {
            "openai-host": openai_host,
            "target": target,
            "name": name,
            **{f"{service}-port": port for service, port in ports.items()},
            "timeout": timeout,
            "drain": drain,
            "skip-gate": skip_gate,
            "undecided": undecided,
            "allow-code": allow_code,
            "baseline": baseline,
            "manifest": manifest,
            "signature": policy_path(signature),
            "trust-report": trust_report,
        }
        print_unit(place, host, given, ["--wait-for-warmup"] if wait_warm else [], json=json)
        return
    if os.geteuid() == 0 and not serves_in_containers(target) and is_first_time(ROOT_NOTE):
        warn(ROOT)
    skipped: list[SkippedCheck] = []

    def on_skipped(checks: Sequence[SkippedCheck]) -> None:
        skipped.extend(checks)
        for line in skipped_check_lines(checks):
            note(line, "yellow")

    with counter() as on_progress:
        deployment = trtspec.deploy(
            artifact if source else place,
            target=target,
            name=name,
            host=host,
            openai_host=openai_host or "",
            ports=ports,
            detach=detach,
            timeout_s=timeout,
            wait_for_warmup=wait_warm,
            drain_s=drain,
            skip_gates=skip_gate or (),
            baseline=baseline,
            manifest=f"sha256:{expected}" if expected else "",
            signature=signature or "",
            trust_report=trust_report or "",
            canary=parse_canary_shares(canary),
            shadow=parse_mirror_share(shadow),
            settings=settings,
            on_progress=on_progress,
            on_event=lambda state, what: note(f"  {state:<7} {what}"),
            on_skipped=on_skipped,
        )
    document = deployment.as_dict() | {"left_out": [asdict(each) for each in skipped]}
    print_result(document, lambda: show(document), as_json=json)
    if not detach and "rollout" not in document:
        note("press Ctrl-C to stop")
        deployment.wait()  # unbounded: a foreground server runs until interrupted


def is_recipe(path: Path) -> bool:
    """Return whether a path is not a directory, but a recipe or the name of a shipped one."""
    from trtspec.recipe.load import find_recipe

    return not path.is_dir() and find_recipe(path).is_file()


def policy_path(signature: Path | None) -> Path | None:
    """Return the absolute path of the policy in an option or in the environment, which a unit does not inherit."""
    from trtspec.store.signatures.policy import VARIABLE

    chosen = signature or os.environ.get(VARIABLE)
    return Path(chosen).resolve() if chosen else None


def is_unbuilt(artifact: str, render: Path | None) -> bool:
    """Return whether files are rendered for a recipe, whose artifact does not exist yet."""
    from trtspec.store.registries.repository import is_location

    return render is not None and not is_location(artifact) and is_recipe(Path(artifact))


def refuse_recipe(path: Path) -> None:
    """Raise DeployError if a path is a recipe's, whose artifact has to be built first."""
    if is_recipe(path):
        hint = (
            f"trtspec build {path}, then trtspec deploy build/NAME; before the build, --render DIR writes the files of "
            "containers, and --systemd takes build/NAME, which need not exist yet"
        )
        raise DeployError(f"{path} is a recipe, not an artifact", hint=hint)


def write_files(path: Path, target: str, out: Path, options: DeployOptions) -> list[str]:
    """Write the files that serve an artifact, or a recipe's artifact before it is built, and return their paths."""
    if not is_recipe(path):
        from trtspec.deployment.base import render

        return render(path, target, out, options)
    from trtspec.deployment.unbuilt import render_recipe
    from trtspec.recipe.load import load_recipe

    files, warnings = render_recipe(load_recipe(path), target, out, options)
    show_diagnostics(warnings)
    return files


def exposure_warnings(host: str, openai_host: str) -> list[str]:
    """Return warnings about services of the server and its OpenAI gateway that other machines can reach.

    Raises DeployError for an invalid address.
    """
    from trtspec.deployment.options import exposure_warning, gateway_exposure_warning

    has_keys = bool(os.environ.get(KEYS))
    found = [exposure_warning(host)]
    if found[0] and has_keys:
        keep = f"--host {LOOPBACK} --openai-host {openai_host or host} keeps them on loopback"
        found.append(f"{KEYS} protects only the OpenAI API; Triton's ports at {host} are unprotected; {keep}")
    if openai_host and openai_host != host:
        found.append(gateway_exposure_warning(openai_host, has_keys=has_keys))
    return [line for line in found if line]


def is_first_time(note: str) -> bool:
    """Create a marker in the cache of this machine; return whether it was missing."""
    path = cache_dir() / note
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:  # the cache is not writable: repeat the warning
        return True
    return True


def print_unit(artifact: Path, host: str, given: Mapping[str, Any], flags: Sequence[str], *, json: bool) -> None:
    """Print a systemd unit; the artifact is checked only when the unit starts."""
    from trtspec.deployment.systemd import render_unit, unit_warnings

    warnings = unit_warnings(artifact, os.environ)
    for line in warnings:
        warn(line)
    lists = {name: value if isinstance(value, list) else [value] for name, value in given.items() if value is not None}
    options = [word for name, values in lists.items() for value in values for word in (f"--{name}", str(value))]
    unit = render_unit(artifact, host, [*options, *flags], given["drain"], given["openai-host"] or "")
    document = {"format_version": 1, "unit": unit, "warnings": warnings}
    print_result(document, lambda: sys.stdout.write(unit), as_json=json)


def parse_pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """Parse the KEY=VALUE values of a repeatable option; raise DeployError for a missing value or a repeated key."""
    pairs = [each.partition("=") for each in given]
    settings = {key: value for key, _, value in pairs}
    if not all(between for _, between, _ in pairs) or len(settings) < len(pairs):
        raise DeployError(f"{option} requires KEY=VALUE, each key once", hint=f"e.g. {option} namespace=serving")
    return settings


def parse_mirror_share(share: str | None) -> int | None:
    """Parse a percentage from 0 to 100, such as "30%", or pass on None; raise DeployError if it is invalid."""
    if share is None:
        return None
    digits = share.strip().removesuffix("%")
    if not digits.isdecimal() or int(digits) > 100:
        raise DeployError(f"--shadow {share}: expected a percentage", hint="e.g. --shadow 30%; 0% disables mirroring")
    return int(digits)


def parse_canary_shares(canary: str | None) -> tuple[int, ...]:
    """Parse increasing percentages such as "5%,25%,100%", or return () for None; raise DeployError if invalid."""
    words = canary.split(",") if canary else []
    shares = [int(digits) for word in words if (digits := word.strip().removesuffix("%")).isdecimal()]
    if len(shares) < len(words) or any(not 1 <= share <= 100 for share in shares) or shares != sorted({*shares}):
        raise DeployError(f"--canary {canary}: expected increasing percentages", hint="e.g. --canary 5%,25%,100%")
    return tuple(shares)


def show(document: dict[str, Any]) -> None:
    """Show the endpoints and the command that stops the server."""
    for name, url in document["endpoints"].items():
        print_line(f"  {name:<7} {url}")
    print_line(f"{document['name']} is {document['state']}; stop it with: trtspec stop {document['name']}", "green")


panel = "Serve"
everyday = 5
command = deploy
