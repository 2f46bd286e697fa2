// SPDX-License-Identifier: Apache-2.0
// The one name of CUDA's runtime that a plugin's interface has.
#pragma once

using cudaStream_t = struct CUstream_st*;
