# SPDX-License-Identifier: Apache-2.0
"""Training with other projects: export of jobs and data, import of the trained draft."""
