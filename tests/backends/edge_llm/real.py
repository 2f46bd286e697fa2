# SPDX-License-Identifier: Apache-2.0
"""Query the installed TensorRT Edge-LLM; runs in its environment, without trtspec.

python real.py parse | arguments | signatures      JSON on standard input, JSON on standard output
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import sys

MODULES = {
    "tensorrt-edgellm-quantize": "tensorrt_edgellm.scripts.quantize",
    "tensorrt-edgellm-export": "tensorrt_edgellm.scripts.export",
    "tensorrt-edgellm-build": "experimental.builder.cli",
}


class Parsed(BaseException):
    """Raised after a command line was parsed successfully."""


def parse(lines: list[list[str]]) -> list[str]:
    """Return the error of each command's own parser for a command line, "" without an error."""
    own = argparse.ArgumentParser.parse_args

    def parse_args(parser, argv=None, namespace=None):
        own(parser, argv, namespace)
        raise Parsed

    def error(parser, message):
        raise ValueError(message)

    argparse.ArgumentParser.parse_args = parse_args
    argparse.ArgumentParser.error = error
    return [_said(line) for line in lines]


def _said(line: list[str]) -> str:
    sys.argv = line
    try:
        importlib.import_module(MODULES[line[0]]).main()
    except Parsed:
        return ""
    except ValueError as refused:
        return f"{' '.join(line)}: {refused}"
    return f"{' '.join(line)}: not parsed"


def arguments(documents: list[dict]) -> list[str]:
    """Return why LLM or its SpeculativeConfig do not accept the arguments in each document, "" if they do."""
    from experimental.server import LLM
    from experimental.server.config import SpeculativeConfig

    found = []
    for document in documents:
        try:
            inspect.signature(LLM).bind(**document)
            SpeculativeConfig.parse(document.get("speculative_config"))
            found.append("")
        except (TypeError, ValueError) as refused:
            found.append(str(refused))
    return found


def signatures(names: list[list[str]]) -> list[dict[str, str]]:
    """Return the parameters of [module, dotted name], with their defaults as text."""
    return [_parameters(*each) for each in names]


def _parameters(module: str, dotted: str) -> dict[str, str]:
    found = importlib.import_module(module)
    for name in dotted.split("."):
        found = getattr(found, name)
    return {name: repr(each.default) for name, each in inspect.signature(found).parameters.items()}


if __name__ == "__main__":
    answer = {"parse": parse, "arguments": arguments, "signatures": signatures}[sys.argv[1]](json.load(sys.stdin))
    sys.stdout.write(json.dumps(answer) + "\n")
