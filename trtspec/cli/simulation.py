# SPDX-License-Identifier: Apache-2.0
"""`trtspec bench --simulate-acceptance`: capacity tests with forced acceptance of drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtspec.cli.load import LoadOptions, bench_load
from trtspec.cli.load_results import show_mark, show_sides
from trtspec.cli.options import is_artifact
from trtspec.cli.progress import counter
from trtspec.cli.render import note, print_line, print_result
from trtspec.core.errors import TrtspecError

if TYPE_CHECKING:
    from trtspec.bench.speedup import BenchComparison
    from trtspec.store.artifact import Manifest

SimulateAcceptance = Annotated[
    str | None,
    typer.Option(metavar="LENGTH", help="Force acceptance for a capacity test: tokens per step, or rates by position."),
]
SimulateOut = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="With --simulate-acceptance: write the engine's own server command to DIR."),
]


def bench_simulated(
    what: str, acceptance: str, out: Path | None, load: LoadOptions, prompts: Path | None, max_tokens: int, runs: int,
    *, json: bool,
) -> int:  # fmt: skip
    """Measure an artifact with simulated acceptance, or write its engine's files to `out`; return the exit code.

    The results are printed only. They are not saved, because no other command may use them as evidence.
    """
    from trtspec.bench.artifact import read_artifact
    from trtspec.engine.simulated_acceptance import parse_simulated_acceptance

    if not is_artifact(what):
        raise TrtspecError(
            "--simulate-acceptance requires an artifact", where=what, hint="a running server is not changed"
        )
    root = Path(what)
    manifest = read_artifact(root)
    rates = parse_simulated_acceptance(acceptance, _draft_len(manifest))
    if out is not None:
        return _write(root, manifest, rates, out, json=json)
    if load.is_load:
        return _bench_load(root, manifest, rates, load, prompts, max_tokens, runs, json=json)
    if load.option_names:
        raise TrtspecError(
            f"{', '.join(load.option_names)} requires --concurrency or --rate", hint="add --concurrency 1,2,4,8"
        )
    return _bench_engine(root, manifest, rates, prompts, max_tokens, runs, json=json)


def _draft_len(manifest: Manifest) -> int:
    """Return the number of positions of a draft; raises TrtspecError for an artifact that does not speculate."""
    from trtspec.methods.base import find_method

    speculation = manifest.recipe.speculation
    method = find_method(speculation.method)
    shape = method.draft_shape(method.parse(dict(speculation.options)), speculation.draft_len or 0)
    if not shape.max_depth:
        raise TrtspecError("the artifact does not speculate, so there is no acceptance to simulate")
    return shape.max_depth


def _bench_engine(
    root: Path, manifest: Manifest, rates: Sequence[float], prompts: Path | None, max_tokens: int, runs: int, *,
    json: bool,
) -> int:  # fmt: skip
    """Measure one request at a time in this process."""
    from trtspec.bench.artifact import artifact_prompts, open_artifact
    from trtspec.bench.bench import measure_engine
    from trtspec.engine.simulated_acceptance import describe_simulation

    texts = [prompt.text for prompt in artifact_prompts(root, prompts)]
    simulated = manifest.model_copy(update={"simulated_acceptance": tuple(rates)})
    with counter() as on_progress, open_artifact(root, simulated) as artifact:
        comparison, _ = measure_engine(artifact, texts, max_tokens, runs, on_progress)
    measured = round(comparison.speculative.stats.mean_accepted_len, 4)
    document = comparison.as_dict() | {"name": manifest.recipe.name} | describe_simulation(rates, measured)
    del document["identical_texts"]  # they differ by design
    print_result(document, lambda: _show(comparison, document, str(root)), as_json=json)
    return 0


def _show(comparison: BenchComparison, document: dict[str, Any], what: str) -> None:
    show_sides(comparison, what)
    print_line(f"with speculation {comparison.speedup}")
    show_mark(document)


def _bench_load(
    root: Path, manifest: Manifest, rates: Sequence[float], load: LoadOptions, prompts: Path | None, max_tokens: int,
    runs: int, *, json: bool,
) -> int:  # fmt: skip
    """Measure a load on a private server, whose texts all have the same length."""
    from trtspec.deployment.simulation import simulated_server

    load = replace(load, output_tokens=load.output_tokens or max_tokens)
    with simulated_server(root, manifest, rates, lambda state, what: note(f"  {state:<7} {what}")) as name:
        return bench_load(name, load, prompts, max_tokens, runs, None, json=json)


def _write(root: Path, manifest: Manifest, rates: Sequence[float], out: Path, *, json: bool) -> int:
    from trtspec.deployment.simulation import write_simulation
    from trtspec.engine.simulated_acceptance import describe_simulation

    files = write_simulation(root, manifest, rates, out)
    document = {"format_version": 1, "written": str(out), "files": files} | describe_simulation(rates, None)
    print_result(document, lambda: print_line("\n".join(str(out / path) for path in files)), as_json=json)
    return 0
