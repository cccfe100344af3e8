/* Any bytes as a model file of llm.c: refused with a message, or its size is what its header describes. */
#include "fuzz.h"
#include "core/mem.h"
#include "ckpt/llmc.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char path[64];
    int fd = memfd_create("model", 0);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const int64_t live = ls_mem_live();
    ls_model_config c;
    if (ls_llmc_is(path) && ls_llmc_config(path, &c) == LS_OK)
        must(LS_LLMC_HEADER + 2 * ls_model_n_param(&c) <= (int64_t)n);
    must(ls_mem_live() == live);
    close(fd);
    return 0;
}
