# SPDX-License-Identifier: Apache-2.0
"""Model families, one module each: mapping of config.json and tensor rules."""
