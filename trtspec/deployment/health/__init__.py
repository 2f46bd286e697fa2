# SPDX-License-Identifier: Apache-2.0
"""Health probes of a server and the policy that decides when it is restarted."""
