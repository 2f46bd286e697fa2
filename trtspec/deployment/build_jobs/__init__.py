# SPDX-License-Identifier: Apache-2.0
"""Jobs of a Kubernetes cluster that build recipes and push the artifacts (`trtspec build-job`)."""
