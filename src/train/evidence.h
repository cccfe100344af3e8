/* evidence.h - output of system tools, kept as files: one command after the other, in the background, within a time limit.
 *
 *   ls_evidence_begin(&e, rows, n, 8.0)    starts a thread and returns
 *   ls_evidence_end(e, &n)                 waits for it, at most until the limit; a command that runs then is killed
 *   ls_evidence_stop(e)                    kills the running command and skips the others; then end returns at once
 *   ls_evidence_destroy(&e)                stops, and frees
 *
 * A file appears when its command has ended with exit code 0 and has printed something. Nothing here fails a run: errors are in the
 * `result` of a command. */
#ifndef LS_TRAIN_EVIDENCE_H
#define LS_TRAIN_EVIDENCE_H

#include <stdbool.h>

#define LS_EVIDENCE_MAX  4
#define LS_EVIDENCE_WORD 8

typedef struct ls_evidence_row {
    const char *word[LS_EVIDENCE_WORD]; /* the program, found in PATH, and its arguments, up to NULL; borrowed */
    char path[1024];                    /* of the file */
    char result[96]; /* "ok", "not installed", "exit code 9", "no answer in 8 s" ...; when it has ended */
} ls_evidence_row;

typedef struct ls_evidence ls_evidence;

/* *out is NULL when it cannot be started; ls_evidence_end accepts NULL. */
void ls_evidence_begin(ls_evidence **out, const ls_evidence_row *row, int n, double seconds);
/* The rows with their results; NULL when nothing was started. Borrowed until ls_evidence_destroy. */
const ls_evidence_row *ls_evidence_end(ls_evidence *e, int *n);
void ls_evidence_stop(ls_evidence *e);
void ls_evidence_destroy(ls_evidence **e);

#endif
