# SPDX-License-Identifier: Apache-2.0
"""What is known of an artifact, as one page to look at or as what a CI job shows."""
