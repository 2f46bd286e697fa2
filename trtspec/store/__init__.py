# SPDX-License-Identifier: Apache-2.0
"""Build store: steps and their keys, published outputs, artifacts and their manifests."""
