# SPDX-License-Identifier: Apache-2.0
"""Building of many artifacts at once on a pool of workers: each step key once, wherever the labels of a node fit."""
