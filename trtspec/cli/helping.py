# SPDX-License-Identifier: Apache-2.0
"""Formatting of `--help`: texts are not truncated, and examples can be copied.

Imports only typer so that `--help` stays fast.
"""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand, TyperGroup

from trtspec.cli.layout import wrap_command

EXAMPLE = "Example: "
PANELS = ("Build", "Decide", "Serve", "Measure", "Drafts", "Machine")
OTHER = "Other commands"
SHORT_HELP_CHARS = 1000  # longer than any help text: typer truncates beyond it


class HelpCommand(TyperCommand):
    """A command with usage without braces and an example that wraps between shell arguments."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the options and arguments in the usual notation: FILE, [FILE], FILE..."""
        return [re.sub(r"\{(.*)\}", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the description, then the example."""
        description, _, example = (self.help or "").rpartition(EXAMPLE)
        indent = "  "
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(description.rstrip())
        lines = wrap_command(EXAMPLE + example, formatter.width - len(indent))
        formatter.write("\n" + "".join(f"{indent}{line}\n" for line in lines))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, without their Python types, and options."""
        records: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                is_option = parameter.param_type_name == "option"
                name = record[0] if is_option else re.sub(r" <[^|>]*>$", "", record[0])
                records["Options" if is_option else "Arguments"].append((name, record[1]))
        for heading, those in records.items():
            if those:
                with formatter.section(heading):
                    formatter.write_dl(those)


class HelpGroup(TyperGroup):
    """The root command, which lists each subcommand with the full first sentence of its description, in panels."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one row per command below the heading of its panel."""
        rows: dict[str, list[tuple[str, str]]] = {panel: [] for panel in PANELS}
        for name in self.list_commands(ctx):
            if command := self.get_command(ctx, name):
                panel = getattr(command, "rich_help_panel", None) or OTHER
                rows.setdefault(panel, []).append((name, command.get_short_help_str(SHORT_HELP_CHARS)))
        widest = max(len(name) for those in rows.values() for name, _ in those)
        for panel, those in rows.items():
            if those:
                with formatter.section(panel):
                    formatter.write_dl([(name.ljust(widest), text) for name, text in those])
