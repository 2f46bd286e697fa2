// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifndef NV_TENSORRT_MAJOR
#define NV_TENSORRT_MAJOR 11
#endif
