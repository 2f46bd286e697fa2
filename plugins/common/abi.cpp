// SPDX-License-Identifier: Apache-2.0
#include "trtspec/verify.h"

extern "C" int trtspec_abi_version(void) { return TRTSPEC_ABI_VERSION; }

extern "C" const char* trtspec_error(int code) {
    switch (code) {
        case TRTSPEC_OK:
            return "all is well";
        case TRTSPEC_BAD_STRUCT_SIZE:
            return "struct_size is smaller than this library's struct";
        case TRTSPEC_BAD_SIZE:
            return "a count or stride is out of range";
        case TRTSPEC_BAD_DTYPE:
            return "a dtype is unknown, or not the one that the draft has to have";
        case TRTSPEC_BAD_KIND:
            return "the kind of draft or the mode is unknown, or the mode needs a draft";
        case TRTSPEC_BAD_POINTER:
            return "a pointer is null where it is needed, or not aligned to its elements";
        case TRTSPEC_BAD_WORKSPACE:
            return "the workspace is smaller than it has to be";
        case TRTSPEC_NO_DEVICE_CODE:
            return "the library has no code for this GPU";
        case TRTSPEC_LAUNCH_FAILED:
            return "CUDA refused the launch";
        case TRTSPEC_UNSUPPORTED_CPU:
            return "the library was compiled for a newer instruction set than this CPU has";
        default:
            return "unknown code";
    }
}
