/* metrics_log.c - metrics.jsonl: one line with a JSON object per step, written with one write() each, so that a killed run loses at
 * most its last line. A resumed run drops the lines after its checkpoint. */
#include "train/train_impl.h"
#include "core/fs.h"
#include "core/json.h"
#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_ROOM = 2048 }; /* no line is longer: names plus 16 numbers of at most 25 bytes */

/* Bytes of the leading lines that are whole and belong to steps up to `keep`. Lines are in the order of their steps. */
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
        bool stays = json_is_integer(step) && json_integer_value(step) <= keep;
        json_decref(j);
        if (!stays) break;
        at += len + 1;
    }
    return at;
}

ls_status ls_metrics_log_open(ls_metrics_log *l, const char *path, int64_t keep_step)
{
    ls_metrics_log log = {.fd = -1};
    char *data = NULL;
    size_t n = 0, keep = 0;
    ls_status st = LS_OK;
    log.path = ls_strdup(path);
    if (!log.path) return ls_nomem(strlen(path), "a path");
    for (int i = 0; i < LINE_ROOM; i++) ls_str_addc(&log.line, ' '); /* so that no step allocates */
    if (log.line.failed) {
        st = ls_nomem(LINE_ROOM, "a line of metrics");
        goto done;
    }
    bool there = ls_fs_exists(path);
    if (there && keep_step > 0) {
        LS_TRY_GOTO(st, done, ls_fs_read(path, &data, &n));
        keep = kept_bytes(data, n, keep_step);
    }
    /* A file that does not change is not rewritten. */
    if (!there || keep_step <= 0 || keep != n) LS_TRY_GOTO(st, done, ls_fs_write(path, data ? data : "", keep));
    log.fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (log.fd < 0) st = ls_fail(LS_E_IO, "open %s: %s", path, strerror(errno));
done:
    ls_free(data);
    if (st != LS_OK) {
        ls_str_fini(&log.line);
        ls_free(log.path);
        return st;
    }
    *l = log;
    return LS_OK;
}

static void put_int(ls_jsonw *w, const char *key, int64_t v)
{
    ls_jsonw_put_int(w, key, v);
}

static void put_real(ls_jsonw *w, const char *key, double v)
{
    ls_jsonw_put_real(w, key, v);
}

ls_status ls_metrics_log_add(ls_metrics_log *l, const ls_step_metrics *s)
{
    ls_jsonw w;
    l->line.len = 0;
    ls_jsonw_init(&w, &l->line, 0);
    ls_jsonw_open(&w, '{');
    put_int(&w, "step", s->step);
    put_int(&w, "epoch", s->epoch);
    put_real(&w, "loss", s->loss);
    put_real(&w, "lr", s->lr);
    put_real(&w, "grad_norm", s->grad_norm); /* null when it is not finite */
    if (s->loss_scale > 0) put_real(&w, "loss_scale", s->loss_scale);
    if (s->loss_scale > 0) ls_jsonw_put_bool(&w, "skipped", s->skipped);
    put_int(&w, "tokens", s->tokens);
    put_real(&w, "tokens_per_sec", s->tokens_per_sec);
    put_real(&w, "tflops", s->tflops);
    put_real(&w, "step_time_sec", s->step_time);
    put_real(&w, "data_sec", s->split.input);
    put_real(&w, "forward_sec", s->split.forward);
    put_real(&w, "backward_sec", s->split.backward);
    put_real(&w, "comm_exposed_sec", s->split.comm_exposed);
    put_real(&w, "optimizer_sec", s->split.optimizer);
    put_real(&w, "other_sec", s->split.other);
    put_real(&w, "cpu_utilisation", s->cpu);
    if (s->has_val) put_real(&w, "val_loss", s->val_loss);
    put_int(&w, "time_unix_ms", s->time_unix_ms);
    ls_jsonw_close(&w);
    ls_str_addc(&l->line, '\n');
    if (l->line.failed) return ls_nomem(LINE_ROOM, "a line of metrics");
    for (size_t at = 0; at < l->line.len;) {
        ssize_t n = write(l->fd, l->line.data + at, l->line.len - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return ls_fail(LS_E_IO, "write %s: %s", l->path, n ? strerror(errno) : "nothing was written");
        at += (size_t)n;
    }
    return LS_OK;
}

ls_status ls_metrics_log_close(ls_metrics_log *l)
{
    ls_status st = LS_OK;
    if (!l->path) return LS_OK;
    if (l->fd >= 0 && close(l->fd)) st = ls_fail(LS_E_IO, "close %s: %s", l->path, strerror(errno));
    ls_str_fini(&l->line);
    ls_free(l->path);
    *l = (ls_metrics_log){.fd = -1};
    return st;
}

static ls_status log_step(ls_trainer *t, const ls_event *e)
{
    const ls_train_config *c = t->cfg;
    const ls_step_result *r = e->step;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const int64_t tokens = c->global_batch * c->seq_len;
    const ls_step_metrics m = {.step = t->state.step,
                               .epoch = t->state.epoch + 1,
                               .tokens = tokens,
                               .loss = r->loss,
                               .lr = r->lr,
                               .grad_norm = r->grad_norm,
                               .loss_scale = r->loss_scale,
                               .skipped = r->skipped,
                               .step_time = r->t_total,
                               .split = r->split,
                               .cpu = r->cpu,
                               .tokens_per_sec = (double)tokens / r->t_total,
                               .tflops = (double)tokens / r->t_total * ls_flops_per_token(&c->model, c->seq_len) / 1e12,
                               .has_val = e->n_val > 0,
                               .val_loss = e->val_loss,
                               .time_unix_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000};
    return ls_metrics_log_add(&t->log, &m);
}

ls_status train_see_metrics(void *ctx, ls_trainer *t, const ls_event *e)
{
    (void)ctx;
    return e->kind == LS_ON_STEP_LOG && ls_comm_rank(t->comm) == 0 ? log_step(t, e) : LS_OK;
}
