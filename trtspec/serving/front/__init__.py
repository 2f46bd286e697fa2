# SPDX-License-Identifier: Apache-2.0
"""The HTTP front of a tritonserver: it checks requests and forwards them to the server's Unix sockets."""
