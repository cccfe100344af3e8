/* evidence.h - output of system tools, kept as files: one command after the other, in the background, within a time limit.
 *
 * A file appears when its command has ended with exit code 0 and has printed something. Nothing here fails a run: errors are in the
 * `result` of a command. */
#ifndef LS_TRAIN_EVIDENCE_H
#define LS_TRAIN_EVIDENCE_H

#include <pthread.h>
#include <stdbool.h>

#define LS_EVIDENCE_MAX  4
#define LS_EVIDENCE_WORD 8

typedef struct ls_evidence_row {
    const char *word[LS_EVIDENCE_WORD]; /* the program, found in PATH, and its arguments, up to NULL; borrowed */
    char path[1024];                    /* of the file */
    char result[96]; /* "ok", "not installed", "exit code 9", "no answer in 8 s" ...; when it has ended */
} ls_evidence_row;

/* Zero-initialise, set row and n, and begin. */
typedef struct ls_evidence {
    ls_evidence_row row[LS_EVIDENCE_MAX];
    int n;
    double limit;       /* seconds           */
    _Atomic double end; /* on ls_now's clock */
    _Atomic bool cut;   /* the end was moved, since the run ends */
    pthread_t thread;
    bool running;
} ls_evidence;

/* Starts a thread that runs the commands, and returns; n is 0 afterwards if it cannot be started. */
void ls_evidence_begin(ls_evidence *e, double seconds);
/* Waits for the thread, at most until the limit; a command that runs then is killed. */
void ls_evidence_end(ls_evidence *e);
/* Kills the running command and skips the others; then end returns at once. */
void ls_evidence_stop(ls_evidence *e);

#endif
