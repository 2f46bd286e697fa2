# SPDX-License-Identifier: Apache-2.0
"""Everything before a build: checks, plans, predictions, recipe proposals, inspection and migration."""
