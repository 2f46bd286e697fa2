// SPDX-License-Identifier: Apache-2.0
// Definitions for compiling the same source for the host and for a GPU.
#pragma once

#if defined(__CUDACC__)
#define TRTSPEC_HD __host__ __device__
#else
#define TRTSPEC_HD
#endif

#if defined(__CUDA_ARCH__)
#define TRTSPEC_UNROLL _Pragma("unroll")
#define TRTSPEC_NO_UNROLL _Pragma("unroll 1")
#define TRTSPEC_DEVICE_CALL __noinline__
#else
#define TRTSPEC_UNROLL
#define TRTSPEC_NO_UNROLL
#define TRTSPEC_DEVICE_CALL
#endif
