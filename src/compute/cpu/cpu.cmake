# The CPU backend: plain files, and kernels that are compiled for one instruction set each and chosen at run time.
# gemm_<isa>.c, gemm_bf16_<isa>.c, simd_<isa>.c and q8_<isa>.c exist for neon, avx2, avx512, amx; each guards itself with the macro of its
# instruction set. gemm_bf16_<isa>_emulated.c is for every CPU.
set(_dir ${PROJECT_SOURCE_DIR}/src/compute/cpu)
file(GLOB _cpu CONFIGURE_DEPENDS ${_dir}/*.c)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  list(FILTER _cpu EXCLUDE REGEX "_(avx2|avx512|amx)\\.c$")
else()
  list(FILTER _cpu EXCLUDE REGEX "_neon\\.c$")
endif()
target_sources(ls_compute PRIVATE ${_cpu})
foreach(f ${_cpu})
  if(f MATCHES "q8_neon\\.c$")
    set_source_files_properties(${f} PROPERTIES COMPILE_OPTIONS "-march=armv8.2-a+dotprod")
  elseif(f MATCHES "bf16_neon\\.c$")
    set_source_files_properties(${f} PROPERTIES COMPILE_OPTIONS "-march=armv8.2-a+bf16")
  elseif(f MATCHES "bf16_avx512\\.c$")
    set_source_files_properties(${f} PROPERTIES COMPILE_OPTIONS
      "-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512bf16;-mfma")
  elseif(f MATCHES "q8_avx512\\.c$")
    set_source_files_properties(${f} PROPERTIES COMPILE_OPTIONS
      "-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512vnni;-mfma")
  elseif(f MATCHES "_emulated\\.c$")
    set_source_files_properties(${f} PROPERTIES COMPILE_OPTIONS "$<$<CONFIG:Release>:-O2>") # -O3 takes the compiler five times as long
  elseif(f MATCHES "_avx2\\.c$")
    set_source_files_properties(${f} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma")
  elseif(f MATCHES "_avx512\\.c$")
    set_source_files_properties(${f} PROPERTIES COMPILE_OPTIONS "-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mfma")
  elseif(f MATCHES "_amx\\.c$")
    set_source_files_properties(${f} PROPERTIES COMPILE_OPTIONS
      "-mamx-tile;-mamx-bf16;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512bf16;-mfma")
  endif()
endforeach()
target_link_libraries(ls_compute PUBLIC ls_dep_blas)
