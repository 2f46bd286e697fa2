# SPDX-License-Identifier: Apache-2.0
"""What a draft begins as that is made from nothing: one file a speculation method."""
