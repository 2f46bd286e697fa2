# SPDX-License-Identifier: Apache-2.0
"""`trtspec baseline`: measure the target without speculation."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated, Any

import typer

from trtspec.cli import completing
from trtspec.cli.options import AllowCode, Json, Prompts, is_artifact
from trtspec.cli.progress import counter
from trtspec.cli.render import note, print_line, print_result, show_table, write_output
from trtspec.core.errors import DeployError


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
    the versions; `trtspec readiness` reads it.

    Example: trtspec baseline build/quickstart -o baseline.json
    """
    from trtspec.bench.documents import save_document

    with counter() as on_progress:
        root, document = _measure(what, prompts, max_tokens, runs, on_progress)
    save_document(root, document["kind"], document)
    if out is not None:
        write_output(out, json_format.dumps(document, indent=1) + "\n", "the result")
        note(f"{out}: written")
    print_result(document, lambda: show(document), as_json=json)


def _measure(what: str, file: Path | None, max_tokens: int, runs: int, on_progress: Any) -> tuple[Path, dict[str, Any]]:
    from trtspec.bench import bench as measuring
    from trtspec.bench.artifact import artifact_prompts, open_artifact, read_artifact
    from trtspec.bench.gates import PROCESS, SERVER
    from trtspec.serving.triton.client import Client

    url, root = ("", Path(what)) if is_artifact(what) else _served(what)
    manifest, asked = read_artifact(root), artifact_prompts(root, file)
    if url:
        ask = measuring.ask_server(Client.at(url), manifest, max_tokens)
        found = measuring.measure_baseline(ask, asked, runs, on_progress)
    else:
        with open_artifact(root, manifest) as artifact:
            ask = measuring.ask_engine(artifact, max_tokens)
            found = measuring.measure_baseline(ask, asked, runs, on_progress)
    measured_by = SERVER if url else PROCESS
    return root, measuring.describe_baseline(root, manifest, asked, max_tokens, found, measured_by)


def _served(name: str) -> tuple[str, Path]:
    """Return URL and artifact of a deployment; raise DeployError for a URL or if the artifact was rebuilt since."""
    from trtspec.deployment.base import resolve_server_address
    from trtspec.store.artifact import manifest_sha256

    url, document = resolve_server_address(name)
    if not document:
        raise DeployError("a URL does not identify the artifact", where=name, hint="pass the name of a deployment")
    root = Path(document["artifact"])
    if document.get("manifest", "") not in ("", manifest_sha256(root)):
        raise DeployError("the artifact was rebuilt after its deployment", where=str(root), hint="deploy it again")
    return url, root


def show(document: dict[str, Any]) -> None:
    """Show the measurements and the machine on which they were taken."""
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
