# SPDX-License-Identifier: Apache-2.0
"""The text the quickstart pair is trained on: API logs, JSON records and small code, generated from a seed.

Everything is drawn from word lists in this file, so no licence but the project's own hangs on the weights.
A document is one log session, one JSON array or one small module; `documents(seed)` is an endless stream of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

KINDS = ("log", "json", "code")

SERVICES = ("api-gateway", "billing", "catalog", "checkout", "identity", "inventory", "search", "shipping")
RESOURCES = ("users", "orders", "invoices", "products", "sessions", "carts", "payments", "shipments")
METHODS = ("GET", "GET", "GET", "POST", "PUT", "DELETE")
STATUS = {"GET": (200, 200, 200, 404), "POST": (201, 201, 400), "PUT": (200, 409), "DELETE": (204, 404)}
LEVEL = {2: "INFO", 4: "WARN", 5: "ERROR"}
CITIES = ("Berlin", "Lagos", "Lima", "Osaka", "Oslo", "Quito", "Sydney", "Toronto")
NAMES = ("ada", "alan", "barbara", "donald", "edsger", "grace", "john", "margaret")
FIELDS = ("name", "price", "quantity", "status", "total", "weight", "created_at", "owner_id")
TYPES = {"price": "float", "total": "float", "weight": "float", "quantity": "int", "owner_id": "int"}


def log_session(rng: Random) -> str:
    """Return 6 to 10 request log lines of one service, a second or so apart."""
    service, resource = rng.choice(SERVICES), rng.choice(RESOURCES)
    hour, minute, second = rng.randrange(24), rng.randrange(60), rng.randrange(60)
    day = f"2026-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
    lines = []
    for _ in range(rng.randint(6, 10)):
        second += rng.randint(0, 2)
        minute, second = (minute + second // 60) % 60, second % 60
        method = rng.choice(METHODS)
        status = rng.choice(STATUS[method])
        path = f"/v1/{resource}" if method == "POST" else f"/v1/{resource}/{rng.randint(100, 999)}"
        lines.append(
            f"{day}T{hour:02d}:{minute:02d}:{second:02d}Z {LEVEL[status // 100]} {service} "
            f"method={method} path={path} status={status} duration_ms={rng.randint(1, 40)} "
            f"user={rng.choice(NAMES)} region={rng.choice(('eu-west-1', 'us-east-1'))}"
        )
    return "\n".join(lines) + "\n"


def json_record(rng: Random, kind: str, number: int) -> dict[str, object]:
    """Return one record of `kind`; the keys and their order depend on `kind` alone."""
    city, name = rng.choice(CITIES), rng.choice(NAMES)
    if kind == "user":
        return {
            "id": number,
            "name": name,
            "email": f"{name}@example.com",
            "active": rng.random() < 0.8,
            "address": {"city": city, "zip": f"{rng.randint(100, 999)}"},
            "roles": ["admin", "editor"] if rng.random() < 0.3 else ["viewer"],
        }
    if kind == "order":
        items = [{"sku": f"SKU-{rng.randint(10, 99)}", "quantity": rng.randint(1, 5)} for _ in range(rng.randint(1, 2))]
        return {"id": number, "customer": name, "items": items, "currency": "EUR", "status": "shipped", "city": city}
    return {
        "id": number,
        "type": "sensor.reading",
        "source": f"{city.lower()}-{rng.randint(1, 9)}",
        "value": {"temperature": rng.randint(10, 30), "humidity": rng.randint(30, 70), "unit": "celsius"},
        "valid": True,
    }


def json_records(rng: Random) -> str:
    """Return a JSON array of 3 to 6 records of one kind with consecutive ids."""
    kind, first = rng.choice(("user", "order", "event")), rng.randint(100, 900)
    records = [json_record(rng, kind, first + i) for i in range(rng.randint(3, 6))]
    return json.dumps(records, indent=2 if rng.random() < 0.5 else None) + "\n"


def code_module(rng: Random) -> str:
    """Return a dataclass with a small repository class over it."""
    resource = rng.choice(RESOURCES)
    item = resource[:-1]
    cls = item.capitalize()
    fields = rng.sample(FIELDS, rng.randint(3, 5))
    lines = ["from dataclasses import dataclass", "", "", "@dataclass(frozen=True)", f"class {cls}:"]
    lines += [f'    """One row of the {resource} table."""', "", f"    {item}_id: int"]
    lines += [f"    {field}: {TYPES.get(field, 'str')}" for field in fields]
    lines += ["", "", f"class {cls}Repository:", "    def __init__(self, connection):"]
    lines += ["        self.connection = connection", ""]
    lines += [f"    def get_{item}(self, {item}_id: int) -> {cls} | None:"]
    lines += [f'        """Return the {item} with this id, or None."""']
    lines += [f'        row = self.connection.fetch_one("SELECT * FROM {resource} WHERE {item}_id = ?", {item}_id)']
    lines += [f"        return {cls}(**row) if row else None", ""]
    for field in fields:
        kind = TYPES.get(field, "str")
        lines += [f"    def list_by_{field}(self, {field}: {kind}) -> list[{cls}]:"]
        lines += [f'        """Return every {item} whose {field} is the given one."""']
        lines += [f'        rows = self.connection.fetch_all("SELECT * FROM {resource} WHERE {field} = ?", {field})']
        lines += [f"        return [{cls}(**row) for row in rows]", ""]
    return "\n".join(lines) + "\n"


WRITERS = {"log": log_session, "json": json_records, "code": code_module}


def documents(seed: int) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) for ever; equal seeds give equal streams."""
    rng = Random(seed)
    while True:
        kind = rng.choice(KINDS)
        yield kind, WRITERS[kind](rng)
