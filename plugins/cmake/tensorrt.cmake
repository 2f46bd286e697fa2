# SPDX-License-Identifier: Apache-2.0
# The plugin library libtrtspec_tensorrt.so, if nvcc and TensorRT's headers are found: in TENSORRT_ROOT (a variable of
# cmake or of the environment), or in the system's directories. TensorRT is not linked; the library includes the C ABI
# from `trtspec_objects`.
#
#   cmake -S plugins -B build/plugins -DTENSORRT_ROOT=/opt/tensorrt
#   cmake --build build/plugins --target trtspec_tensorrt

set(TENSORRT_ROOT "$ENV{TENSORRT_ROOT}" CACHE PATH "where include/NvInferRuntime.h lies")
find_path(TRTSPEC_TENSORRT_INCLUDE NvInferRuntime.h
  HINTS "${TENSORRT_ROOT}/include" "${TENSORRT_ROOT}"
  PATHS /usr/local/tensorrt/include /opt/tensorrt/include)

if(NOT TRTSPEC_TENSORRT_INCLUDE)
  message(STATUS "TensorRT's headers are not here (TENSORRT_ROOT): its plugin library is left out")
  return()
endif()
if(NOT CMAKE_CUDA_COMPILER)
  message(STATUS "nvcc is not here: TensorRT's plugin library is left out")
  return()
endif()

file(STRINGS "${TRTSPEC_TENSORRT_INCLUDE}/NvInferVersion.h" TRTSPEC_TENSORRT_VERSION
  REGEX "define (NV_TENSORRT|TRT)_(MAJOR|MINOR)(_ENTERPRISE)? +[0-9]+")
string(REGEX REPLACE "[^0-9;]" "" TRTSPEC_TENSORRT_VERSION "${TRTSPEC_TENSORRT_VERSION}")
list(JOIN TRTSPEC_TENSORRT_VERSION "." TRTSPEC_TENSORRT_VERSION)
if(TRTSPEC_TENSORRT_VERSION VERSION_LESS 10)
  message(FATAL_ERROR "TensorRT ${TRTSPEC_TENSORRT_VERSION} in ${TRTSPEC_TENSORRT_INCLUDE}: plugins need 10 or later")
endif()
message(STATUS "TensorRT ${TRTSPEC_TENSORRT_VERSION}: ${TRTSPEC_TENSORRT_INCLUDE}")

add_library(trtspec_tensorrt MODULE
  tensorrt/library.cpp
  tensorrt/log.cpp
  tensorrt/options.cpp
  tensorrt/plugin.cpp
  tensorrt/tensors.cpp
  tensorrt/type.cpp
  verify_chain/tensorrt.cpp
  verify_tree/tensorrt.cpp)
target_compile_features(trtspec_tensorrt PRIVATE cxx_std_17)
target_compile_options(trtspec_tensorrt PRIVATE -Wall -Wextra -Werror)
target_include_directories(trtspec_tensorrt PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}" include)
target_include_directories(trtspec_tensorrt SYSTEM PRIVATE "${TRTSPEC_TENSORRT_INCLUDE}" ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(trtspec_tensorrt PRIVATE trtspec_objects ${CMAKE_DL_LIBS})
target_link_options(trtspec_tensorrt PRIVATE
  -Wl,--no-undefined "-Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/tensorrt/exports.map")
set_target_properties(trtspec_tensorrt PROPERTIES
  CXX_VISIBILITY_PRESET hidden
  VISIBILITY_INLINES_HIDDEN ON
  LINK_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/tensorrt/exports.map")
