/* vocab_find.c - finds or downloads the two files of the GPT-2 vocabulary and checks their SHA-256. */
#include "data/tokenizer.h"
#include "data/fetch.h"
#include "core/fs.h"
#include "core/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BYTES ((int64_t)16 << 20)
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
    return ls_fail(
        LS_E_IO,
        "no cache folder for the GPT-2 vocabulary: HOME is not set; use --vocab_dir for the folder with vocab.bpe and encoder.json, or --tokenizer train");
}

/* Downloads the file if it does not exist, and checks it in both cases. */
static ls_status find_part(const char *url, const char *dir, int i, ls_fetch_result *r)
{
    char from[PATH_MAX], to[PATH_MAX];
    LS_TRY(ls_path_in(from, url, "%s", part[i].name));
    LS_TRY(ls_path_in(to, dir, "%s", part[i].name));
    r->had_it = ls_fs_exists(to);
    return ls_fetch(
        &(ls_fetch_opts){.url = from, .path = to, .sha256 = part[i].sha256, .nbytes = -1, .max_bytes = MAX_BYTES}, r);
}

ls_status ls_gpt2_find(const char *vocab_dir, const char *url, ls_tokenizer **out)
{
    if (vocab_dir) return ls_tokenizer_load(vocab_dir, out);
    if (!url) url = URL;
    char dir[PATH_MAX];
    LS_TRY(cache_dir(dir));
    ls_debug("data", "the GPT-2 vocabulary is cached in %s", dir);
    for (int i = 0; i < 2; i++) {
        ls_fetch_result r = {0};
        const ls_status st = find_part(url, dir, i, &r);
        if (st == LS_OK) continue;
        ls_err_kept why;
        ls_err_keep(&why);
        if (r.had_it) return ls_fail(st, "%s (%s of GPT-2); remove or replace it", why.words, part[i].name);
        return ls_fail(
            st,
            "the GPT-2 vocabulary was not found in %s and the download failed (%s); train a vocabulary on the text with --tokenizer train, put vocab.bpe and encoder.json from %s in that folder, or use --vocab_dir for their folder",
            dir, why.words, url);
    }
    return ls_tokenizer_load(dir, out);
}
