# SPDX-License-Identifier: Apache-2.0
"""`trtspec plugins`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from trtspec.cli.options import Json


class Action(str, Enum):
    """What to do with the plugins."""

    build = "build"
    test = "test"
    list = "list"


Arch = Annotated[
    list[str] | None, typer.Option("--arch", metavar="SM", help="A GPU to compile for, as sm_90a; may be repeated.")
]


def plugins(
    action: Annotated[Action, typer.Argument(help="Compile, check against the oracle, or list them.")],
    arch: Arch = None,
    json: Json = False,
) -> None:
    """Compile the verification kernels into a library, test it on this machine, or list what there is.

    Without --arch they are compiled for CPUs alone. A library that was built is not built again.

    Example: trtspec plugins build --arch sm_90a
    """
    from trtspec.cli.render import print_json

    architectures = tuple(arch or ())
    document = _ACTIONS[action](architectures)
    if json:
        print_json({"format_version": 1, **document})
    raise typer.Exit(0 if document["ok"] else 110)


def _build(architectures: tuple[str, ...]) -> dict[str, object]:
    from time import perf_counter

    from trtspec.cli.render import say
    from trtspec.kernels.build import build_library, plan_library

    started = perf_counter()
    spec = plan_library(architectures=architectures)
    status = "hit" if spec.path.exists() else "built"
    path = build_library(spec)
    seconds = perf_counter() - started
    say(f"{path}: {status} in {seconds:.2f} s; {', '.join(spec.plugins)} for {', '.join(('CPUs', *architectures))}")
    found = {"path": str(path), "key": spec.key, "status": status, "seconds": seconds}
    return {"ok": True, **found, "plugins": spec.plugins, "architectures": architectures}


def _test(architectures: tuple[str, ...]) -> dict[str, object]:
    from dataclasses import asdict

    from trtspec.cli.render import say
    from trtspec.kernels.bindings import load_library
    from trtspec.kernels.build import build_library, plan_library
    from trtspec.kernels.selftest import run_self_test

    library = load_library(build_library(plan_library(architectures=architectures)))
    checks = list(run_self_test(library, "cuda" if architectures else "cpu"))
    failed = [check for check in checks if not check.ok]
    for check in failed:
        say(f"{check.name}: {check.detail}", "red")
    say(f"{len(checks) - len(failed)} of {len(checks)} checks hold", "red" if failed else "green")
    return {"ok": not failed, "path": str(library.path), "checks": [asdict(check) for check in checks]}


def _list(architectures: tuple[str, ...]) -> dict[str, object]:
    from trtspec.cli.render import show_table
    from trtspec.kernels.build import discover_plugins, list_libraries

    known, libraries = discover_plugins(), list_libraries()
    show_table("", ("plugin", "what it does"), [(name, plugin.summary) for name, plugin in known.items()])
    built = [(", ".join(each.plugins), ", ".join(each.architectures) or "CPUs", str(each.path)) for each in libraries]
    show_table("", ("built", "for", "library"), built)
    listed = [plugin.model_dump() for plugin in known.values()]
    return {"ok": True, "plugins": listed, "libraries": [each.as_dict() for each in libraries]}


_ACTIONS = {Action.build: _build, Action.test: _test, Action.list: _list}

command = plugins
