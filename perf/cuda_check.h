/* cuda_check.h - CU(call): ends the benchmark with a message if a call of the CUDA runtime fails. */
#ifndef LS_PERF_CUDA_CHECK_H
#define LS_PERF_CUDA_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CU(call)                                                                                                \
    do {                                                                                                        \
        const int e_ = (int)(call);                                                                             \
        if (e_) {                                                                                               \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString((cudaError_t)e_)); \
            exit(1);                                                                                            \
        }                                                                                                       \
    } while (0)

#endif
