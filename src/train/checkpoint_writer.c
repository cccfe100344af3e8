/* checkpoint_writer.c - saving behind the trainer's back.
 *
 *   phase   IDLE -> (post) BUSY -> (the thread) DONE -> (wait) IDLE
 *
 * One mutex guards everything but `phase`, which the trainer may also peek at without it. The failure's words are kept here,
 * because the error trail belongs to the thread in which it happened. */
#include "train/checkpoint.h"

#include "core/mem.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { IDLE, BUSY, DONE };

struct ls_ckpt_writer {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    atomic_int phase;
    bool quit;
    ls_ckpt_job job;
    char *text[4]; /* the job's strings, owned from post to the end of the job */
    ls_status status;
    char words[2048], trail[4096];
};

static void *run(void *arg)
{
    ls_ckpt_writer *w = arg;
    pthread_mutex_lock(&w->mutex);
    for (;;) {
        while (!w->quit && atomic_load(&w->phase) != BUSY) pthread_cond_wait(&w->changed, &w->mutex);
        if (atomic_load(&w->phase) != BUSY) break; /* quit, and nothing is left to write */
        pthread_mutex_unlock(&w->mutex);
        ls_status st = ls_ckpt_save(&w->job);
        pthread_mutex_lock(&w->mutex);
        w->status = st;
        snprintf(w->words, sizeof w->words, "%s", st == LS_OK ? "" : ls_err_words());
        snprintf(w->trail, sizeof w->trail, "%s", st == LS_OK ? "" : ls_err_trail());
        for (int i = 0; i < 4; i++) {
            ls_free(w->text[i]);
            w->text[i] = NULL;
        }
        atomic_store(&w->phase, DONE);
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

ls_status ls_ckpt_writer_create(ls_ckpt_writer **out)
{
    ls_ckpt_writer *w = ls_alloc(sizeof *w);
    if (!w) return ls_nomem(sizeof *w, "the checkpoint writer");
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->changed, NULL);
    atomic_init(&w->phase, IDLE);
    sigset_t all, before; /* signals to the process are the trainer's to handle */
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    sigdelset(&all, SIGABRT);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int rc = pthread_create(&w->thread, NULL, run, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc) {
        pthread_cond_destroy(&w->changed);
        pthread_mutex_destroy(&w->mutex);
        ls_free(w);
        return ls_fail(LS_E_IO, "cannot start the checkpoint thread: %s", strerror(rc));
    }
    *out = w;
    return LS_OK;
}

void ls_ckpt_writer_destroy(ls_ckpt_writer **out)
{
    ls_ckpt_writer *w = *out;
    if (!w) return;
    pthread_mutex_lock(&w->mutex);
    w->quit = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
    ls_free(w);
    *out = NULL;
}

static bool copy_text(char **slot, const char **field)
{
    if (!*field) return true;
    *slot = ls_strdup(*field);
    *field = *slot;
    return *slot != NULL;
}

ls_status ls_ckpt_post(ls_ckpt_writer *w, const ls_ckpt_job *job)
{
    LS_TRY(ls_ckpt_wait(w));
    w->job = *job; /* the thread sleeps: phase is IDLE */
    if (!copy_text(&w->text[0], &w->job.dir) || !copy_text(&w->text[1], &w->job.name) ||
        !copy_text(&w->text[2], &w->job.state_json) || !copy_text(&w->text[3], &w->job.tokenizer_path)) {
        for (int i = 0; i < 4; i++) {
            ls_free(w->text[i]);
            w->text[i] = NULL;
        }
        return ls_nomem(job->state_json ? strlen(job->state_json) : 0, "a checkpoint's job");
    }
    pthread_mutex_lock(&w->mutex);
    atomic_store(&w->phase, BUSY);
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    return LS_OK;
}

ls_status ls_ckpt_wait(ls_ckpt_writer *w)
{
    if (atomic_load(&w->phase) == IDLE) return LS_OK;
    pthread_mutex_lock(&w->mutex);
    while (atomic_load(&w->phase) == BUSY) pthread_cond_wait(&w->changed, &w->mutex);
    ls_status st = w->status;
    atomic_store(&w->phase, IDLE);
    if (st != LS_OK) ls_err_adopt(w->words, w->trail);
    pthread_mutex_unlock(&w->mutex);
    return st;
}

bool ls_ckpt_busy(const ls_ckpt_writer *w)
{
    return atomic_load(&w->phase) == BUSY;
}
