/* checkpoint_writer.c - asynchronous checkpoints on a background thread, by one worker or several.
 *
 *   phase   IDLE -> (post) BUSY -> (the thread) DONE -> (wait) IDLE
 *
 * For a single worker the thread does the whole job. Several workers begin it in post and finish it in wait, where they communicate. The
 * thread does not communicate, because messages must be in one order and those of the trainer are in flight. After such a job the
 * thread of rank 0 deletes the replaced folders (tidy); only the next post waits for it.
 *
 * A mutex guards everything except `phase`, which the trainer may read without it. */
#include "ckpt/checkpoint_impl.h"

#include "core/cores.h"
#include "core/log.h"
#include "core/mem.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

enum { IDLE, BUSY, DONE };

struct ls_ckpt_writer {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    atomic_int phase;
    bool quit, tidy;
    ls_lane *lane; /* trace lane of the thread; NULL: no trace */
    ls_comm *comm; /* NULL: single worker */
    ckpt_layout layout;
    ckpt_stage stage;
    ckpt_save save;
    char *name, *state_json; /* copies of the job's, from post to its end */
    ls_status status;
    ls_err_kept error; /* of the thread */
};

static void free_job(ls_ckpt_writer *w)
{
    ls_free(w->name);
    ls_free(w->state_json);
    w->name = w->state_json = NULL;
}

/* Bytes of tensors that this worker writes. */
static int64_t piece_bytes(const ls_ckpt_job *j)
{
    int64_t n = 0;
    for (int i = 0; j->piece && i < j->n_piece; i++) n += j->piece[i].n;
    return n * (int64_t)ls_dtype_nbytes(j->model->compute->ops->wide);
}

static void clean(const ls_ckpt_writer *w)
{
    if (ls_ckpt_clean(w->save.job.dir) != LS_OK) ls_warn("checkpoint", "cannot remove old files: %s", ls_err_words());
}

static ls_status do_job(ls_ckpt_writer *w)
{
    const int64_t traced = ls_span_begin();
    ls_status st = w->comm ? LS_OK : ckpt_save_begin(&w->save, LS_OK);
    if (st == LS_OK) {
        st = ckpt_save_write(&w->save);
        if (!w->comm) st = ckpt_save_finish(&w->save, st);
    }
    if (st == LS_OK && !w->comm) clean(w);
    ls_span_end(traced, (ls_trace_span){.kind = LS_SPAN_CKPT,
                                        .name = "write step",
                                        .index = (int32_t)w->save.job.step + 1,
                                        .bytes = traced ? piece_bytes(&w->save.job) : 0});
    return st;
}

static void *run(void *arg)
{
    ls_ckpt_writer *w = arg;
    ls_cores_roam();
    pthread_mutex_lock(&w->mutex);
    for (;;) {
        while (!w->quit && !w->tidy && atomic_load(&w->phase) != BUSY) pthread_cond_wait(&w->changed, &w->mutex);
        if (!w->tidy && atomic_load(&w->phase) != BUSY) break; /* quit, and nothing is left to do */
        const bool tidy = w->tidy;
        ls_status st = LS_OK;
        ls_trace_enter(w->lane);
        pthread_mutex_unlock(&w->mutex);
        if (tidy) clean(w);
        else st = do_job(w);
        pthread_mutex_lock(&w->mutex);
        if (tidy || !w->comm) free_job(w);
        if (tidy) w->tidy = false;
        else {
            w->status = st;
            ls_err_keep(&w->error);
            atomic_store(&w->phase, DONE);
        }
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

static ls_status start(ls_ckpt_writer *w)
{
    sigset_t all, before; /* the trainer handles signals, not this thread */
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    sigdelset(&all, SIGABRT);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int rc = pthread_create(&w->thread, NULL, run, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc ? ls_fail(LS_E_IO, "cannot start the checkpoint thread: %s", strerror(rc)) : LS_OK;
}

/* The layout, and a table of hashes, for several workers in memory that peers can read. */
static ls_status prepare(ls_ckpt_writer *w, const ls_model *m)
{
    LS_TRY(ckpt_stage_open(&w->stage, m->compute));
    LS_TRY(ckpt_layout_init(&w->layout, m));
    const size_t nbytes = (size_t)ckpt_n_block(&w->layout, true) * sizeof(int64_t);
    w->save.layout = &w->layout;
    w->save.comm = w->comm;
    w->save.stage = &w->stage;
    w->save.block = w->comm ? ls_comm_alloc(w->comm, nbytes) : ls_alloc(nbytes);
    return w->save.block ? LS_OK : ls_nomem(nbytes, "the checksums of checkpoints");
}

static void free_writer(ls_ckpt_writer *w)
{
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
    ckpt_layout_fini(&w->layout);
    ckpt_stage_close(&w->stage);
    if (!w->comm) ls_free(w->save.block);
    ls_free(w);
}

static ls_status create(ls_ckpt_writer **out, const ls_model *m, ls_comm *team)
{
    ls_ckpt_writer *w = ls_alloc(sizeof *w);
    if (!w) return ls_nomem(sizeof *w, "the checkpoint writer");
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->changed, NULL);
    atomic_init(&w->phase, IDLE);
    w->comm = team;
    ls_status st = prepare(w, m);
    if (st == LS_OK) st = start(w);
    if (st == LS_OK) *out = w;
    else free_writer(w);
    return st;
}

ls_status ls_ckpt_writer_create(ls_ckpt_writer **out, const ls_model *m, ls_comm *comm)
{
    ls_ckpt_writer *w = NULL;
    ls_status st = ckpt_agree(ckpt_team(comm), create(&w, m, ckpt_team(comm)), LS_SITE);
    if (st == LS_OK) *out = w;
    else ls_ckpt_writer_destroy(&w);
    return st;
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
    if (w->comm && atomic_load(&w->phase) == DONE) ckpt_save_drop(&w->save);
    free_job(w);
    free_writer(w);
    *out = NULL;
}

ls_status ls_ckpt_post(ls_ckpt_writer *w, const ls_ckpt_job *job)
{
    LS_TRY(ls_ckpt_wait(w));
    const int64_t traced = ls_span_begin();
    pthread_mutex_lock(&w->mutex);
    while (w->tidy) pthread_cond_wait(&w->changed, &w->mutex);
    pthread_mutex_unlock(&w->mutex);
    w->save.job = *job; /* the thread sleeps: phase is IDLE */
    w->save.job.name = w->name = ls_strdup(job->name);
    w->save.job.state_json = w->state_json = ls_strdup(job->state_json ? job->state_json : "{}");
    ls_status st = w->name && w->state_json ? LS_OK : ls_nomem(strlen(job->name), "a checkpoint job");
    ls_debug("checkpoint", "writing %s in the background: %.1f MiB from this worker", job->name,
             (double)piece_bytes(job) / 1048576.0);
    if (st == LS_OK) st = ckpt_stage_mark(&w->stage); /* the thread does not wait for later operations */
    if (w->comm) st = ckpt_save_begin(&w->save, st);
    if (st != LS_OK) {
        free_job(w);
        return st;
    }
    pthread_mutex_lock(&w->mutex);
    atomic_store(&w->phase, BUSY);
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    ls_span_end(traced, (ls_trace_span){.kind = LS_SPAN_CKPT, .name = "post step", .index = (int32_t)job->step + 1});
    return LS_OK;
}

void ls_ckpt_writer_trace(ls_ckpt_writer *w, ls_lane *lane)
{
    pthread_mutex_lock(&w->mutex);
    w->lane = lane;
    pthread_mutex_unlock(&w->mutex);
}

ls_status ls_ckpt_wait(ls_ckpt_writer *w)
{
    if (atomic_load(&w->phase) == IDLE) return LS_OK;
    const int64_t traced = ls_span_begin();
    pthread_mutex_lock(&w->mutex);
    while (atomic_load(&w->phase) == BUSY) pthread_cond_wait(&w->changed, &w->mutex);
    ls_status st = w->status;
    if (st != LS_OK) ls_err_restore(&w->error);
    pthread_mutex_unlock(&w->mutex);
    if (w->comm) st = ckpt_save_finish(&w->save, st);
    pthread_mutex_lock(&w->mutex);
    atomic_store(&w->phase, IDLE);
    w->tidy = w->comm && ckpt_rank(w->comm) == 0; /* also if the last agreement failed, after the rename */
    if (w->tidy) pthread_cond_broadcast(&w->changed);
    else free_job(w); /* for a single worker the thread frees it */
    pthread_mutex_unlock(&w->mutex);
    ls_span_end(traced, (ls_trace_span){.kind = LS_SPAN_CKPT, .name = "finish"});
    return st;
}

ls_status ls_ckpt_save(const ls_ckpt_job *job)
{
    ls_ckpt_writer *w = NULL;
    LS_TRY(ls_ckpt_writer_create(&w, job->model, NULL));
    ls_status st = ls_ckpt_post(w, job);
    if (st == LS_OK) st = ls_ckpt_wait(w);
    ls_ckpt_writer_destroy(&w);
    return st;
}
