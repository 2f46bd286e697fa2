# SPDX-License-Identifier: Apache-2.0
"""Everything that waits for a GPU, in one bounded run on a bare machine: `make gpu`.

It lies among the benchmarks because, like them, it is run by hand on a machine that fits and leaves JSON. `run.sh`
starts it; `parts` says what is run, `runner` runs a part, `probe` says what the machine lacks, `wheels` unpacks the
packages that were brought, `summary` says what came of it. None of these imports anything beyond the standard library,
so that a machine which lacks a package is told so. `engine` is the benchmark of the last part.
"""
