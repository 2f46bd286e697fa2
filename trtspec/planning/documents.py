# SPDX-License-Identifier: Apache-2.0
"""Schemas of saved documents: the `--json` output of plan, build, baseline, verify, bench, profile and train.

A schema contains the fields that readers need. Other keys are ignored, so that documents of other versions can be read.
Files are untrusted: their size and number of values are limited before parsing, and values out of range are rejected.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from trtspec.checkpoints.safe_json import parse_object
from trtspec.core.diagnostics import first_invalid
from trtspec.core.errors import TrtspecError
from trtspec.core.files import describe_read_error, read_bounded
from trtspec.store.file_records import Sha256

MAX_BYTES, MAX_VALUES = 8 << 20, 400_000

Text = Annotated[str, Field(max_length=2000)]
Share = Annotated[float, Field(ge=0, le=1)]
Number = Annotated[float, Field(gt=-1e12, lt=1e12)]
Positive = Annotated[float, Field(gt=0, lt=1e12)]
Count = Annotated[int, Field(ge=0, lt=10**12)]
Millis = Annotated[float, Field(ge=0, lt=1e12)]


class LatencySpread(BaseModel):
    """Mean and percentiles of a latency over all requests."""

    mean: Millis
    p50: Millis
    p95: Millis


class BaselineEngine(BaseModel):
    """The backend that ran the target; `measured_by` is "process" or "server"."""

    backend: Text
    measured_by: Text


class PromptCount(BaseModel):
    count: Count


class SavedDocument(BaseModel):
    """Base of the documents that commands print with `--json`."""

    format_version: Literal[1]


class BaselineDocument(SavedDocument):
    """Output of `baseline --json`."""

    time: Text
    engine: BaselineEngine
    prompts: PromptCount
    max_tokens: Count
    tokens_per_s: Annotated[list[Positive], Field(min_length=1, max_length=10_000)]
    median_tokens_per_s: Positive
    request_s: LatencySpread
    ms_per_token: LatencySpread


class CheckResult(BaseModel):
    name: Text
    ok: bool
    value: Any = None
    limit: Any = None


class SkippedCheckRecord(BaseModel):
    name: Text
    reason: Text


class VerificationDocument(SavedDocument):
    """Output of `verify --json`, which is also saved as a report in the artifact."""

    COMMAND: ClassVar[str] = "verify"

    acceptance: Text
    checks: list[CheckResult]
    left_out: list[SkippedCheckRecord] = []


class BenchArm(BaseModel):
    tokens_per_s: Annotated[list[Positive], Field(max_length=10_000)]
    median_tokens_per_s: Positive
    acceptance_rate: Share
    mean_accepted_len: Positive


class BenchDocument(VerificationDocument):
    """Output of `bench --json`; `checks` are the gates that `--gates` evaluated."""

    COMMAND: ClassVar[str] = "bench"

    checks: list[CheckResult] = []
    prompts: Count
    max_tokens: Count
    baseline: BenchArm
    speculative: BenchArm
    speedup: Positive
    speedup_interval: tuple[Number, Number]
    identical_texts: Count


class BuiltStep(BaseModel):
    name: Text
    status: Text
    seconds: Annotated[float, Field(ge=0, lt=1e9)]


class BuildDocument(SavedDocument):
    """Output of `build --json`."""

    steps: Annotated[list[BuiltStep], Field(max_length=10_000)]
    seconds: Annotated[float, Field(ge=0, lt=1e9)]


class Percentiles(LatencySpread):
    """Minimum, maximum, mean and percentiles of a latency in milliseconds."""

    min: Millis
    p90: Millis
    p99: Millis
    max: Millis


class LoadRound(BaseModel):
    """One measurement round of an arm; its metrics are None if no request succeeded."""

    requests: Count
    failed: Count
    output_tokens_per_s: Positive | None = None
    mean_e2e_ms: Positive | None = None


class LoadArm(BaseModel):
    rounds: Annotated[list[LoadRound], Field(min_length=1, max_length=100_000)]
    requests: Count
    failed: Count
    output_tokens_per_s: Annotated[float, Field(ge=0, lt=1e12)]
    ttft_ms: Percentiles | None
    tpot_ms: Percentiles | None
    e2e_ms: Percentiles | None
    itl_ms: Percentiles | None = None
    acceptance_rate: Share | None
    mean_accepted_len: Positive | None
    goodput_share: Share | None = None


class LoadSize(BaseModel):
    """A load: `concurrency` for a closed loop, `requests_per_s` for an open loop."""

    kind: Text
    concurrency: Annotated[float, Field(ge=1, le=1_000_000)] | None = None
    requests_per_s: Positive | None = None

    @property
    def name(self) -> str:
        return f"concurrency {self.concurrency:g}" if self.concurrency else f"{self.requests_per_s or 0:g}/s"


class SavedRatio(BaseModel):
    ratio: Positive
    low: Number | None
    high: Number | None

    @property
    def interval(self) -> str:
        return f"{self.low:.2f} to {self.high:.2f}" if self.low and self.high else ""


class LoadPoint(BaseModel):
    load: LoadSize
    requests_per_round: Count
    judged_by: Literal["output_tokens_per_s", "mean_e2e_ms"]
    arms: Annotated[dict[Text, LoadArm], Field(min_length=1, max_length=2)]
    speedup: SavedRatio | None
    unfit: Text | None = None


class MeasuredWorkload(BaseModel):
    """The prompts and lengths of a load benchmark; workloads with equal digests are equal."""

    sha256: Text
    source: Text


class MachineNoise(BaseModel):
    """Median time of a fixed amount of work on the client's machine."""

    median_work_ms: Positive


class SimulatedAcceptance(BaseModel):
    """The forced acceptance rate of each position in a capacity test."""

    acceptance_rates: Annotated[list[Share], Field(max_length=1000)]


class LoadDocument(SavedDocument):
    """Output of `bench --json` with --concurrency or --rate; `simulated` is None unless acceptance was forced."""

    kind: Literal["load"]
    driver: Text
    workload: MeasuredWorkload
    noise: MachineNoise
    points: Annotated[list[LoadPoint], Field(min_length=1, max_length=1000)]
    warnings: Annotated[list[Text], Field(max_length=1000)] = []
    simulated: SimulatedAcceptance | None = None


class PlanStep(BaseModel):
    """A step of a plan; `key_parts` has the digests of the parts of its key, and is empty if they were not recorded."""

    name: Text
    key: Sha256
    key_parts: dict[str, str] = {}
    read_bytes: Count | None = None
    write_bytes: Count | None = None


class DeviceTotal(BaseModel):
    id: Text
    total_bytes: int


class PlanMemory(BaseModel):
    gpus: list[DeviceTotal]


class PredictedBatch(BaseModel):
    """Predicted speed-ups at one batch size, by acceptance rate."""

    batch: Annotated[int, Field(ge=1, le=100_000)]
    speedup: Annotated[dict[Text, Positive], Field(max_length=10)]


class Predicted(BaseModel):
    """Predicted effect of speculation; `batches` is empty and `why_not` is the reason if it cannot be predicted."""

    why_not: Text = ""
    gpu: Text = ""
    gpus: Count = 0
    draft_len: Count = 0
    batches: Annotated[list[PredictedBatch], Field(max_length=64)] = []


class PlanDocument(SavedDocument):
    """Output of `plan --json`; documents of earlier versions lack `recipe` and `key_parts`."""

    name: Text
    recipe: dict[str, Any] | None = None
    keys_are_final: bool = True
    steps: list[PlanStep]
    memory: PlanMemory
    predicted: Predicted | None = None


class MeanLengths(BaseModel):
    """Token-weighted mean accepted length with its confidence interval, as (mean, low, high)."""

    token_weighted: tuple[Number, Number, Number]


class KindStats(BaseModel):
    kind: Text
    acceptance_rate: Share
    mean_accepted_len: MeanLengths
    by_position: Annotated[list[Share], Field(max_length=64)] = []


class BatchSpeedup(BaseModel):
    """Expected speed-up at a batch size and a draft length, with its interval."""

    batch: Annotated[int, Field(ge=1, le=100_000)]
    draft_len: Count
    speedup: Positive
    interval: tuple[Number, Number]


class ProfiledCandidate(BaseModel):
    """Measured acceptance and expected speed-ups of one profiled method or draft.

    `mean_accepted_lens` and `by_positions` are by draft length; documents of earlier versions lack them.
    """

    method: Text
    draft: Text | None
    draft_len: Count
    acceptance_rate: Share
    mean_accepted_len: MeanLengths
    by_position: Annotated[list[Share], Field(max_length=64)]
    by_kind: Annotated[list[KindStats], Field(max_length=1000)]
    best: Annotated[list[BatchSpeedup], Field(max_length=64)]
    speedups: Annotated[list[BatchSpeedup], Field(max_length=10_000)]
    mean_accepted_lens: Annotated[dict[Text, Positive], Field(max_length=64)] = {}
    by_positions: Annotated[dict[Text, Annotated[list[Share], Field(max_length=64)]], Field(max_length=64)] = {}

    @property
    def name(self) -> str:
        return f"{self.method} ({self.draft})" if self.draft else self.method


class ProfileDocument(SavedDocument):
    """Output of `profile --json`."""

    name: Text
    prompts: Count
    tokens: Count
    methods: Annotated[list[ProfiledCandidate], Field(max_length=100)]


class DraftAcceptance(BaseModel):
    """Mean accepted length of a draft on held-out prompts, with its interval."""

    mean_accepted_len: Positive
    interval: tuple[Number, Number]


class KindAcceptance(BaseModel):
    """Acceptance on one kind of prompt before and after training."""

    kind: Text
    before: DraftAcceptance
    after: DraftAcceptance
    verdict: Text


class TrainDocument(SavedDocument):
    """Output of `train --json`."""

    published: bool
    refusals: Annotated[list[Text], Field(max_length=1000)]
    before: DraftAcceptance
    after: DraftAcceptance
    kinds: Annotated[list[KindAcceptance], Field(max_length=1000)]


Document = TypeVar("Document", bound=BaseModel)


def read_values(
    path: Path, hint: str, max_bytes: int = MAX_BYTES, max_values: int = MAX_VALUES
) -> tuple[dict[str, Any], bytes]:
    """Read a JSON file; return its values and its bytes. Raises TrtspecError if the file is not valid or too large."""
    try:
        data = read_bounded(path, max_bytes)
        return parse_object(data, max_values), data
    except OSError as error:
        raise TrtspecError(describe_read_error(error), where=str(path), hint=hint) from None
    except ValueError as error:
        raise TrtspecError(str(error), where=str(path), hint=hint) from None


def validated(schema: type[Document], values: dict[str, Any], path: Path, hint: str) -> Document:
    """Parse the values of a file as a document; raise TrtspecError with the first invalid key."""
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        raise TrtspecError(str(first_invalid(error)), where=str(path), hint=hint) from None
