# SPDX-License-Identifier: Apache-2.0
"""The documentation site: collects the pages, generates the reference, builds HTML with Zensical and checks all links.

`python -m docs.site` writes it to build/site (`make docs`).
"""
