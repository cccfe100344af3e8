#include "core/env.h"

#include "core/str.h"

#include <limits.h>
#include <stdlib.h>

ls_status ls_env_int(const char *name, int lo, int *out, bool *set)
{
    const char *text = name ? getenv(name) : NULL;
    int64_t v = 0;
    *set = text && *text;
    if (!*set) return LS_OK;
    if (!ls_parse_i64(text, &v) || v < lo || v > INT_MAX)
        return ls_fail(LS_E_CONFIG, "environment variable %s is '%.40s', but must be a whole number of at least %d",
                       name, text, lo);
    *out = (int)v;
    return LS_OK;
}
