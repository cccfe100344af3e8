# Parts that need libraries which a machine may not have: shared objects beside the program, loaded when they are asked for. A plugin is
# built where its library's headers are; `lockstep doctor` says whether it loads.
option(LS_MPI "Build the MPI plugin where an MPI compiler is found" ON)
if(LS_MPI)
  find_package(MPI QUIET COMPONENTS C)
  if(MPI_C_FOUND)
    add_library(lockstep_mpi MODULE src/comm/mpi/mpi.c)
    target_include_directories(lockstep_mpi PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_include_directories(lockstep_mpi SYSTEM PRIVATE ${MPI_C_INCLUDE_DIRS})
    target_compile_definitions(lockstep_mpi PRIVATE _GNU_SOURCE)
    target_compile_options(lockstep_mpi PRIVATE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes
      -Wmissing-prototypes -Wvla $<$<BOOL:${LS_WERROR}>:-Werror>)
    target_link_libraries(lockstep_mpi PRIVATE ${MPI_C_LIBRARIES} Threads::Threads)
    set_target_properties(lockstep_mpi PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
    install(TARGETS lockstep_mpi LIBRARY DESTINATION lib/lockstep)
  else()
    message(STATUS "no MPI (mpicc): the mpi plugin is not built; apt-get install libopenmpi-dev openmpi-bin")
  endif()
endif()

include(src/compute/cuda/cuda.cmake)
