# The CUDA backend, twice.
#   lockstep_cuda.so       built by nvcc, where there is one (LS_CUDA: AUTO, ON, OFF); the driver is not linked, a machine without one loads it
#   emu/lockstep_cuda.so   the same files for the emulated device (tests/fake_cuda), by the C++ compiler, for tests: LS_PLUGIN_DIR=<build>/emu
# Kernels are kernels/*.cu. Files of host code that only one of the two has: tests/fake_cuda/*.
# plugin.c is the edge of the shared object, so that tests can link the rest (ls_cuda_emu) into themselves.
#
# LS_CUDA_ARCH, in the environment or the cache: the architectures that kernels are compiled for (compute/card.h has what each can do).
#   empty   with a GPU: its own, and PTX of the oldest one, which every other card runs (its driver compiles it). Without: PTX of one architecture for
#           each family of kernels (70, 75, 80), and code of 90a, as wgmma has no PTX that another card runs. Any card runs; one of its own is faster to start
#   all     for packages and images: code of every row of card.h that this nvcc has, and PTX of the last one for cards after it
#   a list  as in CMAKE_CUDA_ARCHITECTURES: "75", "80-virtual;90a"
# nvcc of CUDA 13 begins at 75; 70 needs CUDA 12.
set(_cu ${PROJECT_SOURCE_DIR}/src/compute/cuda)
set(_fake ${PROJECT_SOURCE_DIR}/tests/fake_cuda)
set(LS_CUDA_ARCH "" CACHE STRING "Architectures the CUDA plugin is compiled for; empty: those of this machine, all: every one")
if(DEFINED ENV{LS_CUDA_ARCH}) # for ./run, also where the build folder has another one
  set_property(CACHE LS_CUDA_ARCH PROPERTY VALUE "$ENV{LS_CUDA_ARCH}")
endif()
file(GLOB _cu_host CONFIGURE_DEPENDS ${_cu}/*.c)
list(FILTER _cu_host EXCLUDE REGEX "/plugin\\.c$")
file(GLOB _cu_kernels CONFIGURE_DEPENDS ${_cu}/kernels/*.cu)
# The parts of core that the plugin uses, as its own copies; words of failures go to the program's (plugin.c).
set(_cu_core)
foreach(f mem fs fs_open str clock)
  list(APPEND _cu_core ${PROJECT_SOURCE_DIR}/src/core/${f}.c)
endforeach()

# Into `out`: the architectures of LS_CUDA_ARCH, of those that nvcc has.
function(ls_cuda_architectures out)
  set(${out} "${LS_CUDA_ARCH}" PARENT_SCOPE)
  if(NOT LS_CUDA_ARCH STREQUAL "" AND NOT LS_CUDA_ARCH STREQUAL "all")
    return()
  endif()
  execute_process(COMMAND ${LS_NVCC} --list-gpu-arch OUTPUT_VARIABLE _text ERROR_QUIET)
  string(REGEX MATCHALL "compute_[0-9]+" _known "${_text}")
  list(TRANSFORM _known REPLACE "compute_" "")
  set(_have "")
  foreach(a 70 75 80 86 89 90 100 120)
    if(a IN_LIST _known)
      list(APPEND _have ${a})
    endif()
  endforeach()
  if(NOT _have)
    message(FATAL_ERROR "${LS_NVCC} --list-gpu-arch names no architecture from 7.0 on: CUDA 11.8 or later is needed")
  endif()
  list(GET _have 0 _oldest)
  list(GET _have -1 _newest)
  set(_code "")
  set(_why "no GPU here")
  if(LS_CUDA_ARCH STREQUAL "all")
    set(_why "LS_CUDA_ARCH=all")
    list(TRANSFORM _have APPEND "-real" OUTPUT_VARIABLE _code)
    list(APPEND _code ${_newest}-virtual)
  else()
    find_program(LS_NVIDIA_SMI nvidia-smi)
    mark_as_advanced(LS_NVIDIA_SMI)
    if(LS_NVIDIA_SMI)
      execute_process(COMMAND ${LS_NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader OUTPUT_VARIABLE _text ERROR_QUIET TIMEOUT 30)
      string(REGEX MATCHALL "[0-9]+\\.[0-9]" _cards "${_text}")
      string(REPLACE "." "" _cards "${_cards}")
      list(REMOVE_DUPLICATES _cards)
    endif()
    foreach(a ${_cards})
      if(a IN_LIST _known AND NOT a LESS _oldest)
        list(APPEND _code ${a}-real)
      else()
        message(STATUS "nvcc has no code for a GPU of compute capability ${a}: it runs PTX of an older one, if it is not older than ${_oldest}")
      endif()
    endforeach()
    if(_code)
      set(_why "the GPU of this machine, and any other")
      list(APPEND _code ${_oldest}-virtual)
    else()
      foreach(a 70 75 80)
        if(a IN_LIST _have)
          list(APPEND _code ${a}-virtual)
        endif()
      endforeach()
      if(90 IN_LIST _have)
        list(APPEND _code 90-real)
      endif()
    endif()
  endif()
  list(TRANSFORM _code REPLACE "^90-real$" "90a-real")
  message(STATUS "CUDA architectures: ${_code} (${_why})")
  set(${out} "${_code}" PARENT_SCOPE)
endfunction()

function(ls_cuda_options target)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_compile_definitions(${target} PRIVATE _GNU_SOURCE)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes
      -Wmissing-prototypes -Wvla -ffp-contract=off $<$<BOOL:${LS_WERROR}>:-Werror>>
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-unknown-pragmas -ffp-contract=off $<$<BOOL:${LS_WERROR}>:-Werror>>)
  set_target_properties(${target} PROPERTIES PREFIX "" POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden
    CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON)
endfunction()

# ---- with a device ----
if(NOT LS_CUDA STREQUAL "OFF")
  find_program(LS_NVCC nvcc PATHS /usr/local/cuda/bin ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin)
  if(LS_NVCC)
    set(CMAKE_CUDA_COMPILER ${LS_NVCC} CACHE FILEPATH "")
    ls_cuda_architectures(CMAKE_CUDA_ARCHITECTURES)
    enable_language(CXX)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(LS_HAVE_CUDA ON)
  elseif(LS_CUDA STREQUAL "ON")
    message(FATAL_ERROR "LS_CUDA=ON, but nvcc was not found in PATH, /usr/local/cuda/bin or CUDA_HOME/bin")
  else()
    message(STATUS "nvcc not found: the cuda plugin is not built (LS_CUDA=ON makes this an error)")
  endif()
endif()
if(LS_HAVE_CUDA)
  add_library(ls_cuda_kernels OBJECT ${_cu_kernels})
  ls_cuda_options(ls_cuda_kernels)
  add_library(lockstep_cuda MODULE ${_cu_host} $<TARGET_OBJECTS:ls_cuda_kernels> ${_cu}/plugin.c ${_cu_core})
  ls_cuda_options(lockstep_cuda)
  set_target_properties(lockstep_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR} CUDA_RUNTIME_LIBRARY Shared
    INSTALL_RPATH_USE_LINK_PATH ON)
  target_compile_options(ls_cuda_kernels PRIVATE -O3 -Xcompiler=-Wall --expt-relaxed-constexpr)
  target_link_libraries(lockstep_cuda PRIVATE CUDA::cudart CUDA::cublasLt Threads::Threads m ${CMAKE_DL_LIBS})
  target_link_options(lockstep_cuda PRIVATE -Wl,-z,defs)
  find_path(LS_cupti_INC cupti.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${CUDAToolkit_LIBRARY_ROOT}/extras/CUPTI/include
    /usr/local/cuda/extras/CUPTI/include)
  if(LS_cupti_INC) # cupti.c loads the library itself; without the headers a profile has times of units alone
    target_include_directories(lockstep_cuda SYSTEM PRIVATE ${LS_cupti_INC})
  endif()
  find_path(LS_cudnn_INC cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(LS_cudnn_INC) # the library itself is loaded when it is wanted
    target_include_directories(lockstep_cuda SYSTEM PRIVATE ${LS_cudnn_INC})
  else()
    message(STATUS "cudnn.h not found: attention on the GPU uses the built-in kernels")
  endif()
  install(TARGETS lockstep_cuda LIBRARY DESTINATION lib/lockstep)
  file(GLOB _cu_bench CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/perf/*.cu) # programs that measure kernels alone
  foreach(t ${_cu_bench})
    get_filename_component(_n ${t} NAME_WE)
    add_executable(${_n} EXCLUDE_FROM_ALL ${t} $<TARGET_OBJECTS:ls_cuda_kernels>)
    ls_cuda_options(${_n})
    target_link_libraries(${_n} PRIVATE CUDA::cudart)
  endforeach()
  if(LS_TESTS) # the kernels' tests on a real device; skipped where there is none
    foreach(t cuda_kernels cuda_gemm_f32 cuda_generate cuda_hash)
      set(_wrap ${CMAKE_BINARY_DIR}/device/test_${t}.cu)
      file(CONFIGURE OUTPUT ${_wrap} CONTENT "#include \"${PROJECT_SOURCE_DIR}/tests/compute/test_${t}.cpp\"\n")
      add_executable(device_${t} ${_wrap} $<TARGET_OBJECTS:ls_cuda_kernels>)
      ls_cuda_options(device_${t})
      target_include_directories(device_${t} PRIVATE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/tests/support)
      target_compile_options(device_${t} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
      target_link_libraries(device_${t} PRIVATE ls_dep_cmocka CUDA::cudart)
      add_test(NAME device/${t} COMMAND device_${t})
      set_tests_properties(device/${t} PROPERTIES TIMEOUT 300 SKIP_RETURN_CODE 77 LABELS device)
    endforeach()
  endif()
  # perf/cuda_attention.cu chooses between kernels and cuDNN, as the plugin does
  if(LS_cudnn_INC)
    target_include_directories(cuda_attention SYSTEM PRIVATE ${LS_cudnn_INC})
  endif()
  target_sources(cuda_attention PRIVATE ${_cu}/attention.c ${_cu}/cudnn.c ${PROJECT_SOURCE_DIR}/src/core/err.c
    ${PROJECT_SOURCE_DIR}/src/core/mem.c)
  target_link_libraries(cuda_attention PRIVATE Threads::Threads m ${CMAKE_DL_LIBS})
  # perf/cuda_gemm.c: checks and times the products alone
  set(_cu_gemm ${PROJECT_SOURCE_DIR}/perf/cuda_gemm.c ${_cu_core} ${PROJECT_SOURCE_DIR}/src/core/err.c)
  foreach(f gemm.c gemm_f32.c cublaslt.c gemm_tune.c gemm_cache.c errors.c kernels/gemm_bias.cu kernels/gemm_f32.cu
      kernels/gelu.cu kernels/add.cu kernels/column_sums.cu)
    list(APPEND _cu_gemm ${_cu}/${f})
  endforeach()
  add_executable(cuda_gemm EXCLUDE_FROM_ALL ${_cu_gemm})
  ls_cuda_options(cuda_gemm)
  target_link_libraries(cuda_gemm PRIVATE CUDA::cudart CUDA::cublasLt Threads::Threads m)
endif()

# ---- emulated ----
if(LS_TESTS AND LS_EMULATE)
  enable_language(CXX)
  file(GLOB _emu CONFIGURE_DEPENDS ${_fake}/*.cpp ${_fake}/*.c)
  # A source has one language in a project, and nvcc may have these: the emulator's compiler gets files that include them.
  foreach(k ${_cu_kernels})
    get_filename_component(_n ${k} NAME_WE)
    set(_wrap ${CMAKE_BINARY_DIR}/emu/kernels/${_n}.cpp)
    file(CONFIGURE OUTPUT ${_wrap} CONTENT "#include \"${k}\"\n")
    list(APPEND _emu ${_wrap})
  endforeach()
  file(GLOB _wraps ${CMAKE_BINARY_DIR}/emu/kernels/*.cpp)
  set_source_files_properties(${_wraps} PROPERTIES COMPILE_OPTIONS -O1) # unrolled loops take minutes to optimise, and little is gained
  add_library(ls_cuda_emu STATIC ${_emu} ${_cu_host})
  ls_cuda_options(ls_cuda_emu)
  target_compile_definitions(ls_cuda_emu PUBLIC LS_EMU)
  target_include_directories(ls_cuda_emu BEFORE PUBLIC ${_fake}/include ${PROJECT_SOURCE_DIR}/tests) # in place of CUDA's headers
  target_link_libraries(ls_cuda_emu PUBLIC Threads::Threads m)
  if(LS_SANITIZE)
    string(REPLACE ";" "," _san "${LS_SANITIZE}")
    target_compile_options(ls_cuda_emu PUBLIC -fsanitize=${_san} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    target_link_options(ls_cuda_emu PUBLIC -fsanitize=${_san})
  endif()
  add_library(lockstep_cuda_emu MODULE ${_cu}/plugin.c ${_cu_core})
  ls_cuda_options(lockstep_cuda_emu)
  set_target_properties(lockstep_cuda_emu PROPERTIES OUTPUT_NAME lockstep_cuda LINKER_LANGUAGE CXX
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/emu)
  target_link_libraries(lockstep_cuda_emu PRIVATE -Wl,--whole-archive ls_cuda_emu -Wl,--no-whole-archive)
  if(NOT LS_SANITIZE) # a sanitizer's own symbols come from the program
    target_link_options(lockstep_cuda_emu PRIVATE -Wl,-z,defs)
  endif()
endif()
