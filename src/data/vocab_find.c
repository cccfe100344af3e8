/* vocab_find.c - two files, known by their SHA-256, so that wherever they come from they are the right ones. */
#include "data/vocab_find.h"
#include "core/fs.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/mem.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BYTES ((size_t)16 << 20)

static const struct {
    const char *name, *sha256;
} part[2] = {
    {"vocab.bpe", "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"},
    {"encoder.json", "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"},
};

char *ls_gpt2_cache_dir(void)
{
    const char *own = getenv("LOCKSTEP_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (own && *own) return ls_asprintf("%s/gpt2", own);
    if (xdg && *xdg) return ls_asprintf("%s/lockstep/gpt2", xdg);
    return home && *home ? ls_asprintf("%s/.cache/lockstep/gpt2", home) : NULL;
}

static void sha256_of(const void *data, size_t n, char hex[65])
{
    ls_sha256 s;
    ls_sha256_init(&s);
    ls_sha256_add(&s, data, n);
    ls_sha256_hex(&s, hex);
}

static size_t keep(char *data, size_t size, size_t n, void *ctx)
{
    ls_str *s = ctx;
    if (s->len + size * n > MAX_BYTES) return 0;
    ls_str_addn(s, data, size * n);
    return s->failed ? 0 : size * n;
}

/* The body of url, or the reason why not. */
static ls_status fetch(const char *url, ls_str *body)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
    CURL *c = curl_easy_init();
    if (!c) return ls_nomem(1 << 16, "a download");
    char reason[CURL_ERROR_SIZE] = "";
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, reason);
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(c, CURLOPT_FAILONERROR, 1L);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, 15L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1000L); /* bytes a second, for */
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, 30L);    /* seconds: then it is given up */
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, keep);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, body);
    CURLcode rc = curl_easy_perform(c);
    curl_easy_cleanup(c);
    if (body->failed) return ls_nomem(body->len, "a download");
    if (rc != CURLE_OK) return ls_fail(LS_E_IO, "%s: %s", url, *reason ? reason : curl_easy_strerror(rc));
    return LS_OK;
}

static ls_status download(const char *url, const char *dir, int i)
{
    ls_str body = {0};
    char hex[65];
    char *from = ls_path_join(url, part[i].name), *to = ls_path_join(dir, part[i].name);
    ls_status st = from && to ? LS_OK : ls_nomem(strlen(url), "a path");
    if (st == LS_OK) st = fetch(from, &body);
    if (st == LS_OK) {
        sha256_of(body.data, body.len, hex);
        if (strcmp(hex, part[i].sha256))
            st = ls_fail(LS_E_FORMAT, "%s: %zu bytes with SHA-256 %.16s..., not GPT-2's %.16s...", from, body.len, hex,
                         part[i].sha256);
    }
    if (st == LS_OK) st = ls_fs_write(to, body.data, body.len);
    ls_free(from);
    ls_free(to);
    ls_str_fini(&body);
    return st;
}

/* LS_OK with *here false when the file is not there; a file that is another one is an error. */
static ls_status check_cached(const char *dir, int i, bool *here)
{
    char *path = ls_path_join(dir, part[i].name), *data = NULL, hex[65];
    if (!path) return ls_nomem(strlen(dir), "a path");
    size_t n = 0;
    ls_status st = LS_OK;
    *here = ls_fs_exists(path);
    if (*here) st = ls_fs_read(path, &data, &n);
    if (*here && st == LS_OK) {
        sha256_of(data, n, hex);
        if (strcmp(hex, part[i].sha256))
            st = ls_fail(LS_E_FORMAT,
                         "%s is not GPT-2's %s (SHA-256 %.16s..., expected %.16s...): remove it or put the right one",
                         path, part[i].name, hex, part[i].sha256);
    }
    ls_free(data);
    ls_free(path);
    return st;
}

ls_status ls_gpt2_find(const char *vocab_dir, const char *url, ls_tokenizer **out)
{
    if (vocab_dir) {
        LS_TRY(ls_tokenizer_load(vocab_dir, out));
        return LS_OK;
    }
    char *dir = ls_gpt2_cache_dir();
    if (!dir)
        return ls_fail(LS_E_IO,
                       "no home folder for a cache: name the folder of vocab.bpe and encoder.json with --vocab-dir");
    ls_debug("data", "the GPT-2 vocabulary is cached in %s", dir);
    ls_status st = LS_OK;
    for (int i = 0; i < 2 && st == LS_OK; i++) {
        bool here = false;
        st = check_cached(dir, i, &here);
        if (st != LS_OK || here) continue;
        if (!url) url = LS_GPT2_URL;
        st = download(url, dir, i);
        if (st != LS_OK) {
            char *why = ls_strdup(ls_err_words());
            st = ls_fail(st,
                         "GPT-2's vocabulary is neither in %s nor to be had (%s); put vocab.bpe and encoder.json from "
                         "%s in that "
                         "folder, or name their folder with --vocab-dir",
                         dir, why ? why : "no memory", url);
            ls_free(why);
        }
    }
    if (st == LS_OK) st = ls_tokenizer_load(dir, out);
    ls_free(dir);
    return st;
}
