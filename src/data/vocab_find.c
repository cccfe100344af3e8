/* vocab_find.c - finds or downloads the two files of the GPT-2 vocabulary and checks their SHA-256. */
#include "data/tokenizer.h"
#include "core/fs.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/mem.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BYTES ((size_t)16 << 20)
#define URL       "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main"

static const struct {
    const char *name, *sha256;
} part[2] = {
    {"vocab.bpe", "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"},
    {"encoder.json", "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"},
};

/* $LOCKSTEP_CACHE/gpt2, or ${XDG_CACHE_HOME:-~/.cache}/lockstep/gpt2. */
static ls_status cache_dir(char dir[PATH_MAX])
{
    const char *own = getenv("LOCKSTEP_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (own && *own) return ls_path_in(dir, own, "gpt2");
    if (xdg && *xdg) return ls_path_in(dir, xdg, "lockstep/gpt2");
    if (home && *home) return ls_path_in(dir, home, ".cache/lockstep/gpt2");
    return ls_fail(LS_E_IO,
                   "no cache folder: HOME is not set; use --vocab-dir for the folder with vocab.bpe and encoder.json");
}

static bool is_genuine(int i, const void *data, size_t n, char hex[65])
{
    ls_sha256 s;
    ls_sha256_init(&s);
    ls_sha256_add(&s, data, n);
    ls_sha256_hex(&s, hex);
    return !strcmp(hex, part[i].sha256);
}

static size_t keep(char *data, size_t size, size_t n, void *ctx)
{
    ls_str *s = ctx;
    if (s->len + size * n > MAX_BYTES) return 0;
    ls_str_addn(s, data, size * n);
    return s->failed ? 0 : size * n;
}

/* Downloads url into body. */
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
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1000L); /* bytes per second, for */
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, 30L);    /* seconds: abort */
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
    char hex[65], from[PATH_MAX], to[PATH_MAX];
    LS_TRY(ls_path_in(from, url, "%s", part[i].name));
    LS_TRY(ls_path_in(to, dir, "%s", part[i].name));
    ls_status st = fetch(from, &body);
    if (st == LS_OK && !is_genuine(i, body.data, body.len, hex))
        st = ls_fail(LS_E_FORMAT, "%s: %zu bytes with SHA-256 %.16s..., expected %.16s... (GPT-2)", from, body.len, hex,
                     part[i].sha256);
    if (st == LS_OK) st = ls_fs_write(to, body.data, body.len);
    ls_str_fini(&body);
    return st;
}

/* *here is false if the file does not exist; a file with another checksum is an error. */
static ls_status check_cached(const char *dir, int i, bool *here)
{
    char path[PATH_MAX], *data = NULL, hex[65];
    size_t n = 0;
    LS_TRY(ls_path_in(path, dir, "%s", part[i].name));
    *here = ls_fs_exists(path);
    if (!*here) return LS_OK;
    LS_TRY(ls_fs_read(path, &data, &n));
    const bool genuine = is_genuine(i, data, n, hex);
    ls_free(data);
    if (genuine) return LS_OK;
    return ls_fail(LS_E_FORMAT, "%s is not the %s of GPT-2 (SHA-256 %.16s..., expected %.16s...); remove or replace it",
                   path, part[i].name, hex, part[i].sha256);
}

ls_status ls_gpt2_find(const char *vocab_dir, const char *url, ls_tokenizer **out)
{
    if (vocab_dir) return ls_tokenizer_load(vocab_dir, out);
    if (!url) url = URL;
    char dir[PATH_MAX];
    LS_TRY(cache_dir(dir));
    ls_debug("data", "the GPT-2 vocabulary is cached in %s", dir);
    for (int i = 0; i < 2; i++) {
        bool here = false;
        LS_TRY(check_cached(dir, i, &here));
        const ls_status st = here ? LS_OK : download(url, dir, i);
        if (st == LS_OK) continue;
        ls_err_kept why;
        ls_err_keep(&why);
        return ls_fail(
            st,
            "the GPT-2 vocabulary was not found in %s and the download failed (%s); put vocab.bpe and encoder.json from %s in that folder, or use --vocab-dir for their folder",
            dir, why.words, url);
    }
    return ls_tokenizer_load(dir, out);
}
