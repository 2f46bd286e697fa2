# SPDX-License-Identifier: Apache-2.0
"""Model families, one module each: the mapping of config.json to a ModelConfig, and the tensor rules."""
