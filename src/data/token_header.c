#include "data/token_header.h"

#include <string.h>

enum { TOKENS = 20240520, TOKENS_OF_LLAMA = 20240801, MODEL = 20240326 };

ls_status data_token_header(const char *path, const void *data, size_t n, size_t *nbytes)
{
    int32_t head[3] = {0}; /* magic, version, tokens */
    *nbytes = 0;
    if (n < DATA_TOKEN_HEADER) return LS_OK;
    memcpy(head, data, sizeof head);
    if (head[0] == TOKENS_OF_LLAMA && head[1] == 7)
        return ls_fail(LS_E_UNSUPPORTED, "%s is a token file of llm.c with ids of 32 bits; only 16 bits are supported",
                       path);
    if (head[0] == MODEL && (head[1] == 3 || head[1] == 5))
        return ls_fail(LS_E_FORMAT, "%s is a model file of llm.c, not a token file; use --init_from %s", path, path);
    if (head[0] != TOKENS) return LS_OK;
    if (head[1] != 1)
        return ls_fail(LS_E_UNSUPPORTED, "%s: version %d of the token files of llm.c is not supported; use version 1",
                       path, head[1]);
    if (head[2] < 0 || n - DATA_TOKEN_HEADER != 2 * (size_t)head[2])
        return ls_fail(LS_E_FORMAT, "%s has %zu bytes after its header, but the header has %d tokens of 2 bytes", path,
                       n - DATA_TOKEN_HEADER, head[2]);
    *nbytes = DATA_TOKEN_HEADER;
    return LS_OK;
}

void data_token_header_make(int32_t n_token, unsigned char head[DATA_TOKEN_HEADER])
{
    const int32_t begin[3] = {TOKENS, 1, n_token};
    memset(head, 0, DATA_TOKEN_HEADER);
    memcpy(head, begin, sizeof begin);
}
