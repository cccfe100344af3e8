/* tokenizer_speed - encodes a file repeatedly with several threads, each on its own part, and prints MB/s.
 *
 *   tokenizer_speed VOCAB TEXT THREADS      VOCAB: a folder or tokenizer.json
 *
 * Reads one line of standard input before each repeat and answers it with "SECONDS CPU_SECONDS IDS", so that a script can interleave it
 * with something else (see tokenizer_vs_tiktoken.py). Every repeat uses new encoders, so that their caches are
 * empty. */
#include "core/clock.h"
#include "core/fs.h"
#include "core/mem.h"
#include "data/pretokenize.h"
#include "data/tokenizer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct part {
    pthread_t thread;
    const ls_tokenizer *tok;
    const unsigned char *text;
    size_t n, n_id;
    ls_status st;
    char words[200];
} part;

static void *encode(void *arg)
{
    part *p = arg;
    ls_encoder *e = NULL;
    ls_ids ids = {0};
    p->st = ls_encoder_create(p->tok, &e);
    if (p->st == LS_OK) p->st = ls_encode(e, p->text, p->n, &ids);
    if (p->st != LS_OK) snprintf(p->words, sizeof p->words, "%s", ls_err_words());
    p->n_id = ids.n;
    ls_ids_fini(&ids);
    ls_encoder_destroy(&e);
    return NULL;
}

/* Parts of equal size, each ending where a piece does. */
static ls_status once(part *p, int threads, const ls_tokenizer *tok, const unsigned char *text, size_t n, size_t *n_id)
{
    size_t at = 0;
    *n_id = 0;
    for (int i = 0; i < threads; i++) {
        size_t end = n * (size_t)(i + 1) / (size_t)threads;
        if (i + 1 < threads) end = at + data_split_cut(text + at, end - at);
        p[i] = (part){.tok = tok, .text = text + at, .n = end - at};
        at = end;
    }
    for (int i = 1; i < threads; i++)
        if (pthread_create(&p[i].thread, NULL, encode, &p[i])) return ls_fail(LS_E_NOMEM, "cannot start thread %d", i);
    encode(&p[0]);
    for (int i = 1; i < threads; i++) pthread_join(p[i].thread, NULL);
    for (int i = 0; i < threads; i++) {
        if (p[i].st != LS_OK) return ls_fail(p[i].st, "%s", p[i].words);
        *n_id += p[i].n_id;
    }
    return LS_OK;
}

static ls_status run(char **argv, int threads)
{
    ls_tokenizer *tok = NULL;
    char *text = NULL, line[64];
    size_t n = 0, n_id = 0;
    part *p = ls_alloc((size_t)threads * sizeof *p);
    ls_status st = p ? LS_OK : ls_nomem(64, "threads");
    if (st == LS_OK) st = ls_tokenizer_load(argv[1], &tok);
    if (st == LS_OK) st = ls_fs_read(argv[2], &text, &n);
    while (st == LS_OK && fgets(line, sizeof line, stdin)) {
        double start = ls_now(), cpu = ls_cpu_seconds();
        st = once(p, threads, tok, (const unsigned char *)text, n, &n_id);
        if (st == LS_OK) printf("%.6f %.6f %zu\n", ls_now() - start, ls_cpu_seconds() - cpu, n_id);
        fflush(stdout);
    }
    ls_free(text);
    ls_free(p);
    ls_tokenizer_destroy(&tok);
    return st;
}

int main(int argc, char **argv)
{
    int64_t threads = 0;
    if (argc < 4 || !ls_parse_i64(argv[3], &threads) || threads < 1 || threads > 256) {
        fprintf(stderr, "usage: %s VOCAB TEXT THREADS   (a line of standard input starts a round)\n", argv[0]);
        return 2;
    }
    ls_status st = run(argv, (int)threads);
    if (st != LS_OK) fprintf(stderr, "%s: %s\n%s", argv[0], ls_err_words(), ls_err_trail());
    return ls_status_exit_code(st);
}
