/* keys.h - reads values from JSON files that are not trusted.
 *
 * A key that is absent or null reads as "unknown": NaN, -1 or NULL. One of the wrong kind does too, and is put on the list of
 * problems with its file and key, so that a reader of the report knows what to fix. Nothing here fails a report. */
#ifndef LS_REPORT_KEYS_H
#define LS_REPORT_KEYS_H

#include "core/json.h"

#include <stdbool.h>
#include <stdint.h>

/* Problems of the files that were read: one line each. Zero-initialise; fini when done. Out of memory sets `failed`. */
typedef struct ls_notes {
    char **text;
    int n, cap;
    bool failed;
} ls_notes;
void ls_notes_add(ls_notes *notes, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A file that cannot be read or parsed does not fail the report: notes the message of the failure `st` and returns LS_OK. Out of memory is
 * returned. */
ls_status ls_notes_failure(ls_notes *notes, ls_status st);
void ls_notes_fini(ls_notes *notes);

/* A parsed file and where to report problems. root may be NULL: then nothing is reported. */
typedef struct report_doc {
    const json_t *root;
    const char *file;
    ls_notes *notes; /* NULL: be silent */
} report_doc;

/* path is "summary.best_val_loss"; a part of it that is no object is a problem of its own. */
const json_t *report_get(const report_doc *d, const char *path); /* NULL: absent or null */
double report_num(const report_doc *d, const char *path);        /* NaN: unknown; infinities are problems */
int64_t report_int(const report_doc *d, const char *path);       /* -1: unknown; negative or not whole is a problem */
const char *report_str(const report_doc *d, const char *path);   /* NULL: unknown; borrowed from root */
const json_t *report_object(const report_doc *d, const char *path);
const json_t *report_array(const report_doc *d, const char *path);

/* Parses a text that should be a JSON object: *out stays NULL for any other text, and the problem is noted. */
void report_parse(const char *text, size_t n, const char *file, ls_notes *notes, json_t **out);
/* The same for dir/name, if it exists. */
ls_status report_load(const char *dir, const char *name, ls_notes *notes, json_t **out);

#endif
