# SPDX-License-Identifier: Apache-2.0
"""The HTTP proxy in front of tritonserver: it validates requests and forwards them to the server's Unix sockets."""
