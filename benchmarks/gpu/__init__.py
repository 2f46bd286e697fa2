# SPDX-License-Identifier: Apache-2.0
"""All GPU checks in one bounded run on a bare machine: `make gpu`.

It is part of the benchmarks because it is also run by hand on a suitable machine and writes JSON. `run.sh` starts it;
`parts` lists the parts, `runner` runs one, `probe` detects what the machine lacks, `wheels` unpacks the provided
packages, `summary` reports the results. These modules import only the standard library, so that a missing package is
reported. `engine` is the benchmark of the last part.
"""
