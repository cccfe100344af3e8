/* err.c - the per-thread failure trail. */
#include "core/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char words[LS_ERR_WORDS];
static _Thread_local char trail[LS_ERR_TRAIL];
static _Thread_local size_t trail_len;
static _Thread_local bool of_peer;

const char *ls_short_path(const char *file)
{
    const char *src = strstr(file, "src/"), *next;
    while (src && (next = strstr(src + 4, "src/"))) src = next;
    return src ? src + 4 : file;
}

static void trail_add(const char *how, const char *file, int line, const char *expr)
{
    if (trail_len >= sizeof trail - 1) return;
    int n = snprintf(trail + trail_len, sizeof trail - trail_len, "  %s %s:%d%s%s\n", how, ls_short_path(file), line,
                     expr ? "  " : "", expr ? expr : "");
    if (n < 0) return;
    trail_len += (size_t)n;
    if (trail_len > sizeof trail - 1) trail_len = sizeof trail - 1;
}

ls_status ls_fail_at(ls_status code, const char *file, int line, const char *fmt, ...)
{
    char fresh[LS_ERR_WORDS]; /* arguments may point into the old message */
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(fresh, sizeof fresh, fmt, ap);
    va_end(ap);
    memcpy(words, fresh, sizeof words);
    trail_len = 0;
    of_peer = false;
    trail[0] = '\0';
    trail_add("at", file, line, NULL);
    return code;
}

ls_status ls_fail_via(ls_status st, const char *file, int line, const char *expr)
{
    trail_add("via", file, line, expr);
    return st;
}

static const struct {
    const char *words;
    int exit_code;
} status[] = {
#define X(code, text, exit_code) {text, exit_code},
    LS_STATUS_LIST(X)
#undef X
};
#define N_STATUS (sizeof status / sizeof status[0])

const char *ls_status_words(ls_status st)
{
    return (size_t)st < N_STATUS ? status[st].words : "unknown status";
}

int ls_status_exit_code(ls_status st)
{
    return (size_t)st < N_STATUS ? status[st].exit_code : 1;
}

const char *ls_err_words(void)
{
    return words;
}

const char *ls_err_trail(void)
{
    return trail;
}

void ls_err_clear(void)
{
    words[0] = trail[0] = '\0';
    trail_len = 0;
    of_peer = false;
}

void ls_err_set_peers(void)
{
    of_peer = true;
}

bool ls_err_is_peers(void)
{
    return of_peer;
}

void ls_err_keep(ls_err_kept *k)
{
    memcpy(k->words, words, sizeof words);
    memcpy(k->trail, trail, sizeof trail);
    k->of_peer = of_peer;
}

void ls_err_restore(const ls_err_kept *k)
{
    memcpy(words, k->words, sizeof words);
    memcpy(trail, k->trail, sizeof trail);
    trail_len = strlen(trail);
    of_peer = k->of_peer;
}

void (*ls_before_internal_error)(void);

void ls_assert_failed(const char *cond, const char *file, int line)
{
    if (ls_before_internal_error) ls_before_internal_error();
    fprintf(stderr, "lockstep: internal error: %s at %s:%d (please report this)\n", cond, ls_short_path(file), line);
    abort();
}
