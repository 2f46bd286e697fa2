# SPDX-License-Identifier: Apache-2.0
"""Classes of two generations: up to 1.2 (dispatch by `from_dict`, assertions), then pydantic's union by decoding_type.

Accepted and rejected values follow NVIDIA/TensorRT-LLM:tensorrt_llm/llmapi/llm_args.py @v1.0.0, @v1.2.1 and
@0004396; those of DSpark's confidence scheduling follow the reference of 1.4.0rc4.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

VERSION = os.environ["TRTLLM_DOUBLE"]
MINOR = int(VERSION.split(".")[1])
IS_OLD = MINOR < 3
Share = Annotated[float, Field(ge=0, le=1)]


class StrictBaseModel(BaseModel):
    model_config = ConfigDict(extra="forbid")


class KvCacheConfig(StrictBaseModel):
    enable_block_reuse: bool = True
    free_gpu_memory_fraction: float | None = Field(default=0.9, ge=0, le=1)
    dtype: str = "auto"


if IS_OLD:

    class _Fields(StrictBaseModel):
        """The fields of a version's base class."""

        max_draft_len: int | None = None
        if MINOR < 2:
            speculative_model_dir: str | None = None
        else:
            speculative_model: str | None = None
            draft_len_schedule: dict[int, int] | None = None
        if MINOR > 0:
            max_concurrency: PositiveInt | None = None

    class DecodingBaseConfig(_Fields):
        @model_validator(mode="after")
        def check_schedule(self) -> DecodingBaseConfig:
            schedule = getattr(self, "draft_len_schedule", None)
            if schedule and 1 not in schedule:
                raise ValueError("draft_len_schedule must include batch_size=1")
            if schedule and self.max_draft_len and schedule[1] != self.max_draft_len:
                raise ValueError("draft_len_schedule[1] must equal max_draft_len")
            return self

        @property
        def draft(self) -> str | None:
            return self.speculative_model_dir if MINOR < 2 else self.speculative_model

        @classmethod
        def from_dict(cls, data: dict[str, Any]) -> DecodingBaseConfig:
            kinds = {
                "MTP": MTPDecodingConfig,
                "Medusa": MedusaDecodingConfig,
                "Eagle": EagleDecodingConfig,
                "NGram": NGramDecodingConfig,
                "DraftTarget": DraftTargetDecodingConfig,
            }
            if (kind := kinds.get(data.get("decoding_type"))) is None:
                raise ValueError(f"Invalid decoding type: {data.get('decoding_type')}")
            data.pop("decoding_type")
            return kind(**data)

        def supports_backend(self, backend: str) -> bool:
            return True

        def validate(self) -> None:
            pass

    class MedusaDecodingConfig(DecodingBaseConfig):
        medusa_choices: list[list[int]] | None = None

        def supports_backend(self, backend: str) -> bool:
            return backend not in ("pytorch", "_autodeploy")

    class EagleDecodingConfig(DecodingBaseConfig):
        decoding_type: ClassVar[str] = "Eagle"
        use_dynamic_tree: bool = False
        dynamic_tree_max_topK: int | None = None  # noqa: N815  as it is called
        eagle3_one_model: bool = True

        def validate(self) -> None:
            if self.draft is None:
                raise ValueError("Draft model must be provided for EAGLE")

    class NGramDecodingConfig(DecodingBaseConfig):
        max_matching_ngram_size: int = 0
        is_public_pool: bool = True

    class DraftTargetDecodingConfig(DecodingBaseConfig):
        pass

    class MTPDecodingConfig(DecodingBaseConfig):
        num_nextn_predict_layers: int = 1

    SpeculativeConfig: Any = DecodingBaseConfig

else:

    class DecodingBaseConfig(StrictBaseModel):
        max_draft_len: NonNegativeInt | None = None
        max_total_draft_tokens: int | None = None
        speculative_model: str | None = Field(
            default=None, validation_alias=AliasChoices("speculative_model", "speculative_model_dir")
        )
        max_concurrency: PositiveInt | None = None
        draft_len_schedule: dict[int, NonNegativeInt] | None = None
        acceptance_rate_window_size: NonNegativeInt | None = None
        acceptance_rate_threshold: Share | None = None
        use_rejection_sampling: bool = False
        allow_advanced_sampling: bool = False

        @model_validator(mode="after")
        def check_lengths(self) -> DecodingBaseConfig:
            schedule = self.draft_len_schedule
            if schedule is not None and self.max_concurrency is not None:
                raise ValueError("max_concurrency and draft_len_schedule are mutually exclusive")
            if schedule and schedule[min(schedule)] != self.max_draft_len:
                raise ValueError(f"draft_len_schedule[{min(schedule)}] must equal max_draft_len")
            if schedule and max(schedule.values()) > self.max_draft_len:
                raise ValueError("draft_len_schedule: all draft lengths must be <= max_draft_len")
            if self.use_rejection_sampling and self.decoding_type in ("NGram", "SA"):
                raise ValueError("use_rejection_sampling=True is not supported for this configuration")
            return self

        def supports_backend(self, backend: str) -> bool:
            return True

        def check(self, *, with_model: bool) -> None:
            if not self.max_draft_len:
                raise ValueError("max_draft_len must be > 0")
            if with_model and self.speculative_model is None:
                raise ValueError("speculative_model must be specified")

    class Eagle3DecodingConfig(DecodingBaseConfig):
        decoding_type: Literal["Eagle3"] = "Eagle3"
        use_dynamic_tree: bool = False
        dynamic_tree_max_topK: int | None = None  # noqa: N815  as it is called

        @model_validator(mode="after")
        def complete(self) -> Eagle3DecodingConfig:
            self.check(with_model=True)
            if self.use_dynamic_tree:
                most = self.max_draft_len * self.dynamic_tree_max_topK
                if not self.max_draft_len <= self.max_total_draft_tokens <= most:
                    raise ValueError(f"max_total_draft_tokens must be in [{self.max_draft_len}, {most}]")
            return self

    class NGramDecodingConfig(DecodingBaseConfig):
        decoding_type: Literal["NGram"] = "NGram"
        max_matching_ngram_size: PositiveInt = 2
        is_public_pool: bool = True

        @model_validator(mode="after")
        def complete(self) -> NGramDecodingConfig:
            self.check(with_model=False)
            return self

    class DraftTargetDecodingConfig(DecodingBaseConfig):
        decoding_type: Literal["Draft_Target"] = "Draft_Target"

        @model_validator(mode="after")
        def complete(self) -> DraftTargetDecodingConfig:
            self.check(with_model=True)
            return self

    class MTPDecodingConfig(DecodingBaseConfig):
        decoding_type: Literal["MTP"] = "MTP"

    class PARDDecodingConfig(DecodingBaseConfig):
        decoding_type: Literal["PARD"] = "PARD"
        mask_token_id: int | None = None

    class DFlashDecodingConfig(DecodingBaseConfig):
        decoding_type: Literal["DFlash"] = "DFlash"
        mask_token_id: int | None = None
        target_layer_ids: list[int] | None = None

    class DSparkDecodingConfig(DFlashDecodingConfig):
        decoding_type: Literal["DSpark"] = "DSpark"
        block_size: PositiveInt | None = None
        if VERSION not in ("1.4.0rc1", "1.4.0rc2", "1.4.0rc3") and MINOR > 3:
            enable_confidence_scheduling: bool = False
            confidence_cost_table_path: str | None = None
            confidence_calibration_path: str | None = None
            confidence_min_predicted_gain: Share = 0.04
            enable_fused_confidence_scheduler: bool = True

    class SADecodingConfig(DecodingBaseConfig):
        decoding_type: Literal["SA"] = "SA"
        max_matching_ngram_size: int = -1
        enable_global_pool: bool = False
        global_pool_size: PositiveInt | None = None

        @model_validator(mode="after")
        def complete(self) -> SADecodingConfig:
            self.check(with_model=False)
            if self.max_matching_ngram_size == 0:
                raise ValueError("max_matching_ngram_size must be > 0 (fixed ngram) or -1 (longest match)")
            if self.global_pool_size is not None and not self.enable_global_pool:
                raise ValueError("global_pool_size requires enable_global_pool=True")
            return self

    SpeculativeConfig = Annotated[
        Eagle3DecodingConfig
        | NGramDecodingConfig
        | DraftTargetDecodingConfig
        | MTPDecodingConfig
        | PARDDecodingConfig
        | DFlashDecodingConfig
        | DSparkDecodingConfig
        | SADecodingConfig,
        Field(discriminator="decoding_type"),
    ]


class TorchLlmArgs(StrictBaseModel):
    model: str
    backend: Literal["pytorch"] = "pytorch"
    dtype: str = "auto"
    revision: str | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    max_batch_size: PositiveInt = 2048
    max_input_len: PositiveInt = 1024
    max_seq_len: PositiveInt | None = None
    max_num_tokens: PositiveInt = 8192
    enable_chunked_prefill: bool = False
    guided_decoding_backend: Literal["xgrammar", "llguidance"] | None = None
    kv_cache_config: KvCacheConfig = KvCacheConfig()
    speculative_config: SpeculativeConfig | None = None
    cuda_graph_config: dict[str, Any] | None = None
