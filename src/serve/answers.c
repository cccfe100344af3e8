#include "serve/answers.h"

#include "core/clock.h"
#include "core/json.h"
#include "core/utf8.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SHOWN_RANKS = 256 }; /* of one answer; more do not fit on a page */

/* Six digits are more than a screen shows, and half the bytes of a double. */
static void real_or_null(ls_str *out, double x)
{
    if (isfinite(x)) ls_str_addf(out, "%.6g", x);
    else ls_str_add(out, "null");
}

static void summary_members(const ls_live_run *r, ls_jsonw *w)
{
    const ls_live_last *l = &r->last;
    ls_jsonw_members(w, LS_KV("id", (const char *)r->id), LS_KV("state", ls_live_state_name[r->state]));
    const bool failed = r->state == LS_LIVE_FAILED || r->state == LS_LIVE_RESTARTING;
    if (failed && *r->reason) ls_jsonw_put_str(w, "reason", r->reason);
    ls_jsonw_members(w, LS_KV_COUNT("step", l->step), LS_KV_COUNT("total_steps", l->total_steps),
                     LS_KV_COUNT("epoch", l->epoch), LS_KV_COUNT("tokens_per_step", l->tokens_per_step),
                     LS_KV_COUNT("started_unix_ms", l->started_ms), LS_KV_COUNT("updated_unix_ms", l->updated_ms));
    for (int s = 0; s < LS_N_CURVE; s++) ls_jsonw_put_real(w, ls_row_name[ls_curve_row[s]], l->value[s]);
    ls_jsonw_members(w, LS_KV("val_loss", l->val_loss), LS_KV_COUNT("val_step", l->val_step),
                     LS_KV_COUNT("world_size", r->world), LS_KV_COUNT("parameters", r->parameters),
                     LS_KV("failures", r->seen.failures), LS_KV("restarts", r->seen.restarts),
                     LS_KV("resizes", r->seen.resizes), LS_KV("audits", r->seen.audits),
                     LS_KV("audits_failed", r->seen.bad_audits), LS_KV("strategy", (const char *)r->strategy),
                     LS_KV("precision", (const char *)r->precision), LS_KV("device", (const char *)r->device),
                     LS_KV("layout", (const char *)r->layout));
}

void ls_answer_runs(const ls_live_set *s, ls_str *out)
{
    ls_jsonw w;
    ls_jsonw_init(&w, out, 0);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_int(&w, "now_unix_ms", ls_unix_ms());
    ls_jsonw_put_bool(&w, "more", s->left_out > 0);
    ls_jsonw_put_int(&w, "left_out", s->left_out);
    ls_jsonw_put_open(&w, "runs", '[');
    for (int i = 0; i < s->n; i++) {
        ls_jsonw_open(&w, '{');
        summary_members(s->run[i], &w);
        ls_jsonw_close(&w);
    }
    ls_jsonw_close(&w);
    ls_jsonw_close(&w);
}

static void rank_members(const ls_live_rank *k, ls_jsonw *w)
{
    ls_jsonw_open(w, '{');
    ls_jsonw_members(
        w, LS_KV("rank", k->rank), LS_KV("host", (const char *)k->host), LS_KV("phase", (const char *)k->phase),
        LS_KV_COUNT("step", k->step), LS_KV_COUNT("updated_unix_ms", k->updated_ms),
        LS_KV_COUNT("memory_bytes", k->memory_bytes), LS_KV_COUNT("rss_bytes", k->rss_bytes),
        LS_KV("on_device", k->on_device), LS_KV("step_time_sec", k->step_time), LS_KV("comm_exposed_sec", k->exposed),
        LS_KV("cpu_utilisation", k->cpu), LS_KV("gpu_utilisation", k->gpu), LS_KV("gpu_power_w", k->power));
    ls_jsonw_close(w);
}

static void events_member(const ls_live_run *r, ls_jsonw *w)
{
    ls_jsonw_put_open(w, "events", '[');
    for (int i = 0; i < r->n_event; i++) {
        const ls_live_event *e = &r->event[i];
        ls_jsonw_open(w, '{');
        ls_jsonw_members(w, LS_KV("event", (const char *)e->kind), LS_KV_COUNT("step", e->step),
                         LS_KV_COUNT("time_unix_ms", e->time_ms),
                         LS_KV_IF(*e->name, LS_KV("name", (const char *)e->name)),
                         LS_KV_IF(*e->words, LS_KV("words", (const char *)e->words)),
                         LS_KV_IF(isfinite(e->loss), LS_KV("loss", e->loss)));
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
}

/* [v, v, null, ...] of the buckets from `from` on that have a step. which: mean, lo, hi */
static void list(const ls_curve *c, int from, int series, int which, ls_str *out)
{
    char between = '[';
    for (int i = from; i < c->n; i++) {
        if (c->last[i] < 0) continue;
        const ls_bucket *b = &c->bucket[i][series];
        const double v = !b->n ? NAN : which == 0 ? b->sum / b->n : which == 1 ? (double)b->lo : (double)b->hi;
        ls_str_addc(out, between);
        real_or_null(out, v);
        between = ',';
    }
    ls_str_add(out, between == '[' ? "[]" : "]");
}

static void curves(const ls_curve *c, int from, ls_str *out)
{
    ls_str_addf(out, ",\"generation\":%lld,\"width\":%lld,\"from\":%d,\"next\":%d,\"x\":", (long long)c->generation,
                (long long)c->width, from, c->n ? c->n - 1 : 0);
    char between = '[';
    for (int i = from; i < c->n; i++) {
        if (c->last[i] < 0) continue;
        ls_str_addf(out, "%c%lld", between, (long long)c->last[i]);
        between = ',';
    }
    ls_str_add(out, between == '[' ? "[],\"at\":" : "],\"at\":");
    between = '[';
    for (int i = from; i < c->n; i++) {
        if (c->last[i] < 0) continue;
        ls_str_addf(out, "%c%d", between, i);
        between = ',';
    }
    ls_str_add(out, between == '[' ? "[],\"series\":{" : "],\"series\":{");
    for (int s = 0; s < LS_N_CURVE; s++) {
        ls_str_addf(out, "%s\"%s\":{\"y\":", s ? "," : "", ls_row_name[ls_curve_row[s]]);
        list(c, from, s, 0, out);
        if (c->width > 1 && (s == LS_CURVE_LOSS || s == LS_CURVE_NORM || s == LS_CURVE_RATE)) {
            ls_str_add(out, ",\"lo\":");
            list(c, from, s, 1, out);
            ls_str_add(out, ",\"hi\":");
            list(c, from, s, 2, out);
        }
        ls_str_addc(out, '}');
    }
    ls_str_addc(out, '}');
}

void ls_answer_run(const ls_live_run *r, int64_t generation, int64_t from, ls_str *out)
{
    const ls_curve *c = &r->curve;
    const bool has = generation == c->generation && from >= 0 && from < c->n;
    ls_jsonw w;
    ls_jsonw_init(&w, out, 0);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_int(&w, "now_unix_ms", ls_unix_ms());
    summary_members(r, &w);
    ls_jsonw_put_real(&w, "read", ls_live_run_read(r));
    ls_jsonw_put_int(&w, "bad_lines", r->n_bad);
    ls_jsonw_put_int(&w, "n_ranks", r->n_rank);
    ls_jsonw_put_open(&w, "ranks", '[');
    for (int i = 0; i < r->n_rank && i < SHOWN_RANKS; i++) rank_members(&r->rank[i], &w);
    ls_jsonw_close(&w);
    events_member(r, &w);
    ls_jsonw_put_open(&w, "validation", '[');
    for (int i = 0; i < r->n_val; i++) {
        ls_jsonw_open(&w, '[');
        ls_jsonw_int(&w, r->val[i].step);
        ls_jsonw_real(&w, r->val[i].loss);
        ls_jsonw_close(&w);
    }
    ls_jsonw_close(&w);
    curves(c, has ? (int)from : 0, out); /* into the same object */
    ls_str_addc(out, '}');
}

/* ---- Prometheus ---- */

/* The value of a label: backslash, quote and line end escaped; bytes that are not UTF-8 become U+FFFD. */
static void label(ls_str *out, const char *name, const char *value)
{
    ls_str_addf(out, "%s=\"", name);
    for (const char *p = value; *p;) {
        uint32_t code;
        const int n = ls_utf8_decode((const unsigned char *)p, 4, &code);
        if (n == 0) {
            ls_str_add(out, "\xef\xbf\xbd");
            p++;
            continue;
        }
        if (*p == '\\' || *p == '"') ls_str_addc(out, '\\');
        if (*p == '\n') ls_str_add(out, "\\n");
        else ls_str_addn(out, p, (size_t)n);
        p += n;
    }
    ls_str_addc(out, '"');
}

static void sample(ls_str *out, const char *name, const ls_live_run *r, const ls_live_rank *k, double value)
{
    if (!isfinite(value)) return; /* not measured: no sample */
    ls_str_addf(out, "%s{", name);
    label(out, "run", r->id);
    if (k) {
        ls_str_addf(out, ",rank=\"%d\",", k->rank);
        label(out, "host", k->host);
    }
    ls_str_addf(out, "} %.15g\n", value);
}

static double known(int64_t v)
{
    return v < 0 ? NAN : (double)v;
}

enum {
    OF_STEP,
    OF_TOTAL,
    OF_TOKENS,
    OF_UPDATED,
    OF_VAL,
    OF_WORLD,
    OF_UP,
    OF_RESTARTING,
    OF_FAILURES,
    OF_RESTARTS,
    OF_AUDITS,
    OF_BAD_AUDITS,
    OF_CURVE
};

static double run_value(const ls_live_run *r, int what)
{
    const ls_live_last *l = &r->last;
    switch (what) {
    case OF_STEP: return known(l->step);
    case OF_TOTAL: return known(l->total_steps);
    case OF_TOKENS: return known(l->step) * known(l->tokens_per_step);
    case OF_UPDATED: return known(l->updated_ms) / 1e3;
    case OF_VAL: return l->val_loss;
    case OF_WORLD: return known(r->world);
    case OF_UP: return r->state == LS_LIVE_RUNNING;
    case OF_RESTARTING: return r->state == LS_LIVE_RESTARTING;
    case OF_FAILURES: return (double)r->seen.failures;
    case OF_RESTARTS: return (double)r->seen.restarts;
    case OF_AUDITS: return (double)r->seen.audits;
    case OF_BAD_AUDITS: return (double)r->seen.bad_audits;
    default: return l->value[what - OF_CURVE];
    }
}

enum { RANK_STEP, RANK_SEEN, RANK_MEMORY, RANK_RSS, RANK_EXPOSED, RANK_TIME, RANK_CPU, RANK_GPU, RANK_POWER };

static double rank_value(const ls_live_rank *k, int what)
{
    switch (what) {
    case RANK_STEP: return known(k->step);
    case RANK_SEEN: return known(k->updated_ms) / 1e3;
    case RANK_MEMORY: return known(k->memory_bytes);
    case RANK_RSS: return known(k->rss_bytes);
    case RANK_EXPOSED: return k->exposed;
    case RANK_TIME: return k->step_time;
    case RANK_CPU: return k->cpu;
    case RANK_GPU: return k->gpu;
    default: return k->power;
    }
}

typedef struct metric {
    const char *name, *type, *help;
    int what;
} metric;

static const metric run_metric[] = {
    {"lockstep_running", "gauge", "1 while the run trains, else 0.", OF_UP},
    {"lockstep_restarting", "gauge", "1 between two attempts of a run, else 0.", OF_RESTARTING},
    {"lockstep_failures", "gauge", "Failures of the run that its supervisor recorded.", OF_FAILURES},
    {"lockstep_restarts", "gauge", "Restarts of the run.", OF_RESTARTS},
    {"lockstep_audits", "gauge", "Audits for silent corruption.", OF_AUDITS},
    {"lockstep_audits_failed", "gauge", "Audits that found a wrong number.", OF_BAD_AUDITS},
    {"lockstep_step", "gauge", "Optimizer steps that are done.", OF_STEP},
    {"lockstep_total_steps", "gauge", "Optimizer steps of the whole run.", OF_TOTAL},
    {"lockstep_tokens", "gauge", "Tokens of the steps that are done.", OF_TOKENS},
    {"lockstep_updated_timestamp_seconds", "gauge", "Time of the last step, seconds since 1970.", OF_UPDATED},
    {"lockstep_workers", "gauge", "Workers of the run.", OF_WORLD},
    {"lockstep_loss", "gauge", "Training loss of the last step.", OF_CURVE + LS_CURVE_LOSS},
    {"lockstep_validation_loss", "gauge", "Loss of the last validation.", OF_VAL},
    {"lockstep_gradient_norm", "gauge", "Gradient norm of the last step, before clipping.", OF_CURVE + LS_CURVE_NORM},
    {"lockstep_learning_rate", "gauge", "Learning rate of the last step.", OF_CURVE + LS_CURVE_LR},
    {"lockstep_tokens_per_second", "gauge", "Tokens per second of the last step, all workers.",
     OF_CURVE + LS_CURVE_RATE},
    {"lockstep_teraflops", "gauge", "TFLOP/s of the last step, all workers.", OF_CURVE + LS_CURVE_TFLOPS},
    {"lockstep_step_seconds", "gauge", "Duration of the last step.", OF_CURVE + LS_CURVE_TIME},
    {"lockstep_exposed_communication_seconds", "gauge",
     "Time in which rank 0 waited for communication in the last step.", OF_CURVE + LS_CURVE_EXPOSED},
    {"lockstep_cpu_utilisation_ratio", "gauge", "CPU time of rank 0 in the last step, as a part of its threads.",
     OF_CURVE + LS_CURVE_CPU},
};

static const metric rank_metric[] = {
    {"lockstep_rank_step", "gauge", "Optimizer steps that are done, by rank.", RANK_STEP},
    {"lockstep_rank_seen_timestamp_seconds", "gauge", "Last sign of life of a rank, seconds since 1970.", RANK_SEEN},
    {"lockstep_rank_memory_bytes", "gauge", "Memory that a rank holds for training, on its device or in host memory.",
     RANK_MEMORY},
    {"lockstep_rank_resident_bytes", "gauge", "Resident host memory of the process of a rank.", RANK_RSS},
    {"lockstep_rank_exposed_communication_seconds", "gauge",
     "Time in which a rank waited for communication in its last step.", RANK_EXPOSED},
    {"lockstep_rank_step_seconds", "gauge", "Duration of the last step of a rank.", RANK_TIME},
    {"lockstep_rank_cpu_utilisation_ratio", "gauge", "CPU time of a rank in its last step, as a part of its threads.",
     RANK_CPU},
    {"lockstep_rank_gpu_utilisation_ratio", "gauge", "Part of the time in which the GPU of a rank was busy.", RANK_GPU},
    {"lockstep_rank_gpu_power_watts", "gauge", "Power of the GPU of a rank.", RANK_POWER},
};

static void head(ls_str *out, const metric *m)
{
    ls_str_addf(out, "# HELP %s %s\n# TYPE %s %s\n", m->name, m->help, m->name, m->type);
}

void ls_answer_prometheus(const ls_live_set *s, ls_str *out)
{
    for (size_t m = 0; m < sizeof run_metric / sizeof *run_metric; m++) {
        head(out, &run_metric[m]);
        for (int i = 0; i < s->n; i++)
            sample(out, run_metric[m].name, s->run[i], NULL, run_value(s->run[i], run_metric[m].what));
    }
    for (size_t m = 0; m < sizeof rank_metric / sizeof *rank_metric; m++) {
        head(out, &rank_metric[m]);
        for (int i = 0; i < s->n; i++) {
            const ls_live_run *r = s->run[i];
            if (r->state != LS_LIVE_RUNNING) continue; /* ranks of an ended run do not exist */
            for (int k = 0; k < r->n_rank; k++)
                sample(out, rank_metric[m].name, r, &r->rank[k], rank_value(&r->rank[k], rank_metric[m].what));
        }
    }
}
