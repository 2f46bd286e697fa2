# SPDX-License-Identifier: Apache-2.0
"""Recipes: read and limited (document), composed (load, matrix), checked (schema, validate), made complete (resolve).

Nothing is imported here: whoever only catches a RecipeError must not wait for pydantic.
"""
