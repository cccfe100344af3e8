/* keys.h - reads values from JSON files that are not trusted.
 *
 * A key that is absent or null reads as "unknown": NaN, -1 or NULL. One of the wrong kind does too, and is put on the list of
 * problems with its file and key, so that a reader of the report knows what to fix. Nothing here fails a report. */
#ifndef LS_REPORT_KEYS_H
#define LS_REPORT_KEYS_H

#include "core/json.h"

#include <stdbool.h>
#include <stdint.h>

/* What was wrong with what we read: one line each. Zero-initialise; fini when done. Out of memory sets `failed`. */
typedef struct ls_notes {
    char **text;
    int n, cap;
    bool failed;
} ls_notes;
void ls_notes_add(ls_notes *notes, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
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

/* Loads dir/name if it exists: *out stays NULL if it does not, or if it cannot be read (then noted). */
ls_status report_load(const char *dir, const char *name, ls_notes *notes, json_t **out);

#endif
