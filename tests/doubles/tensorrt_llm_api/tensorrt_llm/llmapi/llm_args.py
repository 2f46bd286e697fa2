# SPDX-License-Identifier: Apache-2.0
"""The classes of two ages: 1.0 (dispatch by `from_dict`, assertions) and 1.3 (pydantic's union by decoding_type)."""

from __future__ import annotations

import os
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

VERSION = os.environ["TRTLLM_DOUBLE"]
IS_OLD = VERSION.startswith("1.0")


class StrictBaseModel(BaseModel):
    model_config = ConfigDict(extra="forbid")


class KvCacheConfig(StrictBaseModel):
    enable_block_reuse: bool = True
    free_gpu_memory_fraction: float | None = Field(default=0.9, ge=0, le=1)
    dtype: str = "auto"


if IS_OLD:

    class DecodingBaseConfig(StrictBaseModel):
        max_draft_len: int | None = None
        speculative_model_dir: str | None = None

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
            if self.speculative_model_dir is None:
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
        allow_advanced_sampling: bool = False

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

    SpeculativeConfig = Annotated[
        Eagle3DecodingConfig | NGramDecodingConfig | DraftTargetDecodingConfig | MTPDecodingConfig,
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
    kv_cache_config: KvCacheConfig = KvCacheConfig()
    speculative_config: SpeculativeConfig | None = None
    cuda_graph_config: dict[str, Any] | None = None
