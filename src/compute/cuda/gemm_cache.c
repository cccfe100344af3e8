#include "compute/cuda/gemm_cache.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/mem.h"
#include "core/str.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#define HEAD "lockstep gemm 1\n"

typedef struct entry {
    cu_gemm_key key;
    cu_gemm_choice choice;
} entry;

typedef struct table { /* tens of shapes: looked through in order */
    entry *e;
    int n;
    size_t cap;
} table;

struct cu_gemm_cache {
    table here, file; /* what this process uses; what the file said when the lock was taken */
    char *path, *lock_path;
    int lock; /* -1: not held */
};

static entry *look(const table *t, const cu_gemm_key *key)
{
    for (int i = 0; i < t->n; i++)
        if (!memcmp(&t->e[i].key, key, sizeof *key)) return &t->e[i];
    return NULL;
}

static ls_status set(table *t, const cu_gemm_key *key, const cu_gemm_choice *choice)
{
    entry *e = look(t, key);
    if (!e) {
        LS_TRY(ls_reserve(&t->e, &t->cap, (size_t)t->n + 1, sizeof *t->e, "the table of products"));
        e = &t->e[t->n++];
        e->key = *key;
    }
    e->choice = *choice;
    return LS_OK;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static void add_line(ls_str *s, const entry *e)
{
    const cu_gemm_key *k = &e->key;
    const cu_gemm_choice *c = &e->choice;
    ls_str_addf(s, "%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRIx64 " %" PRIx32, k->M,
                k->N, k->K, k->lda, k->ldb, k->ldo, k->flags, c->fused);
    ls_str_addf(s, " %.2f %" PRIu64, (double)c->usec, c->workspace);
    for (int i = 0; i < 8; i++) ls_str_addf(s, " %" PRIx64, c->algo[i]);
    ls_str_addc(s, '\n');
}

static bool read_line(const char *line, entry *e)
{
    cu_gemm_key *k = &e->key;
    cu_gemm_choice *c = &e->choice;
    int used = 0;
    memset(e, 0, sizeof *e);
    if (sscanf(line,
               "%" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNx64 " %" SCNx32
               " %f %" SCNu64 "%n",
               &k->M, &k->N, &k->K, &k->lda, &k->ldb, &k->ldo, &k->flags, &c->fused, &c->usec, &c->workspace,
               &used) != 10)
        return false;
    for (int i = 0; i < 8; i++) {
        int n = 0;
        if (sscanf(line + used, " %" SCNx64 "%n", &c->algo[i], &n) != 1) return false;
        used += n;
    }
    return !line[used + (int)strspn(line + used, " \r")];
}

static ls_status read_file(cu_gemm_cache *c)
{
    char *text = NULL, *next;
    size_t n = 0;
    ls_status st = LS_OK;
    c->file.n = 0;
    if (!ls_fs_exists(c->path) || ls_fs_read(c->path, &text, &n) != LS_OK) return LS_OK;
    const bool ours = !strncmp(text, HEAD, strlen(HEAD));
    for (char *line = text + strlen(HEAD); ours && st == LS_OK && (next = strchr(line, '\n')); line = next) {
        entry e;
        *next++ = '\0';
        if (read_line(line, &e)) st = set(&c->file, &e.key, &e.choice);
    }
    ls_free(text);
    return st;
}

static void give_up_file(cu_gemm_cache *c)
{
    ls_free(c->path);
    c->path = NULL;
}

static char *folder(void)
{
    const char *own = getenv("LOCKSTEP_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (own && *own) return ls_strdup(own);
    if (xdg && *xdg) return ls_asprintf("%s/lockstep", xdg);
    return home && *home ? ls_asprintf("%s/.cache/lockstep", home) : NULL;
}

static void open_file(cu_gemm_cache *c, const char *gpu, uint64_t version)
{
    char name[96];
    char *dir = folder();
    size_t n = 0;
    for (; gpu[n] && n + 1 < sizeof name; n++) {
        const char ch = gpu[n];
        const bool plain = (ch >= '0' && ch <= '9') || (ch >= 'A' && ch <= 'Z') || (ch >= 'a' && ch <= 'z');
        name[n] = plain ? ch : '-';
    }
    name[n] = '\0';
    if (dir && ls_fs_mkdirs(dir) == LS_OK && !access(dir, W_OK)) {
        c->path = ls_asprintf("%s/gemm-%s-%" PRIu64 ".txt", dir, name, version);
        c->lock_path = ls_asprintf("%s/gemm-%s-%" PRIu64 ".lock", dir, name, version);
        if (!c->lock_path) give_up_file(c);
    }
    ls_free(dir);
}

/* ---- the table ---------------------------------------------------------------------------------------------------- */

ls_status cu_gemm_cache_open(cu_gemm_cache **out, const char *gpu, uint64_t version, bool kept)
{
    cu_gemm_cache *c = ls_alloc(sizeof *c);
    if (!c) return ls_nomem(sizeof *c, "the table of products");
    c->lock = -1;
    if (kept) open_file(c, gpu, version);
    *out = c;
    return LS_OK;
}

void cu_gemm_cache_close(cu_gemm_cache **c)
{
    if (!*c) return;
    cu_gemm_cache_unlock(*c);
    ls_free((*c)->here.e);
    ls_free((*c)->file.e);
    ls_free((*c)->path);
    ls_free((*c)->lock_path);
    ls_free(*c);
    *c = NULL;
}

const char *cu_gemm_cache_path(const cu_gemm_cache *c)
{
    return c->path;
}

const cu_gemm_choice *cu_gemm_cache_find(const cu_gemm_cache *c, const cu_gemm_key *key)
{
    const entry *e = look(&c->here, key);
    return e ? &e->choice : NULL;
}

ls_status cu_gemm_cache_put(cu_gemm_cache *c, const cu_gemm_key *key, const cu_gemm_choice *choice)
{
    return set(&c->here, key, choice);
}

ls_status cu_gemm_cache_lock(cu_gemm_cache *c, double seconds)
{
    const double until = ls_now() + seconds;
    if (!c->path || c->lock >= 0) return LS_OK;
    c->lock = open(c->lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (c->lock < 0) {
        give_up_file(c);
        return LS_OK;
    }
    while (flock(c->lock, LOCK_EX | LOCK_NB)) {
        if (errno == EINTR) continue;
        if (errno != EWOULDBLOCK) break; /* a file system without locks: nobody else can hold one either */
        if (ls_now() > until) {
            cu_gemm_cache_unlock(c);
            return ls_fail(
                LS_E_DEVICE,
                "another process has locked %s for %.0f s; end that process, or set LS_GEMM_TUNE=0 to run without this file",
                c->lock_path, seconds);
        }
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    const ls_status st = read_file(c);
    if (st != LS_OK) cu_gemm_cache_unlock(c);
    return st;
}

void cu_gemm_cache_unlock(cu_gemm_cache *c)
{
    if (c->lock >= 0) close(c->lock);
    c->lock = -1;
    c->file.n = 0;
}

const cu_gemm_choice *cu_gemm_cache_filed(const cu_gemm_cache *c, const cu_gemm_key *key)
{
    const entry *e = look(&c->file, key);
    return e ? &e->choice : NULL;
}

ls_status cu_gemm_cache_keep(cu_gemm_cache *c, const cu_gemm_key *key, const cu_gemm_choice *choice)
{
    ls_str text = {0};
    if (!c->path || c->lock < 0) return LS_OK;
    LS_TRY(set(&c->file, key, choice));
    ls_str_add(&text, HEAD);
    for (int i = 0; i < c->file.n; i++) add_line(&text, &c->file.e[i]);
    if (text.failed || ls_fs_write(c->path, text.data, text.len) != LS_OK) give_up_file(c);
    ls_str_fini(&text);
    return LS_OK;
}
