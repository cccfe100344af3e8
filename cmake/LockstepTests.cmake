# Tests are found by name: tests/<kind>/test_<what>.c (or .cpp: those with kernels of their own for the emulated device) becomes the
# CTest test <kind>/<what>, in its own process with a time limit. tests/<kind>/<what>.sh runs as it is; exit code 77 means skipped, and the script says why.
add_library(ls_test_support INTERFACE)
target_include_directories(ls_test_support INTERFACE ${PROJECT_SOURCE_DIR}/tests)
target_link_libraries(ls_test_support INTERFACE ${LS_ALL_LIBS} ls_dep_cmocka)

# A line "ls-test: serial" in a test's file keeps other tests from running beside it (it measures time, or fills the machine).
function(ls_test_marks name file)
  file(STRINGS ${file} _serial REGEX "ls-test: serial")
  if(_serial)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

# Libraries that a test puts in the place of real ones: tests/fake_<what>/*.c is fake_<what>.so, loaded at run time.
add_library(fake_nvml MODULE ${PROJECT_SOURCE_DIR}/tests/fake_nvml/nvml.c)
target_link_libraries(fake_nvml PRIVATE ls_flags)
set_target_properties(fake_nvml PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})

foreach(kind unit grad backend equiv prop fault golden)
  file(GLOB _tests CONFIGURE_DEPENDS tests/${kind}/test_*.c tests/${kind}/test_*.cpp)
  foreach(t ${_tests})
    get_filename_component(_n ${t} NAME_WE)
    string(REPLACE "test_" "" _short ${_n})
    add_executable(${kind}_${_short} ${t})
    target_link_libraries(${kind}_${_short} PRIVATE ls_test_support)
    if(_short MATCHES "^cuda_") # with the emulated device in it
      target_link_libraries(${kind}_${_short} PRIVATE ls_cuda_emu ls_test_support)
      set_target_properties(${kind}_${_short} PROPERTIES LINKER_LANGUAGE CXX CXX_STANDARD 17)
    endif()
    target_compile_definitions(${kind}_${_short} PRIVATE LS_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    add_test(NAME ${kind}/${_short} COMMAND ${kind}_${_short})
    set_tests_properties(${kind}/${_short} PROPERTIES TIMEOUT 300 LABELS ${kind}
      ENVIRONMENT "LS_BUILD=${CMAKE_BINARY_DIR};LS_SOURCE=${PROJECT_SOURCE_DIR}")
    ls_test_marks(${kind}/${_short} ${t})
  endforeach()
endforeach()

# A fuzz target is tests/fuzz/fuzz_<what>.c with LLVMFuzzerTestOneInput; its corpus in tests/fuzz/corpus/<what> is replayed
# by a plain driver in CTest, and grown by libFuzzer with -DLS_FUZZ=ON (clang).
file(GLOB _fuzz CONFIGURE_DEPENDS tests/fuzz/fuzz_*.c)
foreach(t ${_fuzz})
  get_filename_component(_n ${t} NAME_WE)
  string(REPLACE "fuzz_" "" _short ${_n})
  add_executable(${_n} ${t})
  target_link_libraries(${_n} PRIVATE ls_test_support)
  if(LS_FUZZ)
    target_compile_options(${_n} PRIVATE -fsanitize=fuzzer)
    target_link_options(${_n} PRIVATE -fsanitize=fuzzer)
  else()
    target_sources(${_n} PRIVATE tests/fuzz/replay.c)
    add_test(NAME fuzz/${_short} COMMAND ${_n} ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${_short})
    set_tests_properties(fuzz/${_short} PROPERTIES TIMEOUT 120 LABELS fuzz)
  endif()
endforeach()

foreach(kind cli oracle fault equiv)
  file(GLOB _scripts CONFIGURE_DEPENDS tests/${kind}/*.sh)
  foreach(t ${_scripts})
    get_filename_component(_n ${t} NAME_WE)
    add_test(NAME ${kind}/${_n} COMMAND bash ${t})
    set_tests_properties(${kind}/${_n} PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77 LABELS ${kind}
      ENVIRONMENT "LS_BUILD=${CMAKE_BINARY_DIR};LS_SOURCE=${PROJECT_SOURCE_DIR};LOCKSTEP=${CMAKE_BINARY_DIR}/lockstep")
    ls_test_marks(${kind}/${_n} ${t})
  endforeach()
endforeach()
# Programs that test scripts start: tests/equiv/<what>_tool.c is <what>_tool, no test by itself.
file(GLOB _equiv_tools CONFIGURE_DEPENDS tests/equiv/*_tool.c)
foreach(t ${_equiv_tools})
  get_filename_component(_n ${t} NAME_WE)
  add_executable(${_n} ${t})
  target_link_libraries(${_n} PRIVATE ls_test_support)
endforeach()
# What the oracle scripts compare with others: tests/oracle/<what>.c is the program oracle_<what>, no test by itself.
file(GLOB _oracles CONFIGURE_DEPENDS tests/oracle/*.c)
foreach(t ${_oracles})
  get_filename_component(_n ${t} NAME_WE)
  add_executable(oracle_${_n} ${t})
  target_include_directories(oracle_${_n} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(oracle_${_n} PRIVATE ${LS_ALL_LIBS})
endforeach()
add_test(NAME layers COMMAND ${PROJECT_SOURCE_DIR}/tools/check-layers ${PROJECT_SOURCE_DIR})
