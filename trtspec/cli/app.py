# SPDX-License-Identifier: Apache-2.0
"""Command-line entry point: discover the commands in this package, run one, and map errors to exit codes.

A module registers a command by assigning its function to `command`; the modules in GROUPS have a tuple `commands`. A
command is named after its function, with - instead of _. Modules defer heavy imports so that `--help` stays fast. Help
texts are not truncated, and their examples can be copied.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import chain, takewhile
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from trtspec import cli
from trtspec.cli import completing
from trtspec.cli.layout import wrap_command
from trtspec.cli.renamed import current_arguments
from trtspec.cli.streams import OutputError, guarded_streams
from trtspec.core.errors import TrtspecError, describe_os_error_at, os_error_remedy, resource_exhaustion_error
from trtspec.core.installation import __version__
from trtspec.core.registry import discover

EXAMPLE = "Example: "
PANELS = ("Build", "Decide", "Serve", "Measure", "Drafts", "Machine")
OTHER = "Other commands"
SHORT_HELP_CHARS = 1000  # longer than any help text: typer truncates beyond it


class HelpCommand(TyperCommand):
    """Command whose help shows usage without braces and wraps its example between shell arguments."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the options and arguments in the usual notation: FILE, [FILE], FILE..."""
        return [re.sub(r"\{(.*)\}", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        description, _, example = (self.help or "").rpartition(EXAMPLE)
        indent = "  "
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(description.rstrip())
        lines = wrap_command(EXAMPLE + example, formatter.width - len(indent))
        formatter.write("\n" + "".join(f"{indent}{line}\n" for line in lines))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, without their Python types, and the options."""
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
    """The root command, whose help lists the first sentence of each subcommand's description, in panels."""

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


GROUPS = ("deployments", "profile", "pruning")  # the modules with several commands
VERBOSE = {"-v", "--verbose"}
INTERRUPTED = 130
INTERNAL_ERROR = 70
# Freezing skips the interpreter's final garbage collections, which take a quarter of the time of a `plan`.
atexit.register(gc.freeze)
_exhausted: list[int] = []  # the exit code if memory or threads ran out


@atexit.register  # registered first, therefore run last
def _leave() -> None:
    """Skip the clean-up of libraries after exhaustion: OpenBLAS waits forever for a thread that failed to start."""
    if _exhausted:
        os._exit(_exhausted[0])


REFUSED_HINT = "free space or grant access, or use another path: --out, TRTSPEC_CACHE, TRTSPEC_STATE, HF_HUB_CACHE"


@cache
def make_command(only: str = "", *, reads_signatures: bool = True) -> Any:
    """Return the click command with all subcommands, or only with the one named `only`.

    Reading all signatures takes typer 0.1 s. Without signatures the commands have only their names and help texts.
    """
    app = typer.Typer(
        name="trtspec",
        cls=HelpGroup,
        help="Speculative decoding for TensorRT-LLM: build, verify, serve and benchmark from one recipe.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    found = [_find_command(only)] if only else sorted(all_commands(), key=_everyday_first)
    for command in found:
        panel = getattr(sys.modules[command.__module__], "panel", None)
        name = command_name(command)
        register = app.command(name=name, help=command.__doc__, cls=HelpCommand, rich_help_panel=panel)
        register(command if reads_signatures else _unread)
    return typer.main.get_command(app)


def all_commands() -> list[Any]:
    groups = (importlib.import_module(f"trtspec.cli.{name}").commands for name in GROUPS)
    return [*discover("trtspec.cli", "command").values(), *chain.from_iterable(groups)]


def _everyday_first(command: Any) -> tuple[int, str]:
    """Return the sort key of a command in its panel: its module's `everyday` rank if it has one, then its name."""
    rank: int = getattr(sys.modules[command.__module__], "everyday", 100)
    return rank, command_name(command)


def _unread() -> None:
    raise AssertionError("a command was run without reading its signature")


def _command_for(arguments: Sequence[str]) -> Any:
    """Return the click command for these arguments, with only the subcommands that they need."""
    before = [*takewhile(lambda each: each.startswith("-"), arguments)]
    word = next(iter(arguments[len(before) :]), "").replace("-", "_")
    if completing.VARIABLE in os.environ:
        return make_command()
    if not _find_command(word):
        return make_command(reads_signatures=False)
    return make_command("" if {*before} - VERBOSE else word)


def _find_command(word: str) -> Any:
    """Return the command of this name in a module of its own or in a group, or None."""
    known = {each.name for each in pkgutil.iter_modules(cli.__path__)}
    if word in known and (command := getattr(importlib.import_module(f"trtspec.cli.{word}"), "command", None)):
        return command
    groups = (importlib.import_module(f"trtspec.cli.{name}").commands for name in GROUPS)
    return next((command for command in chain.from_iterable(groups) if command.__name__ == word), None)


def command_name(command: Any) -> str:
    return str(command.__name__).replace("_", "-")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 success, 1 wrong usage, 130 interrupted, 70 a bug, else see core/errors.py."""
    arguments, notes = current_arguments(sys.argv[1:] if arguments is None else arguments)
    with guarded_streams():
        try:
            for note in notes:
                print(f"note: {note}", file=sys.stderr)  # noqa: T201
            code = _exit_code(arguments)
            sys.stdout.flush()
        except OutputError as error:
            code = TrtspecError.exit_code
            if not error.is_left:
                with suppress(OutputError):
                    print(f"error: standard output: {error.strerror}", file=sys.stderr)  # noqa: T201
    sys.exit(code)


def _exit_code(arguments: Sequence[str]) -> int:
    """Run a command, report its error if it fails, and return its exit code."""
    try:
        code = _run(arguments)
    except OutputError:
        raise
    except TyperException as error:
        _show_usage_error(error, as_json="--json" in arguments)
        code = TrtspecError.exit_code
    except TrtspecError as error:
        from trtspec.cli.render import show_error

        show_error(error, as_json="--json" in arguments)
        code = error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        if exhausted := resource_exhaustion_error(error):
            del error  # frees the memory that its frames hold
            _show_exhausted(exhausted, as_json="--json" in arguments)
            _exhausted.append(exhausted.exit_code)
            return exhausted.exit_code
        import traceback

        traceback.print_exc()
        print("this is a bug in trtspec; please report it with the lines above", file=sys.stderr)  # noqa: T201
        code = INTERNAL_ERROR
    if code == INTERRUPTED:  # typer turns an interrupt within a command into this code
        print("interrupted", file=sys.stderr)  # noqa: T201
    return code or 0


def _run(arguments: Sequence[str]) -> int | None:
    if completing.VARIABLE in os.environ:  # a shell requests completions
        completing.rejoin(os.environ)
    try:
        code: int | None = _command_for(arguments)(args=arguments, prog_name="trtspec", standalone_mode=False)
    except OSError as error:  # fallback: callers that know the operation raise a more specific error
        refused = describe_os_error_at(error, "a disk that is written to")
        if refused is None:
            raise
        raise TrtspecError(refused, hint=os_error_remedy(error) or REFUSED_HINT) from error
    except ModuleNotFoundError as error:
        from trtspec.planning.doctor import install_hint

        package = (error.name or "").partition(".")[0]
        hint = install_hint(package)
        if hint is None:
            raise
        raise TrtspecError(f"this needs {package}, which is not installed", hint=hint) from None
    return code


def _show_exhausted(error: TrtspecError, *, as_json: bool) -> None:
    """Print an error without further imports, because memory may be exhausted."""
    if as_json:
        document = {
            "format_version": 1,
            "ok": False,
            "error": {"message": error.message, "where": None, "hint": error.hint, "exit_code": error.exit_code},
        }
        print(json.dumps(document, indent=2))  # noqa: T201
    print(f"error: {error}", file=sys.stderr)  # noqa: T201


def _show_usage_error(error: TyperException, *, as_json: bool) -> None:
    if error.message:  # typer converts values with pydantic
        from trtspec.core.diagnostics import simplify_pydantic_message

        error.message = simplify_pydantic_message(error.message)
    if as_json:
        from trtspec.cli.render import print_json, render_error

        context = getattr(error, "ctx", None)
        hint = f"{context.command_path} --help" if context else None
        print_json(render_error(TrtspecError(error.format_message(), hint=hint)))
    error.show()  # type: ignore[attr-defined]  # every usage error has this method


def _show_version(requested: bool) -> None:
    if requested:
        print(f"trtspec {__version__}")  # noqa: T201
        raise typer.Exit


def _root(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", "-V", callback=_show_version, is_eager=True, help="Show the version."
    ),
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Log decisions, subprocesses and waits to stderr."),
) -> None:
    if verbose:
        from trtspec.cli.progress import verbose as showing_logs

        context.with_resource(showing_logs())
