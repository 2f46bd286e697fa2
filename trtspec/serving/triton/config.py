# SPDX-License-Identifier: Apache-2.0
"""Triton's ModelConfig as a typed message: read it from pbtxt, set fields, write it as pbtxt.

MESSAGES and ENUMS list the fields of Triton's public model_config.proto (package `inference`) that trtspec uses. They
are built in a private descriptor pool, which requires only protobuf and does not conflict with client libraries that
register the whole file.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from trtspec.core.errors import TrtspecError
from trtspec.core.files import describe_read_error, read_bounded

PACKAGE = "inference"
LINE_LEN = 120
MAX_BYTES = 1 << 20
HINT = "rewrite it with `trtspec build`"
ModelConfig: TypeAlias = Any  # a message class built at import; see MESSAGES for its fields

# message: field -> (number, type); `type*` is repeated, `map:type` maps a string to `type`
MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "ModelTensorReshape": {"shape": (1, "int64*")},
    "ModelInput": {
        "name": (1, "string"),
        "data_type": (2, "DataType"),
        "dims": (4, "int64*"),
        "reshape": (5, "ModelTensorReshape"),
        "allow_ragged_batch": (7, "bool"),
        "optional": (8, "bool"),
    },
    "ModelOutput": {
        "name": (1, "string"),
        "data_type": (2, "DataType"),
        "dims": (3, "int64*"),
        "reshape": (5, "ModelTensorReshape"),
    },
    "ModelInstanceGroup": {
        "name": (1, "string"),
        "kind": (4, "ModelInstanceGroup.Kind"),
        "count": (2, "int32"),
        "gpus": (3, "int32*"),
    },
    "ModelQueuePolicy": {
        "timeout_action": (1, "ModelQueuePolicy.TimeoutAction"),
        "default_timeout_microseconds": (2, "uint64"),
        "allow_timeout_override": (3, "bool"),
        "max_queue_size": (4, "uint32"),
    },
    "ModelDynamicBatching": {
        "preferred_batch_size": (1, "int32*"),
        "max_queue_delay_microseconds": (2, "uint64"),
        "default_queue_policy": (6, "ModelQueuePolicy"),
    },
    "ModelEnsembling": {"step": (1, "ModelEnsembling.Step*")},
    "ModelEnsembling.Step": {
        "model_name": (1, "string"),
        "model_version": (2, "int64"),
        "input_map": (3, "map:string"),
        "output_map": (4, "map:string"),
    },
    "ModelWarmup": {"name": (1, "string"), "batch_size": (2, "uint32"), "inputs": (3, "map:ModelWarmup.Input")},
    "ModelWarmup.Input": {"data_type": (1, "DataType"), "dims": (2, "int64*"), "input_data_file": (5, "string")},
    "ModelParameter": {"string_value": (1, "string")},
    "ModelTransactionPolicy": {"decoupled": (1, "bool")},
    "ModelConfig": {
        "name": (1, "string"),
        "platform": (2, "string"),
        "backend": (17, "string"),
        "max_batch_size": (4, "int32"),
        "input": (5, "ModelInput*"),
        "output": (6, "ModelOutput*"),
        "dynamic_batching": (11, "ModelDynamicBatching"),
        "ensemble_scheduling": (15, "ModelEnsembling"),
        "instance_group": (7, "ModelInstanceGroup*"),
        "default_model_filename": (8, "string"),
        "parameters": (14, "map:ModelParameter"),
        "model_warmup": (16, "ModelWarmup*"),
        "model_transaction_policy": (19, "ModelTransactionPolicy"),
    },
}

# enum: values, numbered from 0
ENUMS: dict[str, tuple[str, ...]] = {
    "DataType": (
        *("TYPE_INVALID", "TYPE_BOOL", "TYPE_UINT8", "TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64"),
        *("TYPE_INT8", "TYPE_INT16", "TYPE_INT32", "TYPE_INT64", "TYPE_FP16", "TYPE_FP32", "TYPE_FP64"),
        *("TYPE_STRING", "TYPE_BF16"),
    ),
    "ModelInstanceGroup.Kind": ("KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"),
    "ModelQueuePolicy.TimeoutAction": ("REJECT", "DELAY"),
}

_Field = descriptor_pb2.FieldDescriptorProto


def _file_descriptor() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="trtspec_model_config.proto", package=PACKAGE, syntax="proto3")
    built: dict[str, Any] = {}
    for name, fields in MESSAGES.items():
        outer, _, own = name.rpartition(".")
        built[name] = message = built[outer].nested_type.add(name=own) if outer else file.message_type.add(name=own)
        for field, (number, kind) in fields.items():
            _add_field(message, name, field, number, kind)
    for name, values in ENUMS.items():
        outer, _, own = name.rpartition(".")
        enum = (built[outer] if outer else file).enum_type.add(name=own)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    return file


def _add_field(message: Any, owner: str, name: str, number: int, kind: str) -> None:
    if kind.startswith("map:"):
        entry = message.nested_type.add(name="".join(part.title() for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        _add_field(entry, owner, "key", 1, "string")
        _add_field(entry, owner, "value", 2, kind.removeprefix("map:"))
        kind = f"{owner}.{entry.name}*"
    type_name = kind.removesuffix("*")
    field = message.field.add(
        name=name, number=number, label=_Field.LABEL_REPEATED if kind.endswith("*") else _Field.LABEL_OPTIONAL
    )
    if type_name[0].islower():
        field.type = _Field.Type.Value(f"TYPE_{type_name.upper()}")
    else:
        field.type = _Field.TYPE_ENUM if type_name in ENUMS else _Field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{type_name}"


_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_file_descriptor())
_CLASS: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.ModelConfig"))


def load_config(path: Path) -> ModelConfig:
    try:
        text = read_bounded(path, MAX_BYTES).decode()
    except OSError as error:
        raise TrtspecError(
            f"the model configuration: {describe_read_error(error)}", where=str(path), hint=HINT
        ) from None
    except UnicodeDecodeError as error:
        raise TrtspecError(f"the model configuration is not UTF-8: {error}", where=str(path), hint=HINT) from None
    return parse_config(text, where=str(path))


def parse_config(text: str, *, where: str = "config.pbtxt") -> ModelConfig:
    """Parse a config.pbtxt; raises TrtspecError with the position of an unknown field or unfilled `${...}`."""
    for line, content in enumerate(text.splitlines(), 1):
        if found := re.search(r"\$\{[^}]*\}?", content):
            raise TrtspecError(
                f"the placeholder {found.group()} is not filled in",
                where=f"{where}:{line}:{found.start() + 1}",
                hint="write a value or remove the field",
            )
    config = _CLASS()
    try:
        config.CopyFrom(_parse(text))  # a copy, because the caller may modify it and the parsed message is cached
    except text_format.ParseError as error:
        message = re.sub(r"^\d+:\d+ : ", "", str(error))
        place = f"{where}:{error.GetLine()}:{error.GetColumn()}"
        raise TrtspecError(message, where=place, hint=HINT) from None
    return config


@lru_cache(32)  # the hand-written configurations are read repeatedly
def _parse(text: str) -> ModelConfig:
    return text_format.Parse(text, _CLASS())


def render_config(config: ModelConfig) -> str:
    """Return a message as pbtxt: fields by number, maps by key, each block on one line if it fits."""
    lines: list[str] = []
    # strings may contain characters at which splitlines splits
    for line in text_format.MessageToString(config).split("\n")[:-1]:
        lines.append(line)
        if line.endswith("}"):
            begin = line.removesuffix("}")
            first = max(at for at, each in enumerate(lines) if each.endswith("{") and _indent(each) == begin)
            block = " ".join([lines[first], *(each.strip() for each in lines[first + 1 :])])
            if len(block) <= LINE_LEN:
                lines[first:] = [block]
    return "".join(f"{line}\n" for line in lines)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def set_parameter(config: ModelConfig, key: str, value: str | int | float | bool) -> None:
    """Set an entry of `parameters` as text; raises TrtspecError if it has an unfilled placeholder."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if "${" in text:
        raise TrtspecError(f"parameter {key}: {text!r} contains an unfilled placeholder", hint="write the value")
    config.parameters[key].string_value = text
