# SPDX-License-Identifier: Apache-2.0
"""Recipes: parsing (yaml_tree), composition (load, matrix), validation (schema, validate), defaults (resolve), editing.

This file imports nothing, so that importing only RecipeError does not load pydantic.
"""
