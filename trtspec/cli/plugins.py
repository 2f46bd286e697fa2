# SPDX-License-Identifier: Apache-2.0
"""`trtspec plugins`: compile, test or list the kernel plugins."""

from __future__ import annotations

from dataclasses import asdict
from time import perf_counter
from typing import Annotated, Any, Literal

import typer

from trtspec.cli.options import Json
from trtspec.cli.progress import counter
from trtspec.cli.render import print_line, print_result, show_table


def plugins(
    action: Annotated[
        Literal["build", "test", "list"],
        typer.Argument(metavar="ACTION", help="build, test against the reference implementation, or list."),
    ],
    arch: Annotated[
        list[str] | None,
        typer.Option("--arch", metavar="SM", help="GPU architecture to compile for, e.g. sm_90a; repeatable."),
    ] = None,
    json: Json = False,
) -> None:
    """Compile, test or list the kernel plugins.

    Without --arch they are compiled for CPUs only. An existing library is reused; `test` also takes the wheel's.

    Example: trtspec plugins build --arch sm_90a
    """
    make, show = _ACTIONS[action]
    with counter():  # shows activity: compiling takes minutes
        document = make(tuple(arch or ()))
    print_result({"format_version": 1, **document}, lambda: show(document), as_json=json)
    raise typer.Exit(0 if document["ok"] else 110)


def _build(architectures: tuple[str, ...]) -> dict[str, Any]:
    from trtspec.kernels.build import build_library, plan_library

    started = perf_counter()
    spec = plan_library(architectures=architectures)
    status = "hit" if spec.path.exists() else "built"
    path = build_library(spec)
    found = {"path": str(path), "key": spec.key, "status": status, "seconds": perf_counter() - started}
    return {"ok": True, **found, "plugins": spec.plugins, "architectures": architectures}


def _show_built(document: dict[str, Any]) -> None:
    what = f"{', '.join(document['plugins'])} for {', '.join(('CPUs', *document['architectures']))}"
    print_line(f"{document['path']}: {document['status']} in {document['seconds']:.2f} s; {what}")


def _test(architectures: tuple[str, ...]) -> dict[str, Any]:
    from trtspec.checkpoints import arithmetic
    from trtspec.kernels.bindings import load_library
    from trtspec.kernels.build import build_library, find_libraries, loads, plan_library
    from trtspec.kernels.selftest import run_self_test

    ready = None if architectures else next(filter(loads, find_libraries()), None)
    library = load_library(ready or build_library(plan_library(architectures=architectures)))
    verification = run_self_test(library, "cuda" if architectures else "cpu")
    checks = [asdict(check) for check in (*verification, *arithmetic.run_self_test(library))]
    return {"ok": all(check["ok"] for check in checks), "path": str(library.path), "checks": checks}


def _show_tested(document: dict[str, Any]) -> None:
    checks = document["checks"]
    failed = [check for check in checks if not check["ok"]]
    for check in failed:
        print_line(f"{check['name']}: {check['detail']}", "red")
    print_line(f"{len(checks) - len(failed)} of {len(checks)} checks passed", "red" if failed else "green")


def _list(architectures: tuple[str, ...]) -> dict[str, Any]:
    from trtspec.kernels.build import discover_plugins, list_libraries

    known = [plugin.model_dump() for plugin in discover_plugins().values()]
    return {"ok": True, "plugins": known, "libraries": [each.as_dict() for each in list_libraries()]}


def _show_list(document: dict[str, Any]) -> None:
    show_table("", ("plugin", "description"), [(each["name"], each["summary"]) for each in document["plugins"]])
    built = [
        (", ".join(each["plugins"]), ", ".join(each["architectures"]) or "CPUs", str(each["path"]))
        for each in document["libraries"]
    ]
    if built:
        show_table("", ("built", "for", "library"), built)
    else:
        print_line("no plugin is compiled; run trtspec plugins build")


_ACTIONS = {"build": (_build, _show_built), "test": (_test, _show_tested), "list": (_list, _show_list)}

panel = "Machine"
command = plugins
