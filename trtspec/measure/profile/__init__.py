# SPDX-License-Identifier: Apache-2.0
"""Which draft pays for a target, on somebody's own prompts: measured acceptance and measured step times."""
