# SPDX-License-Identifier: Apache-2.0
from tensorrt_llm.sampling_params import GuidedDecodingParams

__all__ = ["GuidedDecodingParams"]
