# SPDX-License-Identifier: Apache-2.0
"""The team store: entries of the store in a registry, a layout or a bucket that several machines share."""
