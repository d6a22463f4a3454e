# Determines whether the GPU kernels are compiled, for which GPUs, and what the library reports if they are not. Without
# nvcc they are left out; nothing links against CUDA either way.
set(WEFT_CUDA_KERNELS AUTO CACHE STRING "Compile the kernels for GPUs: AUTO (where nvcc works), ON (or fail), OFF")
set_property(CACHE WEFT_CUDA_KERNELS PROPERTY STRINGS AUTO ON OFF)
set(WEFT_NVCC_HOST_COMPILER ${CMAKE_CXX_COMPILER} CACHE FILEPATH "The C++ compiler that nvcc calls")
find_program(WEFT_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin
             DOC "The CUDA compiler, for the kernels")

# Sets `command` to the call of nvcc, or to an empty string with the reason in `why_not` if nvcc is missing or does not
# work.
function(weft_find_nvcc command why_not)
  set(${command} "" PARENT_SCOPE)
  if(NOT WEFT_NVCC)
    set(${why_not} "nvcc was not found" PARENT_SCOPE)
    return()
  endif()
  # Machine code for the data centre GPUs that this nvcc supports; PTX of the oldest, which drivers compile for later
  # GPUs.
  execute_process(COMMAND ${WEFT_NVCC} --list-gpu-code OUTPUT_VARIABLE known ERROR_VARIABLE ignored)
  string(REGEX MATCHALL "sm_[0-9]+" known "${known}")
  set(codes)
  foreach(code sm_80 sm_90)
    if(code IN_LIST known)
      list(APPEND codes ${code})
    endif()
  endforeach()
  if(NOT codes)
    set(${why_not} "${WEFT_NVCC} does not compile for sm_80 or sm_90" PARENT_SCOPE)
    return()
  endif()
  list(GET codes 0 oldest)
  string(REPLACE sm_ compute_ oldest ${oldest})
  list(JOIN codes , codes)
  set(call ${WEFT_NVCC} -fatbin -std=c++17 -O3 -ccbin ${WEFT_NVCC_HOST_COMPILER} -I${CMAKE_SOURCE_DIR}
           "-gencode=arch=${oldest},code=[${codes},${oldest}]")
  # nvcc may refuse the host compiler or be incomplete, so it is tried once per set of flags.
  if(NOT WEFT_NVCC_TRIED STREQUAL "${call}")
    file(WRITE ${CMAKE_BINARY_DIR}/kernels/probe.cu "extern \"C\" __global__ void probe() {}\n")
    execute_process(COMMAND ${call} -o ${CMAKE_BINARY_DIR}/kernels/probe.fatbin ${CMAKE_BINARY_DIR}/kernels/probe.cu
                    RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
    string(REGEX MATCH "[^\n]*error[^\n]*" said "${said}")
    # The text becomes a preprocessor definition, so characters with a meaning to CMake, shells or compilers are
    # removed.
    string(REGEX REPLACE "[^A-Za-z0-9 .,:/_()=+-]" " " said "${said}")
    set(WEFT_NVCC_SAID "" CACHE INTERNAL "")
    if(failed)
      set(WEFT_NVCC_SAID "${WEFT_NVCC} fails (${said})" CACHE INTERNAL "")
    endif()
    set(WEFT_NVCC_TRIED "${call}" CACHE INTERNAL "")
  endif()
  if(WEFT_NVCC_SAID)
    set(${why_not} "${WEFT_NVCC_SAID}" PARENT_SCOPE)
    return()
  endif()
  if(WEFT_WERROR)
    list(APPEND call -Werror all-warnings)
  endif()
  set(${command} "${call}" PARENT_SCOPE)
endfunction()

set(nvcc_command)
if(WEFT_CUDA_KERNELS STREQUAL "OFF")
  set(why_no_kernels "WEFT_CUDA_KERNELS was OFF")
  set(remedy "build again with WEFT_CUDA_KERNELS=AUTO")
elseif(WEFT_CUDA_KERNELS STREQUAL "AUTO" AND WEFT_SANITIZE)
  # Compiling takes seconds, and sanitizers do not see GPU code. The same code is tested on the host.
  set(why_no_kernels "sanitizer builds leave them out")
  set(remedy "build again with WEFT_CUDA_KERNELS=ON")
else()
  weft_find_nvcc(nvcc_command why_no_kernels)
  set(remedy "install a CUDA toolkit or name its compiler (CMAKE_ARGS=-DWEFT_NVCC=/path/to/nvcc), then build again")
  if(NOT nvcc_command AND NOT WEFT_CUDA_KERNELS STREQUAL "AUTO")
    message(FATAL_ERROR "WEFT_CUDA_KERNELS=${WEFT_CUDA_KERNELS}, but ${why_no_kernels}: ${remedy}")
  endif()
endif()

set(image_source ${CMAKE_SOURCE_DIR}/native/gpu/kernel_image.cc)
if(nvcc_command)
  set(image ${CMAKE_BINARY_DIR}/kernels/kernels.fatbin)
  file(GLOB kernel_inputs CONFIGURE_DEPENDS native/gpu/*.cu native/gpu/*_device.cuh native/gpu/jobs.h)
  # nvcc's programs look for shared libraries in the working directory, too, and the one of the build has a libgcc_s
  # that is only for linking.
  add_custom_command(OUTPUT ${image} COMMAND ${nvcc_command} -o ${image} ${CMAKE_SOURCE_DIR}/native/gpu/kernels.cu
                     WORKING_DIRECTORY ${CMAKE_BINARY_DIR}/kernels DEPENDS ${kernel_inputs}
                     COMMENT "Compiling kernels for GPUs" VERBATIM)
  set_source_files_properties(${image_source} PROPERTIES COMPILE_DEFINITIONS "WEFT_KERNEL_IMAGE=\"${image}\""
                                                         OBJECT_DEPENDS ${image})
else()
  message(STATUS "Kernels for GPUs are left out: ${why_no_kernels}")
  set_source_files_properties(${image_source} PROPERTIES COMPILE_DEFINITIONS "WEFT_WHY_NO_KERNELS=\"${why_no_kernels}: ${remedy}\"")
endif()
