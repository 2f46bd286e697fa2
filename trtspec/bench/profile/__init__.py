# SPDX-License-Identifier: Apache-2.0
"""Speed profiles of draft methods and draft lengths, in this process or on a running server."""
