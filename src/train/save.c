/* save.c - when a run saves, and what becomes of a save that fails.
 *
 *   directly       post | forward, backward … | wait for the write | update          the writer reads the buffers that the update changes
 *   --save_async   post | forward, backward … | copy what is left  | update | more steps while the copy is written
 *   --audit        hash | post | forward, backward … | wait for the write, or copy | hash, compare | publish | update
 *
 * With --audit a checkpoint, and a copy in memory, keeps its temporary name until the state that it was read from was hashed again: bits that
 * changed meanwhile are never published. Between two updates there is one comparison, whatever is written.
 *
 * A checkpoint of several workers is complete after they met a few times. Before each step they agree anyway whether to stop; with
 * --save_async the same message tells whether a writer is busy, and when none is they meet without waiting. */
#include "train/train_impl.h"

#include "core/clock.h"
#include "core/deadline.h"
#include "core/goodput.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/minmax.h"
#include "core/stop.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define EPOCH "epoch-"

/* A line of rank 0, whatever the run prints its events as. */
static void tell(ls_trainer *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void tell(ls_trainer *t, const char *fmt, ...)
{
    char text[1600];
    va_list ap;
    if (ls_comm_rank(t->comm)) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (train_shows_events(t)) train_event(t, "step %lld  %s\n", (long long)t->state.step, text);
    else ls_warn("checkpoint", "step %lld: %s", (long long)t->state.step, text);
}

static bool has_hosts(const ls_trainer *t)
{
    return ls_comm_where(t->comm).n_host > 1;
}

typedef enum target {
    TO_DISK,
    TO_MEMORY,   /* posted */
    BESIDE_WRITE /* to memory: written when save_to returns, whatever the writer does meanwhile */
} target;

static ls_status save_to(ls_trainer *t, const char *name, target to)
{
    const bool memory = to != TO_DISK;
    ls_str json = {0}, timings = {0}; /* those of rank 0 are kept */
    ls_run_state_write(t, &json);
    ls_run_timings_write(t, &timings);
    if (json.failed || timings.failed) {
        ls_str_fini(&json);
        ls_str_fini(&timings);
        return ls_nomem(4096, "the run's state");
    }
    const ls_ckpt_job job = {.model = t->whole,
                             .piece = t->save,
                             .n_piece = t->n_save,
                             .dir = memory ? t->saving.memory.dir : t->cfg->run_dir,
                             .name = name,
                             .step = t->state.step,
                             .state_json = json.data,
                             .timings_json = timings.data,
                             .tokenizer_path = t->cfg->tokenizer_path,
                             .optimizer = true,
                             .verify = t->cfg->save_verify && !memory,
                             .hold = t->audit != NULL,
                             .keep_last = memory ? 1 : (int)t->cfg->keep_last,
                             .keep_hours = memory ? 0 : t->cfg->keep_hours};
    ls_status st = to == BESIDE_WRITE ? ls_ckpt_write_beside(t->writer, &job) : ls_ckpt_post(t->writer, &job);
    t->saving.held = t->saving.held || (st == LS_OK && t->audit);
    ls_str_fini(&json);
    ls_str_fini(&timings);
    return st;
}

ls_status ls_trainer_save(ls_trainer *t, const char *name)
{
    return save_to(t, name, TO_DISK);
}

/* ---- failures ---- */

/* A failure that costs a checkpoint and not the run. */
static ls_status not_saved(ls_trainer *t, const char *name, int64_t step)
{
    char reason[1024];
    snprintf(reason, sizeof reason, "%s", ls_err_words());
    ls_err_clear();
    tell(t,
         "warning: the checkpoint of step %lld was not saved: %.300s; training goes on, earlier checkpoints are kept",
         (long long)step, reason);
    return ls_observe(t, &(ls_event){.kind = LS_ON_SAVE_FAILED, .text = name, .reason = reason, .at_step = step});
}

/* Collective, and the same on every worker: with --save_failures warn a run goes on after its disk failed. */
static ls_status tolerate(ls_trainer *t, ls_status st)
{
    if (st != LS_E_IO || !(t->cfg->save_warn || t->saving.in_memory)) return st;
    t->saving.step = -1;
    return not_saved(t, t->saving.name, t->saving.posted);
}

/* After a call that may have ended the job of the writer, with its status. */
static ls_status see_end(ls_trainer *t, ls_status st)
{
    ls_saving *s = &t->saving;
    if (!s->pending || ls_ckpt_in_flight(t->writer)) return st;
    s->pending = false;
    if (st != LS_OK || s->in_memory) return st;
    return ls_observe(t, &(ls_event){.kind = LS_ON_SAVED, .text = s->name, .at_step = s->posted});
}

/* Until the job of the writer is over. Of one that is held the state has been read, and is compared. */
static ls_status wait_for_writer(ls_trainer *t)
{
    LS_TRY(see_end(t, ls_ckpt_wait(t->writer)));
    if (t->saving.held) LS_TRY(train_own_failure(t, ls_audit_after_save(t->audit)));
    return see_end(t, ls_ckpt_wait(t->writer));
}

/* Until the last one is in place and was read back. */
static ls_status settle(ls_trainer *t)
{
    LS_TRY(wait_for_writer(t));
    return ls_ckpt_settle(t->writer);
}

/* On rank 0: a checkpoint that was read back and is damaged. */
static ls_status report_bad(ls_trainer *t)
{
    ls_ckpt_bad bad;
    if (!ls_ckpt_take_bad(t->writer, &bad)) return LS_OK;
    tell(t, "warning: %s is damaged on the disk and was renamed to damaged-%s: %.300s; earlier checkpoints are kept",
         bad.name, bad.name, bad.reason);
    return ls_observe(
        t, &(ls_event){.kind = LS_ON_SAVE_FAILED, .text = bad.name, .reason = bad.reason, .at_step = bad.step});
}

/* ---- posting ---- */

/* must: a failure ends the run. */
static ls_status post(ls_trainer *t, const char *name, bool at_epoch, bool must)
{
    ls_event e = {.kind = LS_ON_CHECKPOINT_BEGIN, .text = name, .at_epoch = at_epoch};
    if (t->audit) LS_TRY(train_own_failure(t, ls_audit_before_save(t->audit)));
    LS_TRY(ls_observe(t, &e));
    LS_TRY(tolerate(t, wait_for_writer(t)));
    t->saving.posted = t->saving.step = t->state.step;
    t->saving.in_memory = false;
    snprintf(t->saving.name, sizeof t->saving.name, "%s", name);
    t->saving.began = ls_now();
    const ls_status st = ls_trainer_save(t, name);
    t->saving.stall = ls_now() - t->saving.began;
    t->saving.pending = st == LS_OK;
    if (st != LS_OK && must) return st;
    LS_TRY(tolerate(t, st));
    e.kind = LS_ON_CHECKPOINT_END;
    return st == LS_OK ? ls_observe(t, &e) : LS_OK;
}

static ls_status save_epoch(ls_trainer *t, bool must)
{
    char name[32];
    snprintf(name, sizeof name, EPOCH "%lld", (long long)t->state.epoch);
    return post(t, name, true, must);
}

ls_status train_save_epoch(ls_trainer *t)
{
    return save_epoch(t, false);
}

static ls_status save_step(ls_trainer *t, bool must)
{
    char name[32];
    snprintf(name, sizeof name, "step-%lld", (long long)t->state.step);
    return post(t, name, false, must);
}

/* ---- --save_every auto ---- */

enum { AUTO_FIRST = 10 }; /* steps of this process before the first save, so that their time is known */

/* Rank 0 measured, all use its interval. */
static ls_status choose_interval(ls_trainer *t)
{
    ls_saving *s = &t->saving;
    const ls_comm_place where = ls_comm_where(t->comm);
    char write[64] = "";
    s->cost = s->stall;
    const ls_failures f = {.mtbf = t->cfg->mtbf * 3600,
                           .hosts = where.n_host > 0 ? where.n_host : 1,
                           .checkpoint = fmax(s->cost, 1e-3),
                           .restart = 10,
                           .step = fmax(t->pace.seconds, 1e-6)};
    s->every = ls_goodput_best(&f).steps;
    if (t->cfg->save_async) { /* the next one is due after the step in which the writer is free */
        s->every = LS_MAX(s->every, LS_MAX((int64_t)ceil(s->write / f.step), s->write_steps) + 1);
        snprintf(write, sizeof write, " and %.3g s to write", s->write);
    }
    if (ls_comm_size(t->comm) > 1) LS_TRY(ls_broadcast(t->comm, (ls_view){&s->every, 1, LS_I64}, 0, LS_SITE, NULL));
    tell(
        t,
        "saving every %lld step%s: a save takes %.3g s of training%s, a step %.3g s, and a host fails every %g hours (--mtbf)",
        (long long)s->every, s->every == 1 ? "" : "s", s->cost, write, t->pace.seconds, t->cfg->mtbf);
    return ls_observe(t, &(ls_event){.kind = LS_ON_SAVE_EVERY});
}

/* The writer is free: the last checkpoint on the disk was read back, too. */
static void measure_write(ls_trainer *t)
{
    ls_saving *s = &t->saving;
    if (s->write > 0 || s->began <= 0) return;
    s->write = ls_now() - s->began;
    s->write_steps = t->state.step - s->posted;
}

/* After the first save: the step that waited for it is over; with --save_async, the writer is free again. */
static bool is_measured(const ls_trainer *t)
{
    const ls_saving *s = &t->saving;
    return s->first && (t->cfg->save_async ? s->write > 0 : t->state.step > s->first);
}

/* Whether a checkpoint of this step is due. */
static ls_status is_due(ls_trainer *t, bool *due)
{
    ls_saving *s = &t->saving;
    if (t->cfg->save_every >= 0) s->every = t->cfg->save_every;
    else if (!s->every && is_measured(t)) LS_TRY(choose_interval(t));
    if (s->every) *due = t->state.step % s->every == 0;
    else *due = t->cfg->save_every < 0 && !s->first && t->state.step >= t->resumed_from + AUTO_FIRST;
    if (*due && !s->first) s->first = t->state.step;
    return LS_OK;
}

/* ---- --save_memory_every ---- */

ls_status train_save_begin(ls_trainer *t)
{
    const ls_train_config *c = t->cfg;
    ls_ckpt_memory *m = &t->saving.memory;
    /* what an earlier run in this folder left; a resumed run has looked */
    if (!c->resume) LS_TRY(ls_ckpt_memory_look(m, c->run_dir, t->comm));
    const int64_t usable = m->step <= t->state.step ? m->step : -1;
    const bool kept = c->resume && m->any;
    if (!kept) train_save_forget(t);
    ls_ckpt_memory_sweep(m);
    if (c->save_memory_every) LS_TRY(ls_ckpt_memory_open(m, c->run_dir, ls_ckpt_writer_nbytes(t->writer), t->comm));
    /* no host has it, or it cannot be used: no supervisor expects it any more; after a failed start the next attempt may use it */
    if (kept && m->first && ls_ckpt_memory_noted(c->run_dir) > usable) ls_ckpt_memory_note(m, c->run_dir, usable);
    return LS_OK;
}

void train_save_forget(ls_trainer *t)
{
    ls_ckpt_memory_drop(&t->saving.memory, t->cfg->run_dir);
}

/* Whether the writer works for the disk; the same on every worker. */
static bool writes_to_disk(const ls_trainer *t)
{
    return !t->saving.in_memory && (ls_ckpt_in_flight(t->writer) || (t->cfg->save_async && t->saving.busy));
}

static ls_status publish_beside(ls_trainer *t)
{
    char name[32];
    if (!t->saving.beside) return LS_OK;
    t->saving.beside = false;
    const ls_status st = ls_ckpt_publish_beside(t->writer);
    if (st == LS_OK && has_hosts(t) && ls_comm_rank(t->comm) == 0)
        ls_ckpt_memory_note(&t->saving.memory, t->cfg->run_dir, t->state.step);
    snprintf(name, sizeof name, "step-%lld", (long long)t->state.step);
    return st == LS_E_IO ? not_saved(t, name, t->state.step) : st;
}

/* Several hosts write their copies at once, and so do workers whose writer works for the disk: a copy does not wait for a disk. */
static ls_status save_beside(ls_trainer *t, const char *name)
{
    const ls_status st = save_to(t, name, BESIDE_WRITE);
    t->saving.beside = st == LS_OK;
    if (st == LS_OK && !t->audit) return publish_beside(t);
    return st == LS_E_IO ? not_saved(t, name, t->state.step) : st;
}

/* A copy for restarts, which replaces the last one: no event of the run, and no reason to stop it. It is complete before the next update. */
static ls_status save_memory(ls_trainer *t)
{
    const int64_t k = t->cfg->save_memory_every;
    ls_saving *s = &t->saving;
    char name[32];
    if (!k || t->state.step % k) return LS_OK;
    /* a run that is restarted from a later step would not write the checkpoint of the epoch again */
    if (s->pending && !strncmp(s->name, EPOCH, sizeof EPOCH - 1)) return LS_OK;
    if (t->audit && s->step != t->state.step) LS_TRY(train_own_failure(t, ls_audit_before_save(t->audit)));
    snprintf(name, sizeof name, "step-%lld", (long long)t->state.step);
    if (has_hosts(t) || writes_to_disk(t)) return save_beside(t, name);
    LS_TRY(tolerate(t, wait_for_writer(t)));
    if (!s->in_memory) measure_write(t);
    s->posted = t->state.step;
    s->in_memory = true;
    memcpy(s->name, name, sizeof name);
    const ls_status st = save_to(t, name, TO_MEMORY);
    s->pending = st == LS_OK;
    return tolerate(t, st);
}

/* A line, once. */
static void tell_left_out(ls_trainer *t)
{
    if (t->saving.left_out) return;
    t->saving.left_out = true;
    tell(t, "no checkpoint: %s is still being written; saves that are due meanwhile are left out%s", t->saving.name,
         t->cfg->save_every > 0 ? "; a larger --save_every gives it the time" : "");
}

ls_status train_save_due(ls_trainer *t)
{
    bool due;
    LS_TRY(report_bad(t));
    LS_TRY(is_due(t, &due));
    /* a copy in memory is short: it is waited for */
    if (due && t->cfg->save_async && writes_to_disk(t)) tell_left_out(t);
    else if (due) LS_TRY(save_step(t, false));
    return save_memory(t);
}

ls_status train_save_stop(ls_trainer *t)
{
    if (t->saving.step == t->state.step && !strncmp(t->saving.name, "step-", 5)) { /* it was saved already */
        const ls_status st = train_save_end(t);
        if (st != LS_E_IO) return st;
    }
    LS_TRY(report_bad(t));
    LS_TRY(save_step(t, true));
    return train_save_end(t);
}

ls_status train_save_end(ls_trainer *t)
{
    const ls_status st = settle(t);
    ls_err_kept words;
    ls_err_keep(&words);
    (void)report_bad(t);
    ls_err_restore(&words);
    return st;
}

enum { LAST_TRIES = 5 };

/* Collective: waits before the last checkpoint is tried again, unless a worker was asked to stop. */
static ls_status wait_to_try(ls_trainer *t, double seconds, bool *stop)
{
    enum { TRY, WAIT, STOP };
    const double end = ls_now() + seconds;
    int all;
    do {
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        ls_deadline_tick();
        all = ls_stop_requested() ? STOP : ls_now() < end ? WAIT : TRY;
        if (ls_comm_size(t->comm) > 1) LS_TRY(ls_agree(t->comm, all, LS_SITE, &all));
    } while (all == WAIT);
    *stop = all == STOP;
    return LS_OK;
}

/* All the training is in memory only: a disk that fails gets some time before it is lost. */
ls_status train_save_last(ls_trainer *t)
{
    double wait = 0.5;
    bool stop;
    for (int left = LAST_TRIES;; wait *= 2) {
        ls_status st = save_epoch(t, true);
        if (st == LS_OK) st = train_save_end(t);
        if (st != LS_E_IO || --left == 0) return st;
        char reason[1024];
        ls_err_kept why;
        ls_err_keep(&why);
        snprintf(reason, sizeof reason, "%s", ls_err_words());
        tell(t, "warning: the last checkpoint was not saved: %.300s; trying again in %g s", reason, wait);
        LS_TRY(ls_observe(
            t, &(ls_event){
                   .kind = LS_ON_SAVE_FAILED, .text = t->saving.name, .reason = reason, .at_step = t->state.step}));
        LS_TRY(wait_to_try(t, wait, &stop));
        ls_err_restore(&why);
        if (stop) return st;
    }
}

void train_save_finish(ls_trainer *t)
{
    ls_err_kept why;
    ls_err_keep(&why);
    (void)tolerate(t, see_end(t, ls_ckpt_wait(t->writer)));
    ls_err_restore(&why);
}

/* ---- during a step ---- */

int train_save_busy(const ls_trainer *t)
{
    return t->cfg->save_async && ls_ckpt_busy(t->writer);
}

ls_status train_save_advance(ls_trainer *t, bool busy)
{
    ls_saving *s = &t->saving;
    s->busy = busy;
    if (busy) return LS_OK;
    if (!s->in_memory && !ls_ckpt_in_flight(t->writer)) measure_write(t);
    return tolerate(t, see_end(t, ls_ckpt_advance(t->writer)));
}

ls_status train_save_release(ls_trainer *t)
{
    if (!ls_ckpt_in_flight(t->writer)) return LS_OK;
    const double from = ls_now();
    const ls_status st = t->saving.in_memory ? ls_ckpt_wait(t->writer) : ls_ckpt_wait_buffers(t->writer);
    if (t->saving.posted == t->state.step && !t->saving.in_memory) t->saving.stall += ls_now() - from;
    return tolerate(t, see_end(t, st));
}

ls_status train_save_confirm(ls_trainer *t)
{
    if (!t->saving.held) return LS_OK;
    t->saving.held = false;
    ls_ckpt_confirm(t->writer);
    return publish_beside(t);
}
