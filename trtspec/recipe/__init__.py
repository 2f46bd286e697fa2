# SPDX-License-Identifier: Apache-2.0
"""Recipes: parse (yaml_parser), compose (load, matrix), check (schema, validate) and complete (resolve).

This file imports nothing, so that importing only RecipeError does not load pydantic.
"""
