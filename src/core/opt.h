/* opt.h - command-line options as rows of a table: parsing, help, defaults and the printed configuration come from one row.
 *
 * Long options only (and -h), `--name value` or `--name=value`; `-` and `_` are equal in names, which are never abbreviated; the
 * last occurrence wins (LS_OPT_WORDS: all count), but two names of one option with different values are LS_E_ARG; a list takes every following word up to the next option. A switch stands alone; true or false may follow it,
 * after = and after a switch that stands for a value also 1, yes, 0 or no.
 * A word that is the name of an option is not taken as the value of another one, except after = and for rows with `text`.
 * An unknown option, a missing or bad value is LS_E_ARG with the nearest options named, or those that have its name as a value. */
#ifndef LS_CORE_OPT_H
#define LS_CORE_OPT_H

#include "core/err.h"
#include "core/json.h"
#include "core/str.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum ls_opt_kind {
    LS_OPT_SWITCH, /* bool          */
    LS_OPT_INT,    /* int64_t       */
    LS_OPT_REAL,   /* double        */
    LS_OPT_STR,    /* const char *  */
    LS_OPT_CHOICE, /* const char *, one of the words in arg: "cpu|cuda" */
    LS_OPT_LIST,   /* ls_opt_list   */
    LS_OPT_WORDS,  /* ls_opt_words: each occurrence adds one */
    LS_OPT_MAYBE,  /* const char *, the next word if it is a number, else "" */
} ls_opt_kind;

#define LS_OPT_TRUTHS "true, 1, yes, false, 0 or no" /* what a switch takes, in messages */

#define LS_OPT_MAX_WORDS 32
typedef struct ls_opt_words {
    const char *word[LS_OPT_MAX_WORDS];
    int n;
} ls_opt_words;

typedef struct ls_opt_list {
    const char *const *word; /* borrowed from argv */
    int n;
} ls_opt_list;

typedef struct ls_opt {
    const char *name; /* as shown, e.g. "seq_length"                            */
    ls_opt_kind kind;
    size_t offset;       /* of the value in the target structure                   */
    const char *arg;     /* what the help shows after the name; the values of a choice */
    const char *def;     /* default, as text; NULL leaves the target as it was     */
    const char *help;    /* one line; NULL hides the row                           */
    const char *section; /* heading in the help, given on its first row            */
    /* Range of a number on the command line; lo = hi: any number. If hi is INT32_MAX or more, errors name only lo. The default may
     * be outside. */
    double lo, hi;
    /* Another name of the row `of`, which gives kind, place, range and help. With `value` it is a switch that stands for
     * `--of value`, and false sets nothing; beside that value it is refused. Both rows count as given; false: only this one. */
    const char *of, *value;
    const char *word; /* of LS_OPT_INT: a word that is accepted, too, and stands for -1 ("auto") */
    bool common;      /* on the first help page; a table without common rows has one page */
    const char *refused,
        *reason;   /* of LS_OPT_CHOICE: a word of other commands that is LS_E_UNSUPPORTED here, and why; NULL: none */
    bool any_case; /* of LS_OPT_CHOICE: upper and lower case are equal */
    bool text;     /* the value may be the name of an option: a prompt, or options of another command */
    /* Not an option here: the name that other programs use ("wandb_*": all that begin so), and in words what replaces it.
     * Values among `arg` ("false|0|no"; upper and lower case are equal) are what happens anyway: accepted without effect. */
    const char *instead;
} ls_opt;

/* What --help, --help_all (or --help=all) and --help=json ask for. */
typedef enum ls_opt_page { LS_OPT_NO_PAGE, LS_OPT_FIRST_PAGE, LS_OPT_ALL_PAGES, LS_OPT_JSON } ls_opt_page;

/* Whether the word asks for a help page (--help and its forms, -h), and for which; page may be NULL. */
bool ls_opt_asks_page(const char *word, ls_opt_page *page);

/* 1 for true, 0 for false, as other trainers write them (LS_OPT_TRUTHS, in any case); -1: neither. */
int ls_opt_truth(const char *word);

/* The row of that name (- and _ are equal), or n. */
size_t ls_opt_row(const ls_opt *table, size_t n, const char *name);

/* Sets the defaults of all rows in target. */
ls_status ls_opt_defaults(const ls_opt *table, size_t n, void *target);

/* given[i] (may be NULL: then names are not compared; begins as 0) is set to 1 where row i was on the command line. Words that are no options are LS_E_ARG, unless
 * rest is not NULL: then they are collected in it (borrowed from argv, which is reordered). "--" ends the options.
 * "--help" and its forms and "-h" set *page (may be NULL: then they are unknown options). */
ls_status ls_opt_parse(const ls_opt *table, size_t n, void *target, unsigned char *given, int argc, char **argv,
                       ls_opt_list *rest, ls_opt_page *page);

#define LS_OPT_COLUMNS 80 /* of help pages */

/* The option part of a help page, wrapped at LS_OPT_COLUMNS. The first page ends with a line that names --help_all where it does not
 * have every row. All pages: every row, with its other names. */
void ls_opt_help(const ls_opt *table, size_t n, ls_opt_page page, ls_str *out);

/* The rows as members of an array: name, kind, arg, default, help, section, min, max, alias_of, value, common. */
void ls_opt_json(const ls_opt *table, size_t n, ls_jsonw *w);

/* Paragraphs of a help page, one per line of `text`, wrapped at LS_OPT_COLUMNS. Lines that begin with a blank (examples)
 * are kept as they are. */
void ls_opt_text(const char *text, ls_str *out);

#endif
