/* mem.c - counted, aligned, zeroed allocation.
 *
 * A block is preceded by a 64-byte header that holds its size, so that free and realloc need no size.
 * The counters are the one piece of process-wide state below the program: they are atomic. */
#include "core/mem.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HEADER    64
#define HUGE_FROM ((size_t)2 << 20)

static atomic_llong live_blocks, live_bytes, n_allocs;
static atomic_llong fail_in = -1;

static int must_fail(void)
{
    if (atomic_load_explicit(&fail_in, memory_order_relaxed) < 0) return 0;
    return atomic_fetch_sub(&fail_in, 1) == 0;
}

static size_t *header_of(void *p)
{
    return (size_t *)(void *)((char *)p - HEADER);
}

void *ls_alloc(size_t nbytes)
{
    if (must_fail()) return NULL;
    if (nbytes > SIZE_MAX / 2) return NULL;
    size_t total = (nbytes + HEADER + 63) & ~(size_t)63;
    size_t align = total >= HUGE_FROM ? HUGE_FROM : 64;
    void *raw = NULL;
    if (posix_memalign(&raw, align, total)) return NULL;
    if (total >= HUGE_FROM) (void)madvise(raw, total, MADV_HUGEPAGE);
    memset(raw, 0, total);
    *(size_t *)raw = nbytes;
    atomic_fetch_add(&live_blocks, 1);
    atomic_fetch_add(&live_bytes, (long long)nbytes);
    atomic_fetch_add(&n_allocs, 1);
    return (char *)raw + HEADER;
}

void ls_free(void *p)
{
    if (!p) return;
    atomic_fetch_sub(&live_blocks, 1);
    atomic_fetch_sub(&live_bytes, (long long)*header_of(p));
    free(header_of(p));
}

void *ls_realloc(void *p, size_t nbytes)
{
    if (!p) return ls_alloc(nbytes);
    size_t old = *header_of(p);
    void *q = ls_alloc(nbytes);
    if (!q) return NULL; /* p is still the caller's */
    memcpy(q, p, old < nbytes ? old : nbytes);
    ls_free(p);
    return q;
}

ls_status ls_reserve(void *p, size_t *cap, size_t n, size_t nbytes, const char *what)
{
    if (n <= *cap) return LS_OK;
    const size_t more = *cap + *cap / 2 + 16, want = n > more ? n : more;
    void *old;
    memcpy(&old, p, sizeof old); /* any pointer type */
    void *grown = want > SIZE_MAX / 2 / nbytes ? NULL : ls_realloc(old, want * nbytes);
    if (!grown) return ls_nomem((double)want * (double)nbytes, what);
    memcpy(p, &grown, sizeof grown);
    *cap = want;
    return LS_OK;
}

char *ls_strndup(const char *s, size_t n)
{
    n = strnlen(s, n);
    char *p = ls_alloc(n + 1);
    if (p) memcpy(p, s, n);
    return p;
}

char *ls_strdup(const char *s)
{
    return ls_strndup(s, strlen(s));
}

char *ls_asprintf(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0) return NULL;
    char *p = ls_alloc((size_t)n + 1);
    if (!p) return NULL;
    va_start(ap, fmt);
    vsnprintf(p, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return p;
}

int64_t ls_mem_live(void)
{
    return atomic_load(&live_blocks);
}
int64_t ls_mem_live_bytes(void)
{
    return atomic_load(&live_bytes);
}
int64_t ls_mem_count(void)
{
    return atomic_load(&n_allocs);
}
void ls_mem_fail_at(int64_t k)
{
    atomic_store(&fail_in, k);
}
