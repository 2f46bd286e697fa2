# SPDX-License-Identifier: Apache-2.0
"""Model families, one module each, with the mapping of config.json and the tensor rules of its models."""
