/* checkpoint_writer.c - asynchronous checkpoints on a background thread, by one worker or several.
 *
 *   phase   IDLE -> (post) [COPYING ->] WORKING -> (the thread) READY -> (wait, or advance) WORKING … or IDLE
 *   a job that is held, before its last step:   … -> HELD -> (confirm) WORKING …
 *
 * For a single worker the thread does the whole job. Several workers begin it in post, and meet on the trainer's thread between the
 * steps of the job (ckpt_work), because messages must be in one order and those of the trainer are in flight. With room for a copy a trainer that
 * looks at each of its steps never waits for the disk: the thread begins to write from the buffers, and before the trainer changes them it copies
 * what is not written yet to the room. Device memory is copied first, by the thread (COPYING): that takes nothing from training.
 *
 * After a job the thread of rank 0 settles it: reads the folder back, removes what is replaced. Only the next post waits for that.
 *
 * A mutex guards everything except `phase`, `settling` and `news`, which the trainer may read without it. */
#include "ckpt/checkpoint_impl.h"

#include "core/stop.h"
#include "core/cores.h"
#include "core/log.h"
#include "core/mem.h"

#include <pthread.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define SLICE 200000000 /* nanoseconds */

enum { IDLE, COPYING, WORKING, READY, HELD };

struct ls_ckpt_writer {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    atomic_int phase;
    atomic_bool settling; /* the last job, by this worker's thread */
    atomic_bool hurry;    /* it need not be read back to its end   */
    atomic_bool news;     /* `bad` was not taken yet */
    bool quit, published; /* published: the folder of the last job is in place */
    bool held;            /* the job is not published before it is confirmed */
    ckpt_work work;       /* what the thread does, or did last */
    char *room;           /* for a copy of what this worker writes; NULL: none */
    int64_t n_room;
    bool released;           /* the buffers of the job are not read any more */
    pthread_mutex_t reading; /* the buffers, or the copy */
    ls_ckpt_bad bad;
    ls_status verified; /* of the last job */
    ls_lane *lane;      /* trace lane of the thread; NULL: no trace */
    ls_comm *comm;      /* NULL: single worker */
    ckpt_layout layout;
    ckpt_stage stage;
    ckpt_save save;
    ckpt_hosts hosts;                       /* several workers: for checkpoints beside the job */
    ls_ckpt_writer *beside;                 /* a single one; NULL: not used yet                */
    char *name, *state_json, *timings_json; /* copies of the job's, from post to its end */
    ls_status status;
    ls_err_kept error; /* of the thread */
};

static void free_job(ls_ckpt_writer *w)
{
    ls_free(w->name);
    ls_free(w->state_json);
    ls_free(w->timings_json);
    w->name = w->state_json = w->timings_json = NULL;
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

static bool running(const ls_ckpt_writer *w)
{
    const int phase = atomic_load(&w->phase);
    return phase == COPYING || phase == WORKING;
}

static bool settling(const ls_ckpt_writer *w)
{
    return atomic_load(&w->settling);
}

static void to_phase(ls_ckpt_writer *w, int phase)
{
    pthread_mutex_lock(&w->mutex);
    atomic_store(&w->phase, phase);
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
}

static bool copies_first(const ls_ckpt_writer *w)
{
    return w->room && w->stage.device;
}

static bool is_held(ls_ckpt_writer *w)
{
    pthread_mutex_lock(&w->mutex);
    const bool held = w->held;
    pthread_mutex_unlock(&w->mutex);
    return held;
}

/* One step of the job; of a single worker all of them, as far as it is not held. */
static ls_status do_work(ls_ckpt_writer *w)
{
    ckpt_save *s = &w->save;
    ls_status st = LS_OK;
    if (atomic_load(&w->phase) == COPYING) {
        st = ckpt_save_copy(s, w->room, w->n_room);
        to_phase(w, WORKING);
    }
    if (w->comm) return st == LS_OK ? ckpt_save_work(s, w->work) : st;
    for (;; w->work++) {
        LS_TRY(ckpt_save_meet(s, w->work, st == LS_OK ? ckpt_save_work(s, w->work) : st));
        if (w->work == CKPT_PUBLISH || (w->work == CKPT_HASH && is_held(w))) return LS_OK;
    }
}

static ls_status do_job(ls_ckpt_writer *w)
{
    const int64_t traced = ls_span_begin();
    const ls_status st = do_work(w);
    ls_span_end(traced, (ls_trace_span){.kind = LS_SPAN_CKPT,
                                        .name = "write step",
                                        .index = (int32_t)w->save.job.step + 1,
                                        .bytes = traced ? piece_bytes(&w->save.job) : 0});
    return st;
}

static void note_bad(ls_ckpt_writer *w)
{
    const ls_ckpt_job *j = &w->save.job;
    pthread_mutex_lock(&w->mutex);
    w->bad.step = j->step;
    snprintf(w->bad.name, sizeof w->bad.name, "%s", j->name);
    snprintf(w->bad.reason, sizeof w->bad.reason, "%s", ls_err_words());
    atomic_store(&w->news, true);
    pthread_mutex_unlock(&w->mutex);
}

/* Older checkpoints are removed only when the new one is known to be whole. */
static void settle(ls_ckpt_writer *w)
{
    const ls_ckpt_job *j = &w->save.job;
    const int64_t traced = ls_span_begin();
    ls_status st = LS_OK;
    if (w->published && j->verify) st = ckpt_sums_read(ls_path_of(j->dir, j->name).text, true, &w->hurry);
    if (st == LS_E_FORMAT || st == LS_E_IO) {
        ckpt_set_bad(j->dir, j->name, w->save.tmp);
        note_bad(w);
    } else if (st != LS_OK) ls_warn("checkpoint", "%s/%s was not verified: %s", j->dir, j->name, ls_err_words());
    else if (w->published) ckpt_prune(j->dir, j->name, j->step, j->keep_last, j->keep_hours);
    w->verified = st;
    clean(w);
    ls_span_end(traced, (ls_trace_span){.kind = LS_SPAN_CKPT, .name = "verify step", .index = (int32_t)j->step + 1});
}

/* With the mutex, after a step of the job that is not the last one. */
static void next_work(ls_ckpt_writer *w)
{
    w->work++;
    atomic_store(&w->phase, w->held && w->work == CKPT_PUBLISH ? HELD : WORKING);
}

/* After the work of the thread; with the mutex. A single worker is done, unless the job was held. */
static void end_work(ls_ckpt_writer *w, ls_status st)
{
    if (!w->comm && st == LS_OK && w->work < CKPT_PUBLISH) {
        next_work(w);
        return;
    }
    w->status = st;
    ls_err_keep(&w->error);
    atomic_store(&w->phase, READY);
    if (w->comm) return;
    w->published = st == LS_OK;
    atomic_store(&w->settling, w->published);
    if (!w->published) free_job(w);
}

static void *run(void *arg)
{
    ls_ckpt_writer *w = arg;
    ls_cores_roam();
    pthread_mutex_lock(&w->mutex);
    for (;;) {
        while (!w->quit && !w->settling && !running(w)) pthread_cond_wait(&w->changed, &w->mutex);
        if (!w->settling && !running(w)) break; /* quit, and nothing is left to do */
        const bool settles = w->settling;
        ls_status st = LS_OK;
        ls_trace_enter(w->lane);
        pthread_mutex_unlock(&w->mutex);
        if (settles) settle(w);
        else st = do_job(w);
        pthread_mutex_lock(&w->mutex);
        if (settles) {
            free_job(w);
            atomic_store(&w->settling, false);
        } else end_work(w, st);
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
    w->stage.reading = &w->reading;
    w->save.block = w->comm ? ls_comm_alloc(w->comm, nbytes) : ls_alloc(nbytes);
    return w->save.block ? LS_OK : ls_nomem(nbytes, "the checksums of checkpoints");
}

static void free_writer(ls_ckpt_writer *w)
{
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
    pthread_mutex_destroy(&w->reading);
    ckpt_layout_fini(&w->layout);
    ckpt_hosts_fini(&w->hosts);
    ckpt_stage_close(&w->stage);
    if (!w->comm) ls_free(w->save.block);
    ls_free(w);
}

static ls_status create(ls_ckpt_writer **out, const ls_model *m, ls_comm *team)
{
    ls_ckpt_writer *w = ls_alloc(sizeof *w);
    if (!w) return ls_nomem(sizeof *w, "the checkpoint writer");
    pthread_mutex_init(&w->mutex, NULL);
    pthread_mutex_init(&w->reading, NULL);
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
    LS_ASSERT(w || st != LS_OK);
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
    const int phase = atomic_load(&w->phase);
    if (phase == HELD || (w->comm && phase == READY)) ckpt_save_drop(&w->save);
    ls_ckpt_writer_destroy(&w->beside);
    free_job(w);
    free_writer(w);
    *out = NULL;
}

void ls_ckpt_writer_room(ls_ckpt_writer *w, void *room, int64_t nbytes)
{
    w->room = room;
    w->n_room = nbytes;
}

int64_t ls_ckpt_writer_nbytes(const ls_ckpt_writer *w)
{
    int64_t n = 0;
    for (int f = 0; f < CKPT_N_FILE; f++) n += w->layout.file[f].nbytes;
    return n;
}

/* Until no worker's thread has such work. A disk may be slow, and the others do not know how long: they meet several times per second, so that no
 * time limit of a collective expires. */
static ls_status wait_while(ls_ckpt_writer *w, bool (*has_work)(const ls_ckpt_writer *), bool short_of_time)
{
    int busy;
    do {
        if (short_of_time && ls_stop_requested()) atomic_store(&w->hurry, true);
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        if ((until.tv_nsec += SLICE) >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
        pthread_mutex_lock(&w->mutex);
        while (has_work(w) && pthread_cond_timedwait(&w->changed, &w->mutex, &until) != ETIMEDOUT) continue;
        busy = has_work(w);
        pthread_mutex_unlock(&w->mutex);
        if (w->comm) LS_TRY(ls_agree(w->comm, busy, LS_SITE, &busy));
    } while (busy);
    return LS_OK;
}

static ls_status wait_settled(ls_ckpt_writer *w, bool short_of_time)
{
    LS_TRY(wait_while(w, settling, short_of_time));
    atomic_store(&w->hurry, false);
    return LS_OK;
}

/* What follows the work of the thread, which is READY. Several workers meet, on the trainer's thread; the next step of the job is the thread's. */
static ls_status go_on(ls_ckpt_writer *w)
{
    ls_status st = w->status;
    if (st != LS_OK) ls_err_restore(&w->error);
    if (w->comm) st = ckpt_save_meet(&w->save, w->work, st);
    const bool over = st != LS_OK || w->work == CKPT_PUBLISH;
    pthread_mutex_lock(&w->mutex);
    if (over) atomic_store(&w->phase, IDLE);
    else next_work(w);
    if (w->comm && over) {
        w->published = st == LS_OK;
        /* also if the last agreement failed, after the rename */
        atomic_store(&w->settling, ckpt_rank(w->comm) == 0 && w->work == CKPT_PUBLISH);
        if (!w->settling) free_job(w); /* else the thread frees it, as for a single worker */
    }
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    return st;
}

ls_status ls_ckpt_post(ls_ckpt_writer *w, const ls_ckpt_job *job)
{
    LS_TRY(ls_ckpt_wait(w));
    if (ls_ckpt_in_flight(w)) return ls_fail(LS_E_INTERNAL, "the last checkpoint was not confirmed");
    const int64_t traced = ls_span_begin();
    LS_TRY(wait_settled(w, true)); /* after a signal the state of the last step comes first */
    w->save.job = *job;            /* the thread sleeps: phase is IDLE */
    w->save.job.name = w->name = ls_strdup(job->name);
    w->save.job.state_json = w->state_json = ls_strdup(job->state_json ? job->state_json : "{}");
    w->save.job.timings_json = w->timings_json = job->timings_json ? ls_strdup(job->timings_json) : NULL;
    w->save.background = w->room != NULL;
    w->published = w->released = false;
    w->held = job->hold;
    w->verified = LS_OK;
    ls_status st = w->name && w->state_json && !job->timings_json == !w->timings_json
                       ? LS_OK
                       : ls_nomem(strlen(job->name), "a checkpoint job");
    ls_debug("checkpoint", "writing %s in the background: %.1f MiB from this worker", job->name,
             (double)piece_bytes(job) / 1048576.0);
    if (st == LS_OK) st = ckpt_stage_mark(&w->stage); /* the thread does not wait for later operations */
    st = ckpt_save_begin(&w->save, st, false);
    if (st != LS_OK) {
        free_job(w);
        return st;
    }
    w->work = CKPT_OPEN;
    to_phase(w, copies_first(w) ? COPYING : WORKING);
    if (w->comm && !w->room) { /* the others write as soon as the folder exists */
        st = wait_while(w, running, false);
        if (st == LS_OK) st = go_on(w);
    }
    ls_span_end(traced, (ls_trace_span){.kind = LS_SPAN_CKPT, .name = "post step", .index = (int32_t)job->step + 1});
    return st;
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
    ls_status st = LS_OK;
    atomic_store(&w->save.late, true);
    while (st == LS_OK && atomic_load(&w->phase) != IDLE && atomic_load(&w->phase) != HELD) {
        st = wait_while(w, running, false);
        if (st == LS_OK && atomic_load(&w->phase) == READY) st = go_on(w); /* else a single worker's is held */
    }
    ls_span_end(traced, (ls_trace_span){.kind = LS_SPAN_CKPT, .name = "finish"});
    return st;
}

ls_status ls_ckpt_wait_buffers(ls_ckpt_writer *w)
{
    if (!w->room) return ls_ckpt_wait(w);
    if (w->released || atomic_load(&w->phase) == IDLE) return LS_OK;
    const int64_t traced = ls_span_begin();
    ls_status st = LS_OK;
    if (copies_first(w)) {
        pthread_mutex_lock(&w->mutex);
        while (atomic_load(&w->phase) == COPYING) pthread_cond_wait(&w->changed, &w->mutex);
        pthread_mutex_unlock(&w->mutex);
    } else st = ckpt_save_copy(&w->save, w->room, w->n_room);
    w->released = true;
    atomic_store(&w->save.late, true);
    ls_span_end(traced, (ls_trace_span){.kind = LS_SPAN_CKPT, .name = "copy"});
    return st;
}

void ls_ckpt_confirm(ls_ckpt_writer *w)
{
    pthread_mutex_lock(&w->mutex);
    w->held = false;
    if (atomic_load(&w->phase) == HELD) atomic_store(&w->phase, WORKING);
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
}

bool ls_ckpt_in_flight(const ls_ckpt_writer *w)
{
    return atomic_load(&w->phase) != IDLE;
}

bool ls_ckpt_busy(const ls_ckpt_writer *w)
{
    return running(w) || settling(w);
}

ls_status ls_ckpt_advance(ls_ckpt_writer *w)
{
    return atomic_load(&w->phase) == READY ? go_on(w) : LS_OK;
}

bool ls_ckpt_take_bad(ls_ckpt_writer *w, ls_ckpt_bad *bad)
{
    if (!atomic_load(&w->news)) return false;
    pthread_mutex_lock(&w->mutex);
    *bad = w->bad;
    atomic_store(&w->news, false);
    pthread_mutex_unlock(&w->mutex);
    return true;
}

ls_status ls_ckpt_settle(ls_ckpt_writer *w)
{
    LS_TRY(ls_ckpt_wait(w));
    LS_TRY(wait_settled(w, false));
    ls_status st = LS_OK;
    if (w->verified == LS_E_FORMAT || w->verified == LS_E_IO)
        st = ls_fail(LS_E_IO, "%s was damaged while it was written: %s", w->bad.name, w->bad.reason);
    return ckpt_agree(w->comm, st, LS_SITE);
}

ls_status ls_ckpt_write_beside(ls_ckpt_writer *w, const ls_ckpt_job *job)
{
    ls_ckpt_job held = *job;
    if (w->comm) return ckpt_hosts_write(&w->hosts, &w->layout, w->comm, job);
    if (!w->beside) LS_TRY(ls_ckpt_writer_create(&w->beside, job->model, NULL));
    held.hold = true;
    LS_TRY(ls_ckpt_post(w->beside, &held));
    return ls_ckpt_wait(w->beside);
}

ls_status ls_ckpt_publish_beside(ls_ckpt_writer *w)
{
    if (w->comm) return ckpt_hosts_publish(&w->hosts);
    ls_ckpt_confirm(w->beside);
    return ls_ckpt_settle(w->beside);
}

ls_status ls_ckpt_save(const ls_ckpt_job *job)
{
    ls_ckpt_writer *w = NULL;
    LS_TRY(ls_ckpt_writer_create(&w, job->model, NULL));
    ls_status st = ls_ckpt_post(w, job);
    if (st == LS_OK) st = ls_ckpt_settle(w);
    ls_ckpt_writer_destroy(&w);
    return st;
}
