# SPDX-License-Identifier: Apache-2.0
"""`trtspec generate`: generate text from an artifact in this process."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import trtspec
from trtspec.cli.options import AllowCode, Artifact, Json
from trtspec.cli.progress import counter
from trtspec.cli.render import note, print_json, print_result
from trtspec.core.errors import TrtspecError
from trtspec.core.files import UnreadableFile, describe_read_error, read_bounded
from trtspec.engine.generation.request import MAX_GUIDE_BYTES

if TYPE_CHECKING:
    from trtspec.bench.artifact import GeneratedText

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # except line feeds and tabs


def generate(
    artifact: Artifact,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="Prompt text.")] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File of prompts, or a set listed by `trtspec datasets --list`."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Maximum number of new tokens.")] = 64,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Sample from the K most probable tokens; 0 for all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Sample from the most probable tokens with total probability P.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Stop after this text; repeatable.")] = None,
    json_schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Generate JSON that fits the schema in this file.")
    ] = None,
    regex: Annotated[str | None, typer.Option(metavar="PATTERN", help="Generate text that matches a pattern.")] = None,
    grammar: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Generate text of a Lark or GBNF grammar in this file.")
    ] = None,
    allow_code: AllowCode = None,
    json: Json = False,
) -> None:
    """Generate text from an artifact in this process.

    Example: trtspec generate build/quickstart -p '[{"id": 612, "name": "ada",'
    """
    if (prompt is None) == (prompts is None):
        raise TrtspecError("generate requires either --prompt TEXT or --prompts FILE")
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    guided = guide_options(json_schema, regex, grammar)
    options: dict[str, Any] = {"max_tokens": max_tokens, "stop": stop or (), **guided, **sampling}
    if prompts is not None:
        with counter():  # shows activity
            many = trtspec.generate_all(artifact, prompts, **options)
        print_json({"format_version": 1, "results": [{"id": name, **document(each)} for name, each in many]})
        return
    generated = trtspec.generate(artifact, prompt or "", on_text=None if json else write, **options)
    values = document(generated)

    def show() -> None:
        sys.stdout.write("\n")
        rate, length = values["acceptance_rate"], values["mean_accepted_len"]
        drafts = f", acceptance rate {rate:.3f}, {length:.2f} tokens per step" if values["drafted"] else ""
        drafts += "" if generated.acceptance == "exact" else f", {generated.acceptance} acceptance: lossy"
        note(
            f"{values['new_tokens']} tokens in {values['seconds']:.2f} s, "
            f"{values['tokens_per_s']:.0f} tokens/s{drafts}",
            "dim",
        )

    print_result({"format_version": 1, **values}, show, as_json=json)


def guide_options(json_schema: Path | None, regex: str | None, grammar: Path | None) -> dict[str, str]:
    """Return the guide of the options, at most one of which may be set; raise TrtspecError if it cannot be read."""
    given = {"json_schema": json_schema, "regex": regex, "ebnf_grammar": grammar}
    kinds = [kind for kind, value in given.items() if value is not None]
    if not kinds:
        return {}
    if len(kinds) > 1:
        raise TrtspecError("--json-schema, --regex and --grammar exclude each other")
    guide = given[kinds[0]]
    if isinstance(guide, Path):
        try:
            guide = read_bounded(guide, MAX_GUIDE_BYTES).decode()
        except (UnreadableFile, OSError) as error:
            raise TrtspecError(describe_read_error(error), where=str(guide)) from None
        except UnicodeDecodeError:
            raise TrtspecError("not UTF-8", where=str(guide)) from None
    return {"guide_type": kinds[0], "guide": guide or ""}


def document(generated: GeneratedText) -> dict[str, Any]:
    """Return the JSON document of `trtspec generate --json` for one text."""
    stats = generated.result.stats
    return {
        "text": generated.text,
        "token_ids": list(generated.result.ids),
        "finish_reason": generated.result.finish_reason,
        "prompt_tokens": stats.prompt_tokens,
        "new_tokens": stats.new_tokens,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "accepted_by_position": list(stats.accepted_by_position),
        "acceptance": generated.acceptance,
        "acceptance_rate": round(stats.acceptance_rate, 4),
        "mean_accepted_len": round(stats.mean_accepted_len, 4),
        "seconds": round(generated.seconds, 4),
        "tokens_per_s": round(stats.new_tokens / generated.seconds, 2),
    }


def write(text: str) -> None:
    """Print a piece of streamed text; on a terminal, escape its control characters."""
    if sys.stdout.isatty():
        text = CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    sys.stdout.write(text)
    sys.stdout.flush()


panel = "Measure"
command = generate
