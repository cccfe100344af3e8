/* Any bytes as a token file: opening and reading it never reads outside, and every id of a sequence is in the vocabulary. The first two
 * bytes choose the sequence length and the size of the vocabulary. */
#include "fuzz.h"
#include "data/loader.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 2) return 0;
    const int seq_len = 1 + data[0], vocab = 1 + data[1] * 257;
    char path[64];
    int fd = memfd_create("tokens", 0);
    if (fd < 0 || write(fd, data + 2, n - 2) != (ssize_t)(n - 2)) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ls_tokens t;
    int32_t ids[256], target[256];
    if (ls_tokens_open(&t, path, seq_len, vocab) == LS_OK) {
        if ((n - 2) % 2 || t.n_seq < 1) abort();
        for (int64_t k = 0; k < t.n_seq && k < 50; k++) {
            if (ls_tokens_batch(&t, 7, k % 3, k, 1, ids, target) != LS_OK) abort(); /* open has checked every id */
            for (int i = 0; i < seq_len; i++)
                if (ids[i] < 0 || ids[i] >= vocab || target[i] < 0 || target[i] >= vocab) abort();
        }
        ls_tokens_close(&t);
    }
    close(fd);
    return 0;
}
