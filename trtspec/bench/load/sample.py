# SPDX-License-Identifier: Apache-2.0
"""Measurements of one request of a load test, with the standard latency metrics:

    TTFT   time from the scheduled time to the first chunk of text
    e2e    time from the scheduled time to the last chunk of text
    TPOT   (e2e - TTFT) / (output tokens - 1), the time per token after the first
    ITL    time between consecutive chunks; with speculation, a chunk contains several tokens

The definitions are vLLM's (vllm-project/vllm:vllm/benchmarks/serve.py@def9ce85); AIPerf calls TPOT
`inter_token_latency` and ITL `inter_chunk_latency`. In an open loop, the scheduled time is the drawn arrival time even
if the client sends late, so queueing is included (no coordinated omission).

Service level objectives limit these metrics per request and define goodput (DistServe, arXiv:2401.09670).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from trtspec.core.errors import TrtspecError

MS = 1000.0
HINT = "examples: ttft=200ms,tpot=30ms or e2e=5s"


@dataclass(frozen=True)
class RequestSample:
    """Measurements of one request; `due_s` and `sent_s` are relative to the round's start, `chunks_s` to `due_s`.

    `output_tokens` is the server's count if `is_counted`, else the number of chunks. `error` is the reason if the
    response is incomplete; the response's fields are then meaningless. `is_refused` is set if the server rejected the
    request.
    """

    prompt: str
    kind: str
    due_s: float
    sent_s: float
    chunks_s: tuple[float, ...] = ()
    prompt_tokens: int | None = None
    output_tokens: int = 0
    is_counted: bool = True
    drafted: int | None = None
    accepted: int | None = None
    steps: int | None = None
    histogram: tuple[int, ...] = ()
    finish_reason: str = ""
    text_sha256: str = ""
    error: str = ""
    is_refused: bool = False

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def ttft_ms(self) -> float:
        return MS * self.chunks_s[0]

    @property
    def e2e_ms(self) -> float:
        return MS * self.chunks_s[-1]

    @property
    def tpot_ms(self) -> float | None:
        """Return the time per token after the first, or None for fewer than two tokens."""
        return (self.e2e_ms - self.ttft_ms) / (self.output_tokens - 1) if self.output_tokens > 1 else None

    @property
    def itl_ms(self) -> list[float]:
        return [MS * (later - earlier) for earlier, later in pairwise(self.chunks_s)]

    @property
    def tokens_per_s(self) -> float:
        return self.output_tokens / self.chunks_s[-1]

    def tokens_within(self, seconds: float) -> float:
        """Return the tokens received by `seconds` after the scheduled time, at a constant rate between chunks."""
        first, last = (self.chunks_s[0] if len(self.chunks_s) > 1 else 0.0), self.chunks_s[-1]
        if seconds >= last:
            return self.output_tokens
        return self.output_tokens * (seconds - first) / (last - first) if seconds > first else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON line of the request for `--samples-out`."""
        return {
            "prompt": self.prompt,
            "prompt_kind": self.kind,
            "due_s": round(self.due_s, 6),
            "sent_s": round(self.sent_s, 6),
            "ttft_ms": _ms(self.ttft_ms) if self.ok else None,
            "tpot_ms": _ms(self.tpot_ms) if self.ok else None,
            "e2e_ms": _ms(self.e2e_ms) if self.ok else None,
            "itl_ms": [_ms(each) for each in self.itl_ms],
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "draft_tokens": self.drafted,
            "accepted_tokens": self.accepted,
            "draft_steps": self.steps,
            "acceptance_histogram": list(self.histogram),
            "finish_reason": self.finish_reason,
            "text_sha256": self.text_sha256,
            "error": self.error,
        }


def _ms(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


@dataclass(frozen=True)
class Slo:
    """Service level objective: upper limits for the latencies of a request, where None means unlimited."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    def holds(self, sample: RequestSample) -> bool:
        """Return True if a request is complete and meets all limits."""
        if not sample.ok:
            return False
        limits = ((sample.ttft_ms, self.ttft_ms), (sample.tpot_ms, self.tpot_ms), (sample.e2e_ms, self.e2e_ms))
        return all(limit is None or (took or 0.0) <= limit for took, limit in limits)


def parse_slo(text: str) -> Slo:
    """Parse the value of --slo, such as "ttft=200ms,tpot=30ms"; raises TrtspecError if it is invalid."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        match = re.fullmatch(r"(ttft|tpot|e2e)=([0-9]+(?:\.[0-9]+)?)(ms|s)", part.strip())
        if not match or f"{match[1]}_ms" in limits:
            raise TrtspecError(f"--slo: {part.strip()!r} is not a valid limit", hint=HINT)
        limits[f"{match[1]}_ms"] = float(match[2]) * (MS if match[3] == "s" else 1)
    return Slo(**limits)
