/* fuzz.h - shared by the fuzz targets. */
#ifndef LS_TESTS_FUZZ_H
#define LS_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* A condition that must hold for every input. */
static inline void must(int ok)
{
    if (!ok) abort();
}

#endif
