#include "run/events.h"

#include "core/clock.h"
#include "core/fs.h"
#include "core/log.h"
#include "run/jsonl.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static const char *const kind_word[LS_N_EV] = {
#define X(name, word) word,
    LS_RUN_EVENT_LIST(X)
#undef X
};

bool ls_run_event_read(const json_t *line, ls_run_event *e)
{
#define X(key) e->key = ls_json_int_at(line, #key);
    LS_RUN_EVENT_INTS(X)
#undef X
#define X(key) e->key = ls_json_real_at(line, #key);
    LS_RUN_EVENT_REALS(X)
#undef X
#define X(key) e->key = ls_json_text_at(line, #key);
    LS_RUN_EVENT_TEXTS(X)
#undef X
    for (e->kind = 0; e->kind < LS_N_EV && strcmp(e->event, kind_word[e->kind]) != 0;) e->kind++;
    return line;
}

ls_run_turn ls_run_history_add(ls_run_history *h, const ls_run_event *e)
{
    const bool again = h->waits && e->attempt != 1; /* older versions do not say the attempt */
    switch (e->kind) {
    case LS_EV_START:
        if (!again && e->step == 0) *h = (ls_run_history){0};
        h->open = true;
        h->waits = false;
        h->workers = e->world_size;
        return again ? LS_TURN_AGAIN : e->step == 0 ? LS_TURN_NEW : LS_TURN_RESUMED;
    case LS_EV_FAILURE:
        if (h->waits && e->attempt >= 0 && e->attempt == h->failed) return LS_TURN_REPEATED;
        h->failures++;
        h->failed = e->attempt;
        break;
    case LS_EV_RESIZE:
        h->resizes++;
        if (h->open && h->workers == e->to) return LS_TURN_REPEATED;
        break;
    case LS_EV_END:
        h->open = false;
        h->waits = h->waits && e->attempt < 0; /* with an attempt: of the supervisor, which starts no other */
        return LS_TURN_NONE;
    case LS_EV_AUDIT: h->audits++, h->bad_audits += !strcmp(e->result, "mismatch"); return LS_TURN_NONE;
    case LS_EV_RESTART: h->restarts++; return LS_TURN_NONE;
    default: return LS_TURN_NONE;
    }
    h->open = false;
    h->waits = true;
    h->since = e->time_unix_ms;
    return LS_TURN_NONE;
}

ls_event_log ls_event_log_open(const char *run_dir)
{
    return (ls_event_log){.fd = ls_fs_open_lines(ls_path_of(run_dir, "events.jsonl").text)};
}

void ls_event_log_close(ls_event_log *l)
{
    if (l->fd >= 0) close(l->fd);
    ls_str_fini(&l->line);
    l->fd = -1;
}

ls_jsonw *ls_event_begin(ls_event_log *l, ls_run_event_kind kind)
{
    l->line.len = 0;
    ls_jsonw_init(&l->w, &l->line, 0);
    ls_jsonw_open(&l->w, '{');
    ls_jsonw_put_str(&l->w, "event", kind_word[kind]);
    return &l->w;
}

void ls_event_end(ls_event_log *l)
{
    ls_jsonw_put_int(&l->w, "time_unix_ms", ls_unix_ms());
    ls_jsonw_close(&l->w);
    ls_str_addc(&l->line, '\n');
    if (l->fd < 0 || l->line.failed || write(l->fd, l->line.data, l->line.len) == (ssize_t)l->line.len) return;
    if (l->who) ls_warn(l->who, "write events.jsonl: %s; serve and watch show less of this run", strerror(errno));
    close(l->fd);
    l->fd = -1;
}
