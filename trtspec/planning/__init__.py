# SPDX-License-Identifier: Apache-2.0
"""All work before a build: checks, plans, speed prediction, recipe proposals, inspection and migration."""
