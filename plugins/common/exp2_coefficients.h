// SPDX-License-Identifier: Apache-2.0
// 2^f on [0, 1], degree 5, evaluated by Horner's rule with fused multiply-adds in float32:
//   2^f = 1 + f (C1 + f (C2 + f (C3 + f (C4 + f C5))))
// The relative error is below 1.6e-7 with all roundings; it is 1 at f = 0 and exactly 2 at f = 1, which the caller
// clamps to the largest float below 2. Equal weights everywhere require equal coefficients:
// trtspec/kernels/bit_exact/fixed_point.py has the same ones, and a test compares them.
#ifndef TRTSPEC_COMMON_EXP2_COEFFICIENTS_H
#define TRTSPEC_COMMON_EXP2_COEFFICIENTS_H

#define TRTSPEC_EXP2_C1 0x1.62e4c8p-1f
#define TRTSPEC_EXP2_C2 0x1.ebd8a2p-3f
#define TRTSPEC_EXP2_C3 0x1.c94438p-5f
#define TRTSPEC_EXP2_C4 0x1.269e16p-7f
#define TRTSPEC_EXP2_C5 0x1.eca68p-10f

#endif
