# SPDX-License-Identifier: Apache-2.0
"""Kinds of build jobs: extension, one module for each, which defines `KIND`; its name is the kind's name."""
