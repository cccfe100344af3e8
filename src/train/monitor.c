/* monitor.c - the series and lines of DeepSpeed that its JSON asks for: TensorBoard events, CSV files, the times of a step.
 *
 *   tensorboard, --tensorboard   an event file (event_file.h)
 *   csv_monitor                  <output_path>/<job_name>/Train_Samples_lr.csv ...: a line "step,lr", then "<samples>,<value>"
 *   wall_clock_breakdown         [Rank 0] time (ms) | fwd: 8.31 | bwd: 15.02 | bwd_inner: 14.80 | bwd_allreduce: 0.22 | step: 2.10
 *   steps_per_print              [Rank 0] step=20, skipped=0, lr=[0.0001], mom=[(0.9, 0.999)], and a line with the throughput
 *
 * The position of a value is the number of sequences trained so far, as in DeepSpeed. What was not measured is left out. Rank 0 writes. */
#include "train/train_impl.h"

#include "core/fs.h"
#include "core/json.h"
#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const series[LS_N_SERIES] = {"Train/Samples/train_loss",
                                                "Train/Samples/lr",
                                                "Train/Samples/loss_scale",
                                                "Train/Samples/elapsed_time_ms_forward",
                                                "Train/Samples/elapsed_time_ms_backward",
                                                "Train/Samples/elapsed_time_ms_backward_inner",
                                                "Train/Samples/elapsed_time_ms_backward_allreduce",
                                                "Train/Samples/elapsed_time_ms_step",
                                                "Train/Samples/grad_norm",
                                                "Train/Samples/tokens_per_sec",
                                                "Validation/Samples/val_loss"};
enum { LOSS, LR, LOSS_SCALE, FORWARD, BACKWARD, BACKWARD_INNER, ALLREDUCE, OPTIMIZER, GRAD_NORM, RATE, VAL_LOSS };
_Static_assert((int)LS_N_SERIES <= (int)LS_SCALAR_MAX, "raise LS_SCALAR_MAX");

/* ---- CSV ---- */

/* Bytes of a CSV file without the rows after position `keep` in its last part; parts begin with a line "step,name". */
static size_t kept_bytes(const char *data, size_t n, int64_t keep)
{
    size_t end = n;
    for (size_t at = 0; at < n;) {
        const char *stop = memchr(data + at, '\n', n - at);
        if (!stop) return at < end ? at : end; /* torn */
        const bool header = !strncmp(data + at, "step,", 5);
        if (header) end = n;
        else if (end == n && strtoll(data + at, NULL, 10) > keep) end = at;
        at = (size_t)(stop - data) + 1;
    }
    return end;
}

/* Whether a file was written since the lock of the run folder was taken: by an earlier attempt of this run, not by an earlier run. */
static bool is_of_this_run(const ls_trainer *t, const char *path)
{
    struct stat file, lock;
    char name[PATH_MAX];
    if (ls_path_in(name, t->cfg->run_dir, LS_RUN_LOCK) != LS_OK) {
        ls_err_clear();
        return false;
    }
    if (stat(path, &file) || stat(name, &lock)) return false;
    return file.st_mtim.tv_sec != lock.st_mtim.tv_sec ? file.st_mtim.tv_sec > lock.st_mtim.tv_sec
                                                      : file.st_mtim.tv_nsec >= lock.st_mtim.tv_nsec;
}

/* A resumed run continues its file, and so does one that is restarted from step 0; a new one begins another part, with a header, as DeepSpeed
 * does. */
static ls_status csv_open(const ls_trainer *t, int k, int *slot)
{
    char name[LS_SCALAR_TAG_MAX], path[PATH_MAX], header[96];
    char *data = NULL;
    size_t n = 0, keep = 0;
    snprintf(name, sizeof name, "%s", series[k]);
    for (char *p = name; *p; p++)
        if (*p == '/' || *p == ' ') *p = '_';
    LS_TRY(ls_fs_mkdirs(t->cfg->csv_monitor));
    LS_TRY(ls_path_in(path, t->cfg->csv_monitor, "%s.csv", name));
    if ((t->resumed_from && ls_fs_exists(path)) || (t->cfg->restart && is_of_this_run(t, path))) {
        LS_TRY(ls_fs_read(path, &data, &n));
        keep = kept_bytes(data, n, t->resumed_from * t->cfg->global_batch);
        const ls_status st = keep == n ? LS_OK : ls_fs_write(path, data, keep);
        ls_free(data);
        LS_TRY(st);
    }
    const int fd = ls_fs_open(path, O_WRONLY | O_CREAT | O_APPEND);
    if (fd < 0) return ls_fail(LS_E_IO, "cannot write %s: %s", path, ls_fs_why(errno));
    *slot = fd + 1;
    if (keep) return LS_OK;
    snprintf(header, sizeof header, "step,%s\r\n", strrchr(series[k], '/') + 1);
    return ls_fs_append(fd, path, header, strlen(header));
}

static ls_status csv_add(ls_trainer *t, int k, int64_t at, double value)
{
    char row[96], number[32];
    int *slot = &t->monitor.csv[k];
    if (!*slot) LS_TRY(csv_open(t, k, slot));
    snprintf(row, sizeof row, "%lld,%s\r\n", (long long)at, ls_json_real(number, value));
    return ls_fs_append(*slot - 1, series[k], row, strlen(row));
}

/* ---- both ---- */

/* value[k] is of series k; NaN: not measured. */
static ls_status add_values(ls_trainer *t, const double value[LS_N_SERIES])
{
    const int64_t at = t->state.step * t->cfg->global_batch;
    ls_scalar scalar[LS_N_SERIES];
    int n = 0;
    for (int k = 0; k < LS_N_SERIES; k++) {
        if (!isfinite(value[k])) continue;
        scalar[n++] = (ls_scalar){series[k], value[k]};
        if (t->cfg->csv_monitor) LS_TRY(csv_add(t, k, at, value[k]));
    }
    return n && *t->monitor.events.path ? ls_event_file_add(&t->monitor.events, at, scalar, n) : LS_OK;
}

static ls_status add_step(ls_trainer *t, const ls_step_result *r)
{
    const ls_train_config *c = t->cfg;
    const ls_step_split *s = &r->split;
    double v[LS_N_SERIES];
    for (int k = 0; k < LS_N_SERIES; k++) v[k] = (double)NAN;
    v[LOSS] = r->loss;
    v[LR] = r->lr;
    v[GRAD_NORM] = r->grad_norm;
    v[RATE] = (double)(c->global_batch * c->seq_len) / r->t_total;
    if (r->loss_scale > 0) v[LOSS_SCALE] = r->loss_scale;
    if (c->wall_clock_breakdown) {
        v[FORWARD] = 1e3 * s->forward;
        v[BACKWARD_INNER] = 1e3 * s->backward;
        v[ALLREDUCE] = 1e3 * s->comm_exposed;
        v[BACKWARD] = 1e3 * (s->backward + s->comm_exposed);
        v[OPTIMIZER] = 1e3 * s->optimizer;
    }
    return add_values(t, v);
}

/* ---- lines ---- */

/* Waits for other workers are counted as bwd_allreduce, wherever they fell. */
static void say_times(ls_trainer *t, const ls_step_split *s)
{
    const struct {
        const char *name;
        double sec;
    } all[] = {{"fwd", s->forward},
               {"bwd", s->backward + s->comm_exposed},
               {"bwd_inner", s->backward},
               {"bwd_allreduce", s->comm_exposed},
               {"step", s->optimizer}};
    char text[256];
    size_t n = (size_t)snprintf(text, sizeof text, "[Rank 0] time (ms)");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (isfinite(all[i].sec))
            n += (size_t)snprintf(text + n, sizeof text - n, " | %s: %.2f", all[i].name, 1e3 * all[i].sec);
    snprintf(text + n, sizeof text - n, "\n");
    t->io.line(t->io.ctx, text);
}

/* The running average leaves out the first step of an attempt, which is slower. */
static void say_progress(ls_trainer *t, const ls_step_result *r)
{
    const ls_train_config *c = t->cfg;
    const ls_run_state *s = &t->state;
    const double held = (double)ls_trainer_held_bytes(t), peak = t->compute.device ? held : (double)train_peak_rss(),
                 batch = (double)c->global_batch, giga = 1073741824.0;
    const ls_monitor *m = &t->monitor;
    char text[400], lr[32], b1[32], b2[32];
    snprintf(text, sizeof text, "[Rank 0] step=%lld, skipped=%lld, lr=[%s], mom=[(%s, %s)]\n", (long long)s->step,
             (long long)s->skipped, ls_json_real(lr, r->lr), ls_json_real(b1, c->beta1), ls_json_real(b2, c->beta2));
    t->io.line(t->io.ctx, text);
    const double average = m->n_timed ? batch * (double)m->n_timed / m->timed : batch / r->t_total;
    snprintf(
        text, sizeof text,
        "[Rank 0] epoch=%lld/micro_step=%lld/global_step=%lld, RunningAvgSamplesPerSec=%.4f, CurrSamplesPerSec=%.4f, "
        "MemAllocated=%.2fGB, MaxMemAllocated=%.2fGB\n",
        (long long)s->epoch, (long long)s->step * c->grad_accum, (long long)s->step, average, batch / r->t_total,
        held / giga, peak / giga);
    t->io.line(t->io.ctx, text);
}

static ls_status see_step(ls_trainer *t, const ls_step_result *r)
{
    const ls_train_config *c = t->cfg;
    ls_monitor *m = &t->monitor;
    const int64_t every = c->ds_steps_per_print;
    if (m->seen_step) m->timed += r->t_total, m->n_timed++;
    m->seen_step = true;
    if (t->io.line && !c->profile_mode && c->wall_clock_breakdown) say_times(t, &r->split);
    if (t->io.line && !c->profile_mode && every > 0 && t->state.step % every == 0) say_progress(t, r);
    return c->csv_monitor || c->tensorboard ? add_step(t, r) : LS_OK;
}

static void close_files(ls_trainer *t)
{
    for (int k = 0; k < LS_N_SERIES; k++)
        if (t->monitor.csv[k]) close(t->monitor.csv[k] - 1);
    memset(t->monitor.csv, 0, sizeof t->monitor.csv);
    ls_event_file_close(&t->monitor.events);
}

ls_status train_see_monitor(ls_trainer *t, const ls_event *e)
{
    const ls_train_config *c = t->cfg;
    double v[LS_N_SERIES];
    if (e->kind == LS_ON_SHUTDOWN_BEGIN) close_files(t);
    if (e->kind != LS_ON_RUN_READY && e->kind != LS_ON_STEP_LOG && e->kind != LS_ON_VALIDATED) return LS_OK;
    if (ls_comm_rank(t->comm)) return LS_OK;
    if (e->kind == LS_ON_RUN_READY) {
        const bool again = t->resumed_from || c->restart;
        if (!c->tensorboard) return LS_OK;
        return ls_event_file_open(&t->monitor.events, c->tensorboard, again ? t->resumed_from * c->global_batch : -1);
    }
    if (e->kind == LS_ON_STEP_LOG) return see_step(t, e->step);
    if (!e->n_val || !(c->csv_monitor || c->tensorboard)) return LS_OK;
    for (int k = 0; k < LS_N_SERIES; k++) v[k] = (double)NAN;
    v[VAL_LOSS] = e->val_loss;
    return add_values(t, v);
}
