# Builds the plugin so that it loads on older systems: against glibc 2.28 (RHEL 8, Debian 10, Ubuntu 20.04) and with its
# own C++ runtime, using the clang in the Python package ziglang. Without that package the system's compiler is used,
# and the plugin needs a C library at least as new as this system's.
set(WEFT_GLIBC 2.28)

# Path of the zig compiler; empty without ziglang, in sanitizer builds and in the nested portable build.
set(WEFT_ZIG "")
if(NOT WEFT_SANITIZE AND NOT WEFT_PORTABLE)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import ziglang, pathlib; print(pathlib.Path(ziglang.__file__).parent / 'zig')"
    OUTPUT_VARIABLE WEFT_ZIG OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT WEFT_ZIG)
    message(STATUS "The plugin will need this system's C library or a newer one: pip install ziglang, and build again, "
                   "for one that runs with glibc ${WEFT_GLIBC}")
  endif()
endif()

# weft_build_portable(NAME): builds that library as a target, from the same sources in a separate build tree.
function(weft_build_portable name)
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
  # The only headers taken from the system; all others come with the compiler.
  if(WEFT_IBVERBS_HEADER)
    file(MAKE_DIRECTORY ${tree}/include)
    file(CREATE_LINK ${WEFT_IBVERBS_HEADER}/infiniband ${tree}/include/infiniband SYMBOLIC)
    set(verbs -DWEFT_IBVERBS_HEADER=${tree}/include "-DCMAKE_CXX_FLAGS=-isystem ${tree}/include")
  endif()
  include(ExternalProject)
  ExternalProject_Add(
    weft_portable
    SOURCE_DIR ${CMAKE_SOURCE_DIR}
    BINARY_DIR ${tree}
    PREFIX ${tree}/state
    CMAKE_ARGS -DWEFT_PORTABLE=ON -DWEFT_BUILT_POLICIES=${CMAKE_BINARY_DIR}/policies -DCMAKE_BUILD_TYPE=${CMAKE_BUILD_TYPE}
               -DCMAKE_C_COMPILER=${tree}/cc -DCMAKE_CXX_COMPILER=${tree}/c++ -DWEFT_CUDA_KERNELS=OFF
               -DCMAKE_MAKE_PROGRAM=${CMAKE_MAKE_PROGRAM}
               -DPython_EXECUTABLE=${Python_EXECUTABLE} -DCMAKE_MODULE_LINKER_FLAGS=-s ${verbs}
    BUILD_ALWAYS ON
    BUILD_COMMAND ${CMAKE_COMMAND} --build ${tree} --target ${name}
    BUILD_BYPRODUCTS ${tree}/lib${name}.so
    INSTALL_COMMAND ${CMAKE_COMMAND} -E copy_if_different ${tree}/lib${name}.so ${CMAKE_BINARY_DIR}/lib${name}.so
    DEPENDS weft_policies
    USES_TERMINAL_BUILD ON)
  add_custom_target(${name} ALL DEPENDS weft_portable)
  install(PROGRAMS ${CMAKE_BINARY_DIR}/lib${name}.so DESTINATION transport/lib)
endfunction()
