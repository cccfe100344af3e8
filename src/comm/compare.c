/* compare.c - workers compare their values: a hash of all, and the texts of two ranks only where the hashes differ.
 *
 * The text has one line per value: key, tab, value. */
#include "comm/compare.h"

#include "core/hash.h"
#include "core/mem.h"

#include <string.h>

#define NONE "none"

void ls_compare_add(ls_str *out, const char *key, const char *value)
{
    ls_str_addf(out, "%s\t", key);
    for (const char *p = value ? value : NONE; *p; p++) ls_str_addc(out, *p == '\n' ? ' ' : *p);
    ls_str_addc(out, '\n');
}

typedef struct span {
    const char *p;
    size_t n;
} span;

/* The value of a line's key in `text`; NONE where it is missing. */
static span find(const char *text, const char *line)
{
    const size_t n = strcspn(line, "\t") + 1; /* with the tab */
    for (const char *p = text; *p; p += strcspn(p, "\n") + 1)
        if (!strncmp(p, line, n)) return (span){p + n, strcspn(p + n, "\n")};
    return (span){NONE, strlen(NONE)};
}

/* The first line of `text` whose value differs in `other`; NULL: none. */
static const char *first_difference(const char *text, const char *other)
{
    for (const char *p = text; *p; p += strcspn(p, "\n") + 1) {
        const span a = find(text, p), b = find(other, p);
        if (a.n != b.n || memcmp(a.p, b.p, a.n) != 0) return p;
    }
    return NULL;
}

static ls_status name_difference(const ls_comm *c, const char *zero, const char *other, int rank, const char *advice)
{
    const char *line = first_difference(zero, other);
    int local;
    if (!line) line = first_difference(other, zero);
    if (!line) return ls_fail(LS_E_CONFIG, "ranks 0 and %d list other values; start all workers from one build", rank);
    const span a = find(zero, line), b = find(other, line);
    return ls_fail(LS_E_CONFIG, "the workers differ: %.*s is %.*s on rank 0 (%.100s) and %.*s on rank %d (%.100s); %s",
                   (int)strcspn(line, "\t"), line, (int)(a.n < 200 ? a.n : 200), a.p, ls_comm_host(c, 0, &local),
                   (int)(b.n < 200 ? b.n : 200), b.p, rank, ls_comm_host(c, rank, &local), advice);
}

/* The text of a rank, on every worker. */
static ls_status share(ls_comm *c, const char *mine, int64_t n, int rank, const char *site, char **out)
{
    *out = ls_comm_alloc(c, (size_t)n + 1); /* with '\0' */
    LS_TRY(ls_comm_agree(c, *out ? LS_OK : ls_nomem((size_t)n, "the settings of a rank"), site));
    LS_ASSERT(*out);
    if (ls_comm_rank(c) == rank) memcpy(*out, mine, (size_t)n);
    return n ? ls_broadcast(c, (ls_view){*out, n, LS_U8}, rank, site, NULL) : LS_OK;
}

ls_status ls_comm_compare(ls_comm *c, const ls_str *values, const char *advice, const char *site)
{
    const char *text = values->data ? values->data : "";
    struct {
        uint64_t hash;
        int64_t n;
    } mine = {ls_xxh64(text, values->len), (int64_t)values->len}, *all = NULL;
    const int size = ls_comm_size(c);
    char *zero, *other;
    int odd = 1;
    if (size == 1) return LS_OK;
    LS_TRY(ls_comm_agree(c, values->failed ? ls_nomem(values->len, "the list of settings") : LS_OK, site));
    LS_TRY(ls_comm_gather(c, &mine, sizeof mine, site, &all));
    while (odd < size && all[odd].hash == all[0].hash && all[odd].n == all[0].n) odd++;
    if (odd == size) return LS_OK;
    LS_TRY(share(c, text, all[0].n, 0, site, &zero));
    LS_TRY(share(c, text, all[odd].n, odd, site, &other));
    return ls_comm_agree(c, name_difference(c, zero, other, odd, advice), site);
}
