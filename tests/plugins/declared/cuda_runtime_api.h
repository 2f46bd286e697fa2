// SPDX-License-Identifier: Apache-2.0
// The only name of CUDA's runtime in a plugin's interface.
#pragma once

using cudaStream_t = struct CUstream_st*;
