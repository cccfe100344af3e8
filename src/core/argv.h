/* argv.h - a list of arguments: the command line of a run to be started. */
#ifndef LS_CORE_ARGV_H
#define LS_CORE_ARGV_H

#include "core/err.h"
#include "core/str.h"

typedef struct ls_argv {
    char **word; /* NULL after the last */
    int n;
    size_t cap;
} ls_argv;

ls_status ls_argv_add(ls_argv *w, const char *word);
ls_status ls_argv_addf(ls_argv *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
ls_status ls_argv_add_all(ls_argv *w, const ls_argv *more);
/* Splits at blanks; '…' and "…" keep blanks inside a word. LS_E_ARG when a quote is not closed. */
ls_status ls_argv_split(ls_argv *w, const char *text);
/* Quoted for a shell where needed. */
void ls_argv_show(const ls_argv *w, ls_str *out);
/* One word of it as a value, for a message: "... --out %s", ls_quoted(dir).text. A word that is too long is cut. */
typedef struct ls_quoted_word {
    char text[4200];
} ls_quoted_word;
ls_quoted_word ls_quoted(const char *word);
void ls_argv_fini(ls_argv *w);

#endif
