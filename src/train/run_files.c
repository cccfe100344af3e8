/* run_files.c - the files of a run at its begin and at its end.
 *
 *   begin   files of an earlier run move away; options.json is written; metrics.jsonl opens
 *   end     pipeline.json → launcher_metadata.json → training_metrics.json → RUN_COMPLETE.txt
 *
 * Before step 1 of a run, checkpoints, metrics and NCCL's evidence in its folder are moved to earlier-<k>: a later --resume uses only the
 * checkpoints of the run that was started last, and none is lost. A run that is resumed without a checkpoint begins at step 1, too.
 * events.jsonl is copied there instead: supervisors and `lockstep serve` read it while it grows. */
#include "train/pipe_report.h"
#include "train/train_impl.h"

#include "config/run_options.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/lock.h"
#include "core/mem.h"
#include "run/jsonl.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

int64_t train_peak_rss(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (int64_t)u.ru_maxrss * 1024;
}

/* The lines of the last run: to `where`; NULL: they are removed. A start of an older version has no attempt, so it may be a restart: what is before it is copied, too. */
static ls_status take_events(const char *run_dir, const char *where)
{
    char from[PATH_MAX], to[PATH_MAX];
    ls_jsonl l;
    ls_run_event e;
    size_t begin = 0;
    LS_TRY(ls_path_in(from, run_dir, "events.jsonl"));
    LS_TRY(ls_path_in(to, where ? where : run_dir, "events.jsonl"));
    if (!ls_fs_is_file(from)) return LS_OK;
    LS_TRY(ls_jsonl_open(&l, from, LS_JSONL_ALL));
    while (ls_jsonl_next(&l))
        if (l.whole && ls_run_event_read(l.row, &e) && e.kind == LS_EV_START && !e.step && e.attempt == 1)
            begin = l.begin;
    const ls_status st = where ? ls_fs_write(to, l.text + begin, l.n - begin) : ls_fs_write(to, l.text, begin);
    ls_jsonl_fini(&l);
    return st;
}

ls_status ls_trainer_discard(const char *run_dir)
{
    static const char *const name[] = {"metrics.jsonl", "ranks.jsonl", LS_RUN_OPTIONS, LS_RUN_DEEPSPEED, "nccl"};
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++) {
        LS_TRY(ls_path_in(path, run_dir, "%s", name[i]));
        LS_TRY(ls_fs_remove_tree(path));
    }
    return take_events(run_dir, NULL);
}

/* The metrics of an earlier run that has done a step, with the files that describe it. where: its folder earlier-<k>; "": none yet. */
static ls_status set_metrics_aside(const char *run_dir, char where[PATH_MAX])
{
    static const char *const file[] = {"metrics.jsonl",          "training_metrics.json", "RUN_COMPLETE.txt",
                                       "launcher_metadata.json", LS_RUN_OPTIONS,          LS_RUN_DEEPSPEED};
    char from[PATH_MAX], to[PATH_MAX];
    int64_t nbytes = 0;
    LS_TRY(ls_path_in(from, run_dir, "%s", file[0]));
    if (!ls_fs_is_file(from)) return LS_OK;
    LS_TRY(ls_fs_size(from, &nbytes));
    if (!nbytes) return LS_OK;
    if (!*where) LS_TRY(ls_fs_mkdir_next(run_dir, "earlier-", where));
    LS_TRY(take_events(run_dir, where)); /* first: it is lost to the earlier run if the process dies after the others */
    for (size_t i = 0; i < sizeof file / sizeof file[0]; i++) {
        LS_TRY(ls_path_in(from, run_dir, "%s", file[i]));
        LS_TRY(ls_path_in(to, where, "%s", file[i]));
        if (ls_fs_is_file(from)) LS_TRY(ls_fs_rename(from, to));
    }
    return LS_OK;
}

static ls_status set_earlier_aside(ls_trainer *t)
{
    const char *run_dir = t->cfg->run_dir;
    char where[PATH_MAX] = "", upto[40] = "";
    int64_t step = -1;
    if (!t->cfg->resume) LS_TRY(ls_ckpt_set_aside(run_dir, where, &step));
    const bool checkpoints = *where;
    if (!t->state.step && !t->cfg->restart) LS_TRY(set_metrics_aside(run_dir, where));
    const bool metrics = *where && !checkpoints;
    ls_status st = ls_nccl_proof_set_aside(t->proof, run_dir, t->cfg->resume, where);
    if (step >= 0) snprintf(upto, sizeof upto, " (up to step %lld)", (long long)step);
    if (checkpoints)
        train_tell(t, "%.400s: moved the checkpoints of an earlier run%s to %.400s; use --resume to continue a run\n",
                   run_dir, upto, where);
    else if (metrics) train_tell(t, "%.400s: moved the metrics of an earlier run to %.400s\n", run_dir, where);
    else if (*where) train_tell(t, "%.400s: moved the NCCL files of an earlier run to %.400s\n", run_dir, where);
    return st;
}

static ls_status write_options(const ls_train_config *c)
{
    char path[PATH_MAX];
    if (c->options.failed) return ls_nomem(c->options.len, LS_RUN_OPTIONS);
    if (c->deepspeed_text.len) {
        LS_TRY(ls_path_in(path, c->run_dir, LS_RUN_DEEPSPEED));
        LS_TRY(ls_fs_write(path, c->deepspeed_text.data, c->deepspeed_text.len));
    }
    LS_TRY(ls_path_in(path, c->run_dir, LS_RUN_OPTIONS));
    return ls_fs_write(path, c->options.data, c->options.len);
}

/* A run that was killed may need a moment to end. */
ls_status train_lock_folder(ls_trainer *t)
{
    char path[PATH_MAX];
    if (t->cfg->lock_held || *t->lock.path) return LS_OK;
    LS_TRY(ls_path_in(path, t->cfg->run_dir, LS_RUN_LOCK));
    return ls_lock_take(&t->lock, path, LS_RUN_LOCK_TIME, LS_RUN_LOCK_ADVICE);
}

/* Rank 0's files first: no worker writes under a name that rank 0 is about to move. */
ls_status train_begin_files(ls_trainer *t)
{
    ls_status st = LS_OK;
    if (ls_comm_rank(t->comm) == 0) {
        LS_TRY_GOTO(st, done, ls_fs_mkdirs(t->cfg->run_dir));
        LS_TRY_GOTO(st, done, train_lock_folder(t));
        LS_TRY_GOTO(st, done, set_earlier_aside(t));
        LS_TRY_GOTO(st, done, ls_artifacts_begin(t->cfg->run_dir));
        LS_TRY_GOTO(st, done, write_options(t->cfg));
        LS_TRY_GOTO(st, done, ls_metrics_log_open(&t->log, t->cfg->run_dir, t->state.step));
    }
done:
    if (ls_comm_size(t->comm) > 1) st = ls_comm_agree(t->comm, st, LS_SITE);
    if (st == LS_OK) ls_nccl_proof_started(t->proof);
    return st;
}

/* Every worker gets the facts of all; rank 0 writes them. */
static ls_status gather_facts(ls_trainer *t, ls_worker_facts **out)
{
    enum { N = sizeof(ls_worker_facts) / sizeof(double) };
    const int W = ls_comm_size(t->comm);
    ls_worker_facts mine = {.plan_bytes = (double)t->plan.total,
                            .host_bytes = t->compute.device ? (double)ls_plan_host_bytes(&t->plan) : 0,
                            .peak_rss_bytes = (double)train_peak_rss(),
                            .device_bytes = t->compute.device ? (double)ls_trainer_held_bytes(t) : 0,
                            .comm_bytes = (double)ls_trainer_comm_bytes(t),
                            .cpu_utilisation = ls_step_clock_cpu(t),
                            .exposed = ls_trainer_exposed(t, false)};
    for (int p = 0; p < LS_N_PART; p++) mine.part_bytes[p] = (double)ls_plan_part_bytes(&t->plan, (ls_part)p);
    ls_worker_facts *all = ls_comm_alloc(t->comm, (size_t)W * sizeof *all);
    if (!all) return ls_nomem((size_t)W * sizeof *all, "the workers' facts");
    LS_TRY(ls_all_gather(t->comm, (ls_view){all, (int64_t)W * N, LS_F64}, (ls_view){&mine, N, LS_F64}, LS_SITE, NULL));
    *out = all;
    return LS_OK;
}

static ls_status write_all(ls_trainer *t, const ls_run_identity *id, const ls_worker_facts *facts,
                           const ls_pipe_report *pipe)
{
    char words[LS_COMPUTE_WORDS];
    ls_str markers = {0};
    LS_TRY(ls_metrics_log_close(&t->log));
    ls_nccl_proof_end(t->proof);
    ls_run_end m = {.id = id,
                    .total_wall_time = ls_step_clock_run(t),
                    .compute_words = ls_compute_describe(&t->compute, words),
                    .nccl = ls_comm_library(t->comm),
                    .worker = facts,
                    .pipe = pipe};
    ls_utc_stamp(m.utc);
    const ls_status st = ls_artifacts_write(t, &m, &markers);
    /* also after a failure: markers of the files that are complete */
    const ls_status end =
        markers.data ? ls_observe(t, &(ls_event){.kind = LS_ON_RUN_END, .text = markers.data}) : LS_OK;
    ls_str_fini(&markers);
    ls_pipe_report_print(pipe, t);
    return st != LS_OK ? st : end;
}

ls_status train_end_files(ls_trainer *t, const ls_run_identity *id)
{
    ls_worker_facts *facts = NULL;
    ls_pipe_report pipe = {0};
    char path[PATH_MAX];
    ls_status st = LS_OK;
    LS_TRY(gather_facts(t, &facts)); /* also: no worker leaves before all have finished the last step */
    LS_TRY_GOTO(st, done, ls_pipe_report_gather(t, &pipe));
    LS_TRY_GOTO(st, done, ls_path_in(path, t->cfg->run_dir, "pipeline.json"));
    if (pipe.rows.data) LS_TRY_GOTO(st, done, ls_fs_write(path, pipe.rows.data, pipe.rows.len));
    if (ls_comm_rank(t->comm) == 0) LS_TRY_GOTO(st, done, write_all(t, id, facts, &pipe));
done:
    ls_str_fini(&pipe.rows);
    return st;
}
