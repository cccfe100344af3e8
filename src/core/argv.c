#include "core/argv.h"
#include "core/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static ls_status take(ls_argv *w, char *word)
{
    if (!word) return ls_nomem(64, "a command line");
    const ls_status st = ls_reserve(&w->word, &w->cap, (size_t)w->n + 2, sizeof *w->word, "a command line");
    if (st != LS_OK) {
        ls_free(word);
        return st;
    }
    w->word[w->n++] = word;
    w->word[w->n] = NULL;
    return LS_OK;
}

ls_status ls_argv_add(ls_argv *w, const char *word)
{
    return take(w, ls_strdup(word));
}

ls_status ls_argv_addf(ls_argv *w, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    LS_ASSERT(n >= 0 && (size_t)n < sizeof text);
    return ls_argv_add(w, text);
}

ls_status ls_argv_add_all(ls_argv *w, const ls_argv *more)
{
    for (int i = 0; i < more->n; i++) LS_TRY(ls_argv_add(w, more->word[i]));
    return LS_OK;
}

ls_status ls_argv_split(ls_argv *w, const char *text)
{
    ls_str word = {0};
    ls_status st = LS_OK;
    bool inside = false;
    char quote = 0;
    for (const char *p = text;; p++) {
        const bool blank = !*p || *p == ' ' || *p == '\t' || *p == '\n';
        if (quote && *p && *p != quote) {
            ls_str_addc(&word, *p);
        } else if (quote && *p) {
            quote = 0;
        } else if (!blank && (*p == '\'' || *p == '"')) {
            quote = *p;
            inside = true;
        } else if (!blank) {
            ls_str_addc(&word, *p);
            inside = true;
        } else if (inside && !quote) {
            LS_TRY_GOTO(st, done, word.failed ? ls_nomem(64, "a word") : ls_argv_add(w, word.data ? word.data : ""));
            ls_str_fini(&word);
            inside = false;
        }
        if (!*p) break;
    }
    if (quote) st = ls_fail(LS_E_ARG, "%s: unclosed quote %c", text, quote);
done:
    ls_str_fini(&word);
    return st;
}

static void quote(const char *p, ls_str *out)
{
    if (*p && !p[strspn(p, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-+=/:,@%")]) {
        ls_str_add(out, p);
        return;
    }
    ls_str_addc(out, '\'');
    for (; *p; p++) {
        if (*p == '\'') ls_str_add(out, "'\\''");
        else ls_str_addc(out, *p);
    }
    ls_str_addc(out, '\'');
}

void ls_argv_show(const ls_argv *w, ls_str *out)
{
    for (int i = 0; i < w->n; i++) {
        if (i) ls_str_addc(out, ' ');
        quote(w->word[i], out);
    }
}

ls_quoted_word ls_quoted(const char *word)
{
    ls_quoted_word q;
    ls_str s = {0};
    quote(word, &s);
    snprintf(q.text, sizeof q.text, "%s", s.data ? s.data : "");
    ls_str_fini(&s);
    return q;
}

void ls_argv_fini(ls_argv *w)
{
    for (int i = 0; i < w->n; i++) ls_free(w->word[i]);
    ls_free(w->word);
    *w = (ls_argv){0};
}
