/* metrics_log.c - metrics.jsonl: one line with a JSON object per step, written with one write() each, so that a killed run loses at
 * most its last line. A resumed run drops the lines after its checkpoint. */
#include "train/train_impl.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/mem.h"
#include "run/jsonl.h"
#include "run/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

enum { LINE_ROOM = 2048 }; /* no line is longer: names plus 16 numbers of at most 25 bytes */

/* Bytes of the whole lines before the first one of a step after `last`; what the lines from there on say is noted for the start in events.jsonl.
 * Lines are in the order of their steps. A line that is damaged has no step: it stays where it is, as its neighbours do. */
static size_t kept_bytes(ls_metrics_log *log, ls_jsonl *l, int64_t last)
{
    ls_metrics_row row;
    size_t keep = 0;
    bool later = false;
    while (ls_jsonl_next(l) && l->whole) {
        later = (ls_metrics_read(l->row, &row) && row.step > last) || later;
        if (!later) keep = l->at;
        if (!later || ls_metrics_int(&row, LS_ROW_TIME) < 0) continue;
        log->dropped++;
        log->dropped_seconds += fmax(row.x[LS_ROW_STEP_TIME], 0); /* NaN is left out */
        log->dropped_until = ls_metrics_int(&row, LS_ROW_TIME);
    }
    return keep;
}

ls_status ls_metrics_log_open(ls_metrics_log *l, const char *run_dir, int64_t keep_step)
{
    ls_metrics_log log = {.fd = -1};
    ls_jsonl old = {0};
    LS_TRY(ls_path_in(log.path, run_dir, "metrics.jsonl"));
    const bool resumed = keep_step > 0 && ls_fs_exists(log.path);
    if (resumed) LS_TRY(ls_jsonl_open(&old, log.path, LS_JSONL_ALL));
    const size_t keep = kept_bytes(&log, &old, keep_step);
    /* a file that does not change is not rewritten */
    ls_status st = resumed && keep == old.n ? LS_OK : ls_fs_write(log.path, keep ? old.text : "", keep);
    ls_jsonl_fini(&old);
    LS_TRY(st);
    for (int i = 0; i < LINE_ROOM; i++) ls_str_addc(&log.line, ' '); /* so that no step allocates */
    if (log.line.failed) st = ls_nomem(LINE_ROOM, "a line of metrics");
    else if ((log.fd = ls_fs_open(log.path, O_WRONLY | O_APPEND)) < 0)
        st = ls_fail(LS_E_IO, "open %s: %s", log.path, ls_fs_why(errno));
    if (st == LS_OK) *l = log;
    else ls_str_fini(&log.line);
    return st;
}

ls_status ls_metrics_log_add(ls_metrics_log *l, const ls_trainer *t, const ls_event *e)
{
    const ls_train_config *c = t->cfg;
    const ls_step_result *r = e->step;
    const int64_t tokens = c->global_batch * c->seq_len;
    const double rate = (double)tokens / r->t_total;
    ls_metrics_row row = {0};
#define SET(name, value) ls_metrics_set(&row, LS_ROW_##name, (double)(value))
    SET(STEP, t->state.step);
    SET(EPOCH, t->state.epoch + 1);
    SET(LOSS, r->loss);
    SET(LR, r->lr);
    SET(GRAD_NORM, r->grad_norm); /* null when it is not finite */
    if (r->loss_scale > 0) SET(LOSS_SCALE, r->loss_scale), SET(SKIPPED, r->skipped);
    SET(TOKENS, tokens);
    SET(TOKENS_PER_SEC, rate);
    SET(TFLOPS, rate * ls_flops_per_token(&c->model, c->seq_len) / 1e12);
    SET(STEP_TIME, r->t_total);
    for (int i = 0; i < LS_N_STEP_SPLIT; i++) ls_metrics_set(&row, LS_ROW_DATA + (ls_row_key)i, r->split.part[i]);
    SET(CPU, r->cpu);
    if (e->n_val > 0) SET(VAL_LOSS, e->val_loss);
    SET(TIME, ls_unix_ms());
#undef SET
    l->line.len = 0;
    ls_metrics_write(&row, &l->line);
    if (l->line.failed) return ls_nomem(LINE_ROOM, "a line of metrics");
    return ls_fs_append(l->fd, l->path, l->line.data, l->line.len);
}

ls_status ls_metrics_log_close(ls_metrics_log *l)
{
    ls_status st = LS_OK;
    if (!*l->path) return LS_OK;
    if (close(l->fd)) st = ls_fail(LS_E_IO, "close %s: %s", l->path, strerror(errno));
    ls_str_fini(&l->line);
    l->path[0] = 0;
    return st;
}

ls_status train_see_metrics(ls_trainer *t, const ls_event *e)
{
    return e->kind == LS_ON_STEP_LOG && ls_comm_rank(t->comm) == 0 ? ls_metrics_log_add(&t->log, t, e) : LS_OK;
}
