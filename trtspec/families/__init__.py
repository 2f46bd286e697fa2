# SPDX-License-Identifier: Apache-2.0
"""Model families, one module each: configuration mapping and tensor rules."""
