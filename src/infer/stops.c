#include "infer/stops.h"

#include "core/minmax.h"

#include <string.h>

static size_t longest(const ls_stops *x)
{
    size_t most = 0;
    for (int i = 0; i < x->n; i++) most = LS_MAX(most, strlen(x->text[i]));
    return most;
}

size_t ls_stops_find(const ls_stops *x, ls_substr s, size_t from)
{
    size_t first = s.n;
    for (int i = 0; i < x->n; i++) {
        const size_t n = strlen(x->text[i]), begin = from >= n ? from - n + 1 : 0;
        const char *at = begin < s.n ? memmem(s.data + begin, s.n - begin, x->text[i], n) : NULL;
        if (at) first = LS_MIN(first, (size_t)(at - s.data));
    }
    return first;
}

size_t ls_stops_pending(const ls_stops *x, ls_substr s)
{
    size_t pending = 0;
    for (int i = 0; i < x->n; i++)
        for (size_t k = strlen(x->text[i]) - 1; k > pending; k--)
            if (k <= s.n && !memcmp(s.data + s.n - k, x->text[i], k)) pending = k;
    return pending;
}

ls_status ls_stops_ends(const ls_stops *x, const ls_tokenizer *t, const ls_ids *ids, bool *end)
{
    const size_t n = LS_MIN(ids->n, longest(x)); /* a token has at least one byte */
    ls_str s = {0};
    *end = false;
    if (!n) return LS_OK;
    LS_TRY(ls_tokenizer_decode(t, ids->id + ids->n - n, n - 1, &s));
    const size_t before = s.len;
    const ls_status st = ls_tokenizer_decode(t, ids->id + ids->n - 1, 1, &s);
    if (st == LS_OK) *end = ls_stops_find(x, (ls_substr){s.data, s.len}, before) < s.len;
    ls_str_fini(&s);
    return st;
}
