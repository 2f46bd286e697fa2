# SPDX-License-Identifier: Apache-2.0
# The library in the wheel of the Python package: kernels/libtrtspec.so, and library.json, which describes it as
# trtspec/kernels/build.py describes the libraries that it compiles.
#
# The library needs only the C library. The C++ runtime is linked statically, and of OpenMP only vectorization is used,
# not threads: `threads` has no effect, and trtspec always passes 1.
target_compile_options(trtspec_objects PRIVATE -fopenmp-simd -Wno-unknown-pragmas)
target_link_options(trtspec PRIVATE -static-libstdc++ -static-libgcc -Wl,--exclude-libs,ALL)

# The digest of the sources, as `_digest_files` of trtspec/kernels/build.py computes it: lines as sha256sum prints them.
file(GLOB_RECURSE files RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" CONFIGURE_DEPENDS
  *.cmake *.cpp *.cu *.cuh *.h CMakeLists.txt plugin.yaml)
list(SORT files)
set(lines "")
foreach(file IN LISTS files)
  file(SHA256 "${CMAKE_CURRENT_SOURCE_DIR}/${file}" digest)
  string(APPEND lines "${digest}  ${file}\n")
endforeach()
string(SHA256 sources "${lines}")

set(plugins ${files})
list(FILTER plugins INCLUDE REGEX "/plugin\\.yaml$")
list(TRANSFORM plugins REPLACE "(.*)/plugin\\.yaml" "\"\\1\"")
list(JOIN plugins "," plugins)

# JSON with sorted keys and without spaces, because its digest is of that form.
set(library "\"architectures\":[],\"compilers\":[\"${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}\"],")
string(APPEND library "\"machine\":\"${CMAKE_SYSTEM_PROCESSOR}\",\"plugins\":[${plugins}],\"sources\":\"${sources}\"")
set(document "\"library\":{${library}},\"schema\":\"trtspec.kernels/1\"")
string(SHA256 digest "{${document}}")
file(WRITE "${CMAKE_CURRENT_BINARY_DIR}/library.json" "{${document},\"digest\":\"${digest}\"}\n")

install(TARGETS trtspec LIBRARY DESTINATION kernels)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/library.json" DESTINATION kernels)
