/* metrics_log.c - metrics.jsonl: one line with a JSON object per step, written with one write() each, so that a killed run loses at
 * most its last line. A resumed run drops the lines after its checkpoint. */
#include "train/train_impl.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/json.h"
#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_ROOM = 2048 }; /* no line is longer: names plus 16 numbers of at most 25 bytes */

/* Bytes of the whole lines before the first one of a step after `keep`. Lines are in the order of their steps. A line that is damaged has no
 * step: it stays where it is, as its neighbours do. */
static size_t kept_bytes(const char *data, size_t n, int64_t keep)
{
    size_t at = 0;
    while (at < n) {
        const char *end = memchr(data + at, '\n', n - at);
        if (!end) break; /* torn */
        size_t len = (size_t)(end - (data + at));
        json_error_t e;
        json_t *j = json_loadb(data + at, len, 0, &e);
        const json_t *step = json_object_get(j, "step");
        const bool later = json_is_integer(step) && json_integer_value(step) > keep;
        json_decref(j);
        if (later) break;
        at += len + 1;
    }
    return at;
}

/* What the lines of steps after the kept ones say, for the start in events.jsonl. */
static void note_dropped(ls_metrics_log *l, const char *data, size_t n)
{
    for (const char *p = data, *end; n && (end = memchr(p, '\n', n)); n -= (size_t)(end - p) + 1, p = end + 1) {
        json_t *j = json_loadb(p, (size_t)(end - p), 0, NULL);
        const json_t *at = json_object_get(j, "time_unix_ms");
        if (json_is_integer(at)) {
            l->dropped++;
            l->dropped_seconds += json_number_value(json_object_get(j, "step_time_sec"));
            l->dropped_until = json_integer_value(at);
        }
        json_decref(j);
    }
}

ls_status ls_metrics_log_open(ls_metrics_log *l, const char *run_dir, int64_t keep_step)
{
    ls_metrics_log log = {.fd = -1};
    char *data = NULL;
    size_t n = 0;
    LS_TRY(ls_path_in(log.path, run_dir, "metrics.jsonl"));
    const bool resumed = keep_step > 0 && ls_fs_exists(log.path);
    if (resumed) LS_TRY(ls_fs_read(log.path, &data, &n));
    const size_t keep = kept_bytes(data, n, keep_step);
    if (resumed) note_dropped(&log, data + keep, n - keep);
    /* a file that does not change is not rewritten */
    ls_status st = resumed && keep == n ? LS_OK : ls_fs_write(log.path, data ? data : "", keep);
    ls_free(data);
    LS_TRY(st);
    for (int i = 0; i < LINE_ROOM; i++) ls_str_addc(&log.line, ' '); /* so that no step allocates */
    if (log.line.failed) st = ls_nomem(LINE_ROOM, "a line of metrics");
    else if ((log.fd = ls_fs_open(log.path, O_WRONLY | O_APPEND)) < 0)
        st = ls_fail(LS_E_IO, "open %s: %s", log.path, ls_fs_why(errno));
    if (st == LS_OK) *l = log;
    else ls_str_fini(&log.line);
    return st;
}

static const char *const split_key[LS_N_STEP_SPLIT] = {"data_sec",         "forward_sec",   "backward_sec",
                                                       "comm_exposed_sec", "optimizer_sec", "other_sec"};

static void step_line(ls_str *line, const ls_trainer *t, const ls_event *e)
{
    const ls_train_config *c = t->cfg;
    const ls_step_result *r = e->step;
    const int64_t tokens = c->global_batch * c->seq_len;
    const double rate = (double)tokens / r->t_total;
    struct timespec now;
    ls_jsonw w;
    ls_wall(&now);
    ls_jsonw_init(&w, line, 0);
    ls_jsonw_open(&w, '{');
    ls_jsonw_members(&w, LS_KV("step", t->state.step), LS_KV("epoch", t->state.epoch + 1), LS_KV("loss", r->loss),
                     LS_KV("lr", r->lr));
    ls_jsonw_put_real(&w, "grad_norm", r->grad_norm); /* null when it is not finite */
    if (r->loss_scale > 0) { ls_jsonw_members(&w, LS_KV("loss_scale", r->loss_scale), LS_KV("skipped", r->skipped)); }
    ls_jsonw_members(&w, LS_KV("tokens", tokens), LS_KV("tokens_per_sec", rate),
                     LS_KV("tflops", rate * ls_flops_per_token(&c->model, c->seq_len) / 1e12),
                     LS_KV("step_time_sec", r->t_total));
    for (int i = 0; i < LS_N_STEP_SPLIT; i++) ls_jsonw_put_real(&w, split_key[i], r->split.part[i]);
    ls_jsonw_put_real(&w, "cpu_utilisation", r->cpu);
    if (e->n_val > 0) ls_jsonw_put_real(&w, "val_loss", e->val_loss);
    ls_jsonw_put_int(&w, "time_unix_ms", (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000);
    ls_jsonw_close(&w);
    ls_str_addc(line, '\n');
}

ls_status ls_metrics_log_add(ls_metrics_log *l, const ls_trainer *t, const ls_event *e)
{
    l->line.len = 0;
    step_line(&l->line, t, e);
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
