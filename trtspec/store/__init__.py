# SPDX-License-Identifier: Apache-2.0
"""Content-addressed build store: steps and their keys, published outputs, artifacts and their manifests."""
