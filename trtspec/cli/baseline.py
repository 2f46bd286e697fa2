# SPDX-License-Identifier: Apache-2.0
"""`trtspec baseline`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from trtspec.cli import completing
from trtspec.cli.options import AllowCode, Json, Prompts


def baseline(
    what: Annotated[
        str,
        typer.Argument(
            metavar="ARTIFACT-or-NAME",
            help="Artifact (measured in this process) or deployment name.",
            show_default=False,
            autocompletion=completing.deployments,
        ),
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the result as JSON to this file.")] = None,
    prompts: Prompts = None,
    max_tokens: Annotated[int, typer.Option(help="New tokens per prompt.", min=1)] = 64,
    runs: Annotated[int, typer.Option(help="Number of runs over the prompts.", min=1)] = 3,
    allow_code: AllowCode = None,
    json: Json = False,
) -> None:
    """Measure the target without speculation.

    Requests are sent one at a time. The result records the digests of the target and of the prompts, the machine and
    the versions; `trtspec checklist` reads it.

    Example: trtspec baseline build/quickstart -o baseline.json
    """
    from trtspec.bench.documents import save_document
    from trtspec.cli.progress import counter
    from trtspec.cli.render import note, print_json

    with counter() as on_progress:
        root, document = _measure(what, prompts, max_tokens, runs, on_progress)
    save_document(root, document["kind"], document)
    if out is not None:
        _write(out, document)
        note(f"{out}: written")
    if json:
        print_json(document)
    else:
        show(document)


def _measure(what: str, file: Path | None, max_tokens: int, runs: int, on_progress: Any) -> tuple[Path, dict[str, Any]]:
    from trtspec.bench import bench as measuring
    from trtspec.bench.artifact import artifact_prompts, open_artifact, read_artifact
    from trtspec.bench.gates import PROCESS, SERVER

    if "://" not in what and (Path(what).exists() or "/" in what):
        root = Path(what)
        manifest, asked = read_artifact(root), artifact_prompts(root, file)
        with open_artifact(root, manifest) as artifact:
            found = measuring.measure_baseline(measuring.ask_engine(artifact, max_tokens), asked, runs, on_progress)
        return root, measuring.describe_baseline(root, manifest, asked, max_tokens, found, PROCESS)
    client, root = _served(what)
    manifest, asked = read_artifact(root), artifact_prompts(root, file)
    found = measuring.measure_baseline(measuring.ask_server(client, manifest, max_tokens), asked, runs, on_progress)
    return root, measuring.describe_baseline(root, manifest, asked, max_tokens, found, SERVER)


def _served(name: str) -> tuple[Any, Path]:
    """Return a client and the artifact of a deployment; raise DeployError if the artifact was rebuilt since."""
    from trtspec.core.errors import DeployError
    from trtspec.deployment.base import resolve_server_address
    from trtspec.serving.triton.client import Client
    from trtspec.store.artifact import manifest_sha256

    url, document = resolve_server_address(name)
    if not document:
        raise DeployError("a URL does not identify the artifact", where=name, hint="pass the name of a deployment")
    root = Path(document["artifact"])
    if document.get("manifest", "") not in ("", manifest_sha256(root)):
        raise DeployError("the artifact was rebuilt after its deployment", where=str(root), hint="deploy it again")
    return Client.at(url), root


def _write(out: Path, document: dict[str, Any]) -> None:
    import json

    from trtspec.core.errors import TrtspecError
    from trtspec.core.files import replace_file

    try:
        replace_file(out, json.dumps(document, indent=1).encode() + b"\n")
    except OSError as error:
        raise TrtspecError(f"cannot write the result: {error.strerror}", where=str(out)) from None


def show(document: dict[str, Any]) -> None:
    """Show the measurements and where they were taken."""
    from trtspec.cli.render import print_line, show_table

    rows = [
        ("seconds per request", *(f"{document['request_s'][key]:.3f}" for key in ("mean", "p50", "p95"))),
        ("milliseconds per token", *(f"{document['ms_per_token'].get(key, 0):.2f}" for key in ("mean", "p50", "p95"))),
    ]
    title = f"{document['name']}: {document['prompts']['count']} prompts, at most {document['max_tokens']} tokens each"
    show_table(title, ("target alone", "mean", "median", "p95"), rows, (1, 2, 3))
    machine, engine = document["machine"], document["engine"]
    where = ", ".join(machine["gpus"]) or f"{machine['cores']} cores of {machine['cpu']}"
    print_line(f"{engine['backend']} engine, {where}")
    print_line(f"{document['median_tokens_per_s']:.0f} tokens/s (median of {document['runs']} runs)")


panel = "Measure"
command = baseline
