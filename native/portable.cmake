# Builds what is installed so that it loads on older systems: against glibc 2.28 (RHEL 8, Debian 10, Ubuntu 20.04) and
# with its own C++ runtime, using the clang in the Python package ziglang. Without that package the system's compiler
# is used, and everything needs a C library at least as new as this system's.
set(WEFT_GLIBC 2.28)

# Path of the zig compiler; empty without ziglang, in sanitizer builds, in the nested portable build and where zig
# itself compiles for another architecture (tests/aarch64.py).
set(WEFT_ZIG "")
if(NOT WEFT_SANITIZE AND NOT WEFT_PORTABLE AND NOT CMAKE_CROSSCOMPILING)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import ziglang, pathlib; print(pathlib.Path(ziglang.__file__).parent / 'zig')"
    OUTPUT_VARIABLE WEFT_ZIG OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT WEFT_ZIG)
    message(STATUS "weft will need this system's C library or a newer one: pip install ziglang, and build again, "
                   "for one that runs with glibc ${WEFT_GLIBC}")
  endif()
endif()

# weft_use_system_unwinder(TARGET): lets a library that Python loads unwind stacks by the system's libgcc_s, as the C
# library does. zig would link in an unwinder of its own. If the interpreter ends a thread (pthread_exit), the C library
# unwinds its stack by libgcc_s, through functions of this library, whose exception tables only one unwinder must read.
# The library to link against is made here, with the symbols of libgcc_s that a C++ runtime needs.
function(weft_use_system_unwinder target)
  set(oldest RaiseException Resume DeleteException ForcedUnwind GetGR SetGR GetIP SetIP GetRegionStart
             GetLanguageSpecificData GetTextRelBase GetDataRelBase)
  set(newer Backtrace GetCFA Resume_or_Rethrow FindEnclosingFunction)
  list(TRANSFORM oldest PREPEND _Unwind_)
  list(TRANSFORM newer PREPEND _Unwind_)
  set(source ${CMAKE_BINARY_DIR}/libgcc_s.c)
  set(versions ${CMAKE_BINARY_DIR}/libgcc_s.map)
  list(JOIN oldest "; " first)
  list(JOIN newer "; " second)
  file(WRITE ${versions} "GCC_3.0 { global: ${first}; local: *; };\nGCC_3.3 { global: ${second}; } GCC_3.0;\n")
  file(WRITE ${source} "/* Symbols of the system's libgcc_s, to link against. */\n")
  foreach(symbol ${oldest} ${newer})
    file(APPEND ${source} "void ${symbol}(void) {}\n")
  endforeach()
  add_library(weft_unwinder SHARED ${source})
  set_target_properties(weft_unwinder PROPERTIES PREFIX "" OUTPUT_NAME libgcc_s SUFFIX .so.1 NO_SONAME ON
                                                 C_VISIBILITY_PRESET default)
  target_link_options(weft_unwinder PRIVATE -nostdlib -Wl,-soname,libgcc_s.so.1 -Wl,--version-script=${versions})
  target_link_libraries(${target} PRIVATE weft_unwinder)
  set_target_properties(${target} PROPERTIES SKIP_BUILD_RPATH ON)
endfunction()

# weft_portable_headers(TREE): links the only headers that are taken from the system below TREE/include; all others
# come with the compiler. Debian's pyconfig.h includes another one by a path below /usr/include.
function(weft_portable_headers tree)
  file(MAKE_DIRECTORY ${tree}/include)
  foreach(folder ${Python_INCLUDE_DIRS})
    get_filename_component(name ${folder} NAME)
    set(triplet ${CMAKE_LIBRARY_ARCHITECTURE}/${name})
    if(CMAKE_LIBRARY_ARCHITECTURE AND EXISTS /usr/include/${triplet})
      file(MAKE_DIRECTORY ${tree}/include/${CMAKE_LIBRARY_ARCHITECTURE})
      file(CREATE_LINK /usr/include/${triplet} ${tree}/include/${triplet} SYMBOLIC)
    endif()
  endforeach()
endfunction()

# weft_build_portable(): builds the targets nccl-net-weft and weft_native from the same sources in a separate build
# tree, and installs them.
function(weft_build_portable)
  set(tree ${CMAKE_BINARY_DIR}/portable)
  set(compiler "${WEFT_ZIG}")
  set(target -target ${CMAKE_SYSTEM_PROCESSOR}-linux-gnu.${WEFT_GLIBC})
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    list(APPEND target -mcpu=x86_64_v3)
  endif()
  list(JOIN target " " target)
  # CMake requires the compiler to be a single file.
  foreach(language cc c++)
    file(WRITE ${tree}/${language} "#!/bin/sh\nexec '${compiler}' ${language} ${target} \"$@\"\n")
    file(CHMOD ${tree}/${language} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  endforeach()
  weft_portable_headers(${tree})
  set(plugin ${tree}/libnccl-net-weft.so)
  set(extension ${tree}/_native${PYTHON_MODULE_EXTENSION})
  include(ExternalProject)
  ExternalProject_Add(
    weft_portable
    SOURCE_DIR ${CMAKE_SOURCE_DIR}
    BINARY_DIR ${tree}
    PREFIX ${tree}/state
    CMAKE_ARGS -DWEFT_PORTABLE=ON -DWEFT_BUILT_POLICIES=${CMAKE_BINARY_DIR}/policies -DCMAKE_BUILD_TYPE=${CMAKE_BUILD_TYPE}
               -DCMAKE_C_COMPILER=${tree}/cc -DCMAKE_CXX_COMPILER=${tree}/c++ "-DCMAKE_CXX_FLAGS=-isystem ${tree}/include"
               -DWEFT_CUDA_KERNELS=${WEFT_CUDA_KERNELS} -DWEFT_NVCC_HOST_COMPILER=${CMAKE_CXX_COMPILER}
               -DCMAKE_MAKE_PROGRAM=${CMAKE_MAKE_PROGRAM} -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON
               -DPython_EXECUTABLE=${Python_EXECUTABLE} -Dpybind11_DIR=${pybind11_DIR}
               -DCMAKE_MODULE_LINKER_FLAGS=-s
    BUILD_ALWAYS ON
    BUILD_COMMAND ${CMAKE_COMMAND} --build ${tree} --target nccl-net-weft --target weft_native
    BUILD_BYPRODUCTS ${plugin} ${extension}
    INSTALL_COMMAND ${CMAKE_COMMAND} -E copy_if_different ${plugin} ${CMAKE_BINARY_DIR}/libnccl-net-weft.so
    DEPENDS weft_policies
    USES_TERMINAL_BUILD ON)
  add_custom_target(nccl-net-weft ALL DEPENDS weft_portable)
  install(PROGRAMS ${CMAKE_BINARY_DIR}/libnccl-net-weft.so DESTINATION transport/lib)
  install(PROGRAMS ${extension} DESTINATION transport)
endfunction()
