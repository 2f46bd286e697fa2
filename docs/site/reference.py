# SPDX-License-Identifier: Apache-2.0
"""The reference, generated from the code: each page is a function that returns Markdown.

docs/support.md is also in the repository: `python -m docs.site.reference` writes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from docs.site.markdown import anchor, code, escape, table
from docs.site.schemas import described, schema_objects, schema_rows
from docs.site.support import (
    LEGEND,
    MODEL_LEGEND,
    converted_classes,
    model_classes,
    model_support,
    support_table,
    version_table,
)
from trtspec.backends.base import backends
from trtspec.cli.app import EXAMPLE, INTERNAL_ERROR, INTERRUPTED, OTHER, PANELS, make_command
from trtspec.cli.compare import EXIT_DIFFERENT
from trtspec.cli.plan import EXIT_WORK_PENDING
from trtspec.cli.render import render_error
from trtspec.core import errors
from trtspec.core.errors import TrtspecError
from trtspec.core.gpus import GPUS
from trtspec.core.paths import model_repository_dir
from trtspec.core.registry import discover
from trtspec.methods.base import ATTRIBUTE, PACKAGE, Method
from trtspec.planning import documents
from trtspec.recipe.schema import Recipe, recipe_json_schema
from trtspec.report.monitoring.configuration import rules
from trtspec.serving.gateway import metrics as gateway_metrics
from trtspec.serving.triton.config import ENUMS, load_config
from trtspec.serving.triton.python_models.metrics import FAMILIES

SUPPORT = Path(__file__).parents[1] / "support.md"
KEYS = ("key", "type", "default", "description")


def generated_pages() -> dict[str, str]:
    """Return the generated pages by their place in the site."""
    return {f"reference/{name}.md": f"{page()}".rstrip() + "\n" for name, page in PAGES.items()}


def commands_page() -> str:
    """Return every command with its arguments and options, by panel, as `--help` shows them."""
    group = make_command()
    root = group.make_context("trtspec", [], resilient_parsing=True)
    panels: dict[str, list[Any]] = {panel: [] for panel in (*PANELS, OTHER)}
    for name in group.list_commands(root):
        command = group.get_command(root, name)
        panels[getattr(command, "rich_help_panel", None) or OTHER].append(command)
    page = (
        "# Commands\n\nThis page is generated from the command line itself. `trtspec COMMAND --help` prints the same.\n"
        "[interface.md](../interface.md) describes the output.\n\n## Before the command\n\n"
    )
    page += _options(group, root, ("option", "description"))
    for panel, commands in panels.items():
        if commands:
            page += f"## {panel}\n\n" + "".join(_command(command, root) for command in commands)
    return page


def _command(command: Any, root: Any) -> str:
    context = command.make_context(command.name, [], parent=root, resilient_parsing=True)
    description, _, example = (command.help or "").rpartition(EXAMPLE)
    usage = " ".join(["trtspec", command.name, *command.collect_usage_pieces(context)])
    return (
        f"### {command.name}\n\n{escape_paragraphs(description)}\n\n```text\n{usage}\n```\n\n"
        + _options(command, context, ("argument or option", "description"))
        + (f"Example:\n\n```sh\n{' '.join(example.split())}\n```\n\n" if example else "")
    )


def escape_paragraphs(text: str) -> str:
    """Return a plain text of several paragraphs as Markdown."""
    return "\n\n".join(escape(each).replace(r"\|", "|") for each in re.split(r"\n\s*\n", text.strip()))


def _options(command: Any, context: Any, columns: tuple[str, str]) -> str:
    rows = []
    for parameter in command.get_params(context):
        if record := parameter.get_help_record(context):
            name, text = record
            is_option = parameter.param_type_name == "option"
            rows.append((code(name if is_option else re.sub(r" <[^|>]*>$", "", name)), escape(text)))
    return table(columns, rows)


def recipe_page() -> str:
    """Return every key of a recipe with its type, default and description, by section."""
    page = (
        "# Recipe keys\n\nThis page is generated from the recipe's schema, which `trtspec schema` prints for editors.\n"
        "[recipe.md](../recipe.md) describes how recipes are written, combined and overridden with `--set`.\n\n"
    )
    schema = Recipe.model_json_schema()
    extended = recipe_json_schema()["properties"]
    schema["properties"] |= {key: extended[key] for key in ("extends", "matrix")}
    for path, section in schema_objects(schema):
        page += f"## {path or 'The recipe'}\n\n" + described(section)
        page += table(
            KEYS, schema_rows(section, lambda key, _: f"[mapping](#{anchor(key)})", f"{path}." if path else "")
        )
    return page + _method_options()


def _method_options() -> str:
    page = "## Options of methods\n\nThe keys of `speculation.options` depend on `speculation.method`.\n\n"
    methods: dict[str, Method] = discover(PACKAGE, ATTRIBUTE)
    for name, method in methods.items():
        lens = method.draft_lens
        page += f"### {name}\n\n{escape(method.summary)}\n\n"
        page += f"`speculation.draft_len`: from {lens[0]} to {lens[-1]}.\n\n" if lens else ""
        schema = method.options.model_json_schema()
        if schema.get("properties"):
            page += table(KEYS, schema_rows(schema, lambda *_: "mapping", "speculation.options."))
    return page


def json_page() -> str:
    """Return the documents that commands print with --json and that other commands read."""
    schemas = [each.model_json_schema() for each in _document_models()]
    parts = {name: part for schema in schemas for name, part in schema.get("$defs", {}).items()}
    page = (
        "# JSON documents\n\nThis page is generated from the models by which trtspec reads saved documents. Programs\n"
        "can rely on these keys. Documents have more keys, which [interface.md](../interface.md) describes.\n\n"
    )
    for schema in schemas:
        page += f"## {schema['title'].removesuffix('Document')} document\n\n{described(schema)}{_fields(schema)}"
    page += (
        "## Errors\n\nA command that fails prints this document; `problems` replaces `error` for an invalid recipe.\n\n"
    )
    failure = render_error(TrtspecError("what failed", where="file or place", hint="the fix"))
    page += f"```json\n{json.dumps(failure, indent=2)}\n```\n\n## Parts of documents\n\n"
    return page + "".join(f"### {name}\n\n{described(part)}{_fields(part)}" for name, part in sorted(parts.items()))


def _document_models() -> list[Any]:
    return [each for name, each in vars(documents).items() if name.endswith("Document") and name != "Document"]


def _fields(schema: dict[str, Any]) -> str:
    return table(KEYS, schema_rows(schema, lambda _, name: f"[{name}](#{anchor(name)})"))


def exit_codes_page() -> str:
    """Return the exit codes and the errors that cause them."""
    rows = [
        ("0", "", "success", ""),
        (str(EXIT_WORK_PENDING), "", "`plan --detailed-exitcode`: there is work to do", ""),
        (str(EXIT_DIFFERENT), "", "`compare --exit-code`: there is a difference", ""),
        (str(INTERNAL_ERROR), "", "a bug in trtspec, printed with its traceback", ""),
        (str(INTERRUPTED), "", "interrupted, for example with Ctrl-C", ""),
    ]
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, TrtspecError)]
    for kind in kinds:
        summary = (kind.__doc__ or "").partition("\n")[0]
        rows.append((str(kind.exit_code), code(kind.__name__), escape(summary), escape(kind.remedy or "")))
    rows.sort(key=lambda row: int(row[0]))
    return (
        "# Exit codes\n\nThis page is generated from the errors in `trtspec/core/errors.py`. "
        "[interface.md](../interface.md#commands) has the meaning\nfor each command.\n\n"
        + table(("exit code", "error", "meaning", "fix"), rows)
    )


def metrics_page() -> str:
    """Return the Prometheus metrics of served models and of the gateway, and the shipped alerts."""
    rows = [
        (code(each.name), each.kind, ", ".join(map(code, each.labels)), each.unit, escape(each.description))
        for each in FAMILIES
    ]
    values = [
        (code(f"{each.label}"), code(each.name), ", ".join(map(code, each.known))) for each in FAMILIES if each.known
    ]
    gateway = [
        (code(each.name), each.kind, ", ".join(map(code, each.labels)), escape(each.description))
        for each in gateway_metrics.FAMILIES
    ]
    alerts = [rule for group in rules()["groups"] for rule in group["rules"] if "alert" in rule]
    return (
        "# Prometheus metrics\n\nThis page is generated from the metrics that served models and the OpenAI gateway\n"
        "export. [metrics.md](../metrics.md) describes their meaning for each engine, the main figures, and the "
        "dashboard.\n\n## Served models\n\nAt Triton's `/metrics`, by default port 8002.\n\n"
        + table(("metric", "type", "labels", "unit", "description"), rows)
        + "## Values of labels\n\n"
        + table(("label", "metric", "values"), values)
        + "## OpenAI gateway\n\nAt `/metrics` of the gateway, by default port 9000; see [openai.md](../openai.md).\n\n"
        + table(("metric", "type", "labels", "description"), gateway)
        + "The HTTP front does not export metrics.\n\n## Alerts\n\n`trtspec metrics rules` prints these rules.\n\n"
        + table(
            ("alert", "expression", "for"),
            [(code(r["alert"]), code(" ".join(r["expr"].split())), r.get("for", "")) for r in alerts],
        )
    )


def tensors_page() -> str:
    """Return the inputs and outputs of the models of a Triton repository."""
    page = (
        "# Triton tensors\n\nThis page is generated from the model repository of the torch engine. "
        "[interface.md](../interface.md#the-triton-interface)\ndescribes their meaning, and the differences of other "
        "engines.\n\n"
    )
    for path in sorted(model_repository_dir().glob("*/config.pbtxt")):
        config = load_config(path)
        page += f"## {config.name}\n\n### Inputs of {config.name}\n\n"
        columns = ("tensor", "type", "shape", "required")
        page += table(columns, [(*_tensor(each), "" if each.optional else "yes") for each in config.input])
        page += f"### Outputs of {config.name}\n\n"
        page += table(columns[:3], [_tensor(each) for each in config.output])
    return page


def _tensor(tensor: Any) -> tuple[str, str, str]:
    kind = ENUMS["DataType"][tensor.data_type].removeprefix("TYPE_")
    return code(tensor.name), kind, code(str(list(tensor.dims)))


def support_page() -> str:
    """Return which methods, models and GPUs run on which engines."""
    page = (
        "# Support matrix\n\nThis page is generated from trtspec's methods, engines and families, by "
        "`python -m docs.site.reference`.\n\n"
        "## Methods by engine\n\n" + support_table() + "\n"
    )
    page += "".join(f"* *{word}*: {meaning}\n" for word, meaning in LEGEND.items())
    page += "\n## Engines\n\n"
    page += table(
        ("`engine.backend`", "engine", "versions, the default last", "`engine.device`", "`dtype`"),
        (
            (code(name), escape(each.summary), _listed(each.versions()), _listed(each.devices), _listed(each.dtypes))
            for name, each in sorted(backends().items())
        ),
    )
    page += "## Model classes by engine\n\nFor the newest known version of each engine.\n\n" + _models_table() + "\n"
    page += "".join(f"* *{word}*: {meaning}\n" for word, meaning in MODEL_LEGEND.items())
    page += "* empty: the engine does not run the class\n\n## Known versions\n\n"
    page += "Other versions of a minor version listed here are planned like the nearest one, with a warning.\n\n"
    for name, versions in version_table().items():
        page += f"### Versions of {name}\n\n"
        page += table(
            ("version", "released", "read from"),
            [(code(version), released, code(source)) for version, released, source in versions],
        )
    page += "## GPUs\n\n"
    return page + table(
        ("`engine.gpu`", "product", "compute capability", "memory"),
        (
            (code(each.name), each.product, f"{each.sm / 10:.1f}", f"{each.memory_bytes >> 30} GiB")
            for each in GPUS.values()
        ),
    )


def _models_table() -> str:
    names, converted = sorted(backends()), converted_classes()
    rows = [
        (code(name), converted.get(name, ""), *(model_support(backend, name) for backend in names))
        for name in model_classes()
    ]
    return table(("`architectures` in config.json", "converted family", *map(code, names)), rows)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(code(name) for name in names if name)


PAGES: dict[str, Callable[[], str]] = {
    "commands": commands_page,
    "recipe-keys": recipe_page,
    "json": json_page,
    "exit-codes": exit_codes_page,
    "metrics": metrics_page,
    "tensors": tensors_page,
}


if __name__ == "__main__":
    SUPPORT.write_text(support_page(), encoding="utf-8")
