# SPDX-License-Identifier: Apache-2.0
"""Speed profiles of draft methods and lengths, in process and on a running server."""
