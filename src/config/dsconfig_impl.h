/* dsconfig_impl.h - the rows that describe DeepSpeed's keys, shared by the reader (dsconfig.c) and the tables
 * (dsconfig_tables.c). Not for other folders. */
#ifndef LS_CONFIG_DSCONFIG_IMPL_H
#define LS_CONFIG_DSCONFIG_IMPL_H

#include "config/dsconfig.h"

typedef enum ds_kind {
    DS_BOOL,
    DS_INT, /* whole numbers, also written as 5e8            */
    DS_REAL,
    DS_TEXT,  /* checked against `words`, "a|b|c", when given  */
    DS_BLOCK, /* an object with rows of its own                */
    DS_ANY,   /* known, not looked into                        */
    DS_CALL,  /* a function of its own                         */
} ds_kind;

typedef enum ds_effect {
    DS_USED,
    DS_INERT,  /* changes nothing here: listed when it asks for something           */
    DS_REFUSE, /* true, "enabled": true, or a number outside lo..hi is not supported */
} ds_effect;

/* What became of the keys, a line each. Only for ls_ds_config_explain. */
typedef struct ds_groups {
    ls_str honoured, ignored, refused;
} ds_groups;

typedef struct ds_reader {
    ls_ds_config *c;
    const char *what;  /* the file, for messages */
    const char *text;  /* its JSON, without comments */
    ds_groups *groups; /* or NULL */
    int n_refused;
    ls_status first; /* the first problem, and its message */
    char words[1600];
} ds_reader;

typedef struct ds_row {
    const char *key;
    ds_kind kind;
    ds_effect effect;
    double lo, hi;
    const char *words; /* choices of DS_TEXT */
    const struct ds_row *sub;
    size_t n_sub;
    ls_status (*call)(ds_reader *r, const char *place, const json_t *v);
} ds_row;

typedef struct ds_table {
    const char *place; /* "" at the top */
    const ds_row *row;
    size_t n;
} ds_table;

/* The top table first; the others are where a misplaced key is looked for. */
extern const ds_table train_ds_tables[];
extern const size_t train_ds_n_tables;

/* Names of a setting and their other names, which are read as the first ones; at most one dot. */
extern const char *const train_ds_names[][2];
extern const size_t train_ds_n_names;

/* The flag of `lockstep train` that sets the same as a key. */
typedef struct ds_flag {
    const char *place, *flag;
} ds_flag;
extern const ds_flag train_ds_flags[];
extern const size_t train_ds_n_flags;

/* Reads object v by the rows, all of them: a key that is refused is counted in the reader. */
ls_status train_ds_block(ds_reader *r, const char *place, const json_t *v, const ds_row *row, size_t n);
/* "auto": as if the key were missing. Rows with functions of their own decide themselves. */
bool train_ds_auto(const json_t *v);
/* Adds to the list of keys without effect. */
void train_ds_note(ds_reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Adds to the group of keys that are honoured. */
void train_ds_used(ds_reader *r, const char *place);
/* Takes a key, and all that is in its block, out of that group: it may be refused or without effect beside another one. */
void train_ds_unused(ds_reader *r, const char *place);
/* A key of that group that is honoured in part, in words; and a key that has no effect, which is reported elsewhere. */
void train_ds_in_part(ds_reader *r, const char *place, const char *words);
void train_ds_ignored(ds_reader *r, const char *place, const char *words);
/* Counts a refused key; other failures are returned. st is the status of a check of it, with its message. */
ls_status train_ds_refuse(ds_reader *r, const char *place, ls_status st);
/* Rules between keys, after everything was read. */
ls_status train_ds_check(ds_reader *r);

#endif
