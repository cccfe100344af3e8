/* planner_text.c - prints the ranking as text and as JSON. */
#include "plan/planner.h"

#include "core/argv.h"
#include "comm/launch.h"
#include "core/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define GIB (1024.0 * 1024 * 1024)

static const char *unit_of(const ls_planner_result *r, double *by)
{
    double most = 0;
    for (int i = 0; i < r->n; i++)
        if ((double)r->layout[i].worst.total > most) most = (double)r->layout[i].worst.total;
    *by = most >= 0.5 * GIB ? GIB : GIB / 1024;
    return most >= 0.5 * GIB ? "GiB" : "MiB";
}

void ls_crowd_words(const ls_cluster *cl, int world, char buf[128])
{
    const int on_host = ls_cluster_crowd(cl, world).on_host;
    buf[0] = '\0';
    if (!cl->cpu || on_host <= cl->devices) return;
    snprintf(buf, 128, "%d workers share %d core%s per host: the cores are oversubscribed; more workers do not help",
             on_host, cl->devices, cl->devices == 1 ? "" : "s");
}

/* What train would take on this device without --precision. */
static bool is_default(const ls_planner_query *q, ls_dtype dt)
{
    return dt == ls_precision_dtype(ls_precision_choose(NULL, q->cuda));
}

static void head_of(const ls_cluster *cl, const ls_planner_query *q, ls_str *out)
{
    char size[96], a[32], b[32], kept[96] = "", crowd[128];
    const int64_t have = q->memory ? q->memory : cl->memory, reserve = ls_planner_reserve(q);
    if (reserve)
        snprintf(kept, sizeof kept, ", of which %s are reserved for the CUDA context and libraries",
                 ls_human_bytes(b, (double)reserve));
    ls_str_addf(out,
                "model %s (%s, vocabulary %d), %lld sequences of %d tokens per step, %s, %d worker%s of %s (%s%s%s)\n",
                q->model.name, ls_model_size_words(&q->model, size), q->model.vocab_size, (long long)q->global_batch,
                q->seq_len, ls_precision_word(q->dtype), q->workers, q->workers == 1 ? "" : "s", cl->name,
                ls_human_bytes(a, (double)have), cl->cpu ? " per host" : " per device", kept);
    ls_str_addf(out, "%s\n", cl->source);
    if ((!q->precision_given || (q->precision_auto && !ls_cluster_has_bf16(cl))) && !is_default(q, q->dtype))
        ls_str_addf(out, "--precision %s: %s, because this cluster has no times in %s, %s of train\n",
                    q->precision_auto ? "auto" : "was not given", ls_precision_word(q->dtype),
                    ls_precision_choose(NULL, q->cuda), q->precision_auto ? "the choice" : "the default");
    if (q->batch_chosen)
        ls_str_addf(
            out,
            "--global_batch was not given: %lld sequences (%.3g tokens) per step, one per worker and at least 512\n",
            (long long)q->global_batch, (double)q->global_batch * q->seq_len);
    ls_crowd_words(cl, q->workers, crowd);
    if (crowd[0]) ls_str_addf(out, "%s\n", crowd);
    ls_str_addc(out, '\n');
}

/* Cluster files do not have the size of the host's memory beside GPUs. */
static void host_line(const ls_cluster *cl, const ls_planned *first, ls_str *out)
{
    const int on_host = ls_cluster_crowd(cl, first->cfg.world_size).on_host;
    const double by = 1 << 30, all = (double)first->host_bytes / by;
    ls_str_addf(
        out,
        "  Optimizer state in host memory: %.2f GiB per host in the first layout (%d x %.2f GiB, with gradients and "
        "buffers); not compared with the host's memory, whose size cluster files do not have\n",
        all, on_host, all / on_host);
}

/* Rates of a GPU are those of runs with --dropout 0 and --no_deterministic, neither of which is a default of train. */
static void rates_line(const ls_cluster *cl, const ls_planner_query *q, ls_str *out)
{
    const bool dropout = q->model.attn_pdrop > 0, ordered = !q->no_deterministic;
    if (cl->cpu || cl->n_units || (!dropout && !ordered)) return;
    ls_str_addf(
        out,
        "  times follow from rates for %s%s%s: this run has %s%s%s and may be slower; plan --measure includes it\n",
        dropout ? "--dropout 0" : "", dropout && ordered ? " and " : "", ordered ? "--no_deterministic" : "",
        dropout ? "dropout" : "", dropout && ordered ? " and " : "", ordered ? "one order of sums" : "");
}

static void table(const ls_cluster *cl, const ls_planner_query *q, const ls_planner_result *r, int top, ls_str *out)
{
    double by;
    const char *unit = unit_of(r, &by);
    ls_str_addf(
        out,
        "  #  strategy  dp  pp  tp  schedule        micro x accum   tokens/s     MFU    step s  bubble  exposed   worst worker, %s: param  grad   opt   act  rest shared  total\n",
        unit);
    for (int i = 0; i < r->n_fit && (!top || i < top); i++) {
        const ls_planned *l = &r->layout[i];
        const ls_train_config *c = &l->cfg;
        const int64_t *p = l->worst.part;
        char schedule[40], mfu[16] = "-";
        const double share = ls_planner_totals(cl, q, l).mfu;
        if (share >= 0) snprintf(mfu, sizeof mfu, "%.1f%%", 100 * share);
        snprintf(schedule, sizeof schedule, c->interleave > 1 ? "%.20s x %d" : "%.20s", c->schedule ? c->schedule : "-",
                 c->interleave);
        ls_str_addf(out, "%3d  %-8s %3d %3d %3d  %-15s %5d x %-5d %10.0f  %6s %9.4g  %5.1f%%   %5.1f%%   %*s", i + 1,
                    c->strategy, c->mesh.n[LS_AXIS_DP], c->mesh.n[LS_AXIS_PP], c->mesh.n[LS_AXIS_TP], schedule,
                    c->micro_batch, c->grad_accum, l->time.tokens_per_sec, mfu, l->time.step, 100 * l->time.bubble,
                    100 * l->time.exposed / l->time.step, 18, "");
        for (int k = 0; k < LS_PART_BUCKET; k++) ls_str_addf(out, " %5.2f", (double)p[k] / by);
        int64_t sum = 0;
        for (int k = 0; k < LS_N_PART; k++) sum += p[k];
        const double saved = (double)(sum - l->worst.total) / by;
        ls_str_addf(out, " %5.2f %6.2f %6.2f\n", (double)(p[LS_PART_BUCKET] + p[LS_PART_WORK] + l->comm_bytes) / by,
                    saved < 0.005 ? 0.0 : -saved, (double)(l->worst.total + l->comm_bytes) / by);
    }
    ls_str_addf(out, "  shared: memory of buffers that are never in use together%s\n",
                cl->cpu ? "" : "; rest and total include the buffers for sums over NCCL");
    rates_line(cl, q, out);
    if (q->offload) host_line(cl, &r->layout[0], out);
    if (top && r->n_fit > top) ls_str_addf(out, "  … and %d more that fit (--all)\n", r->n_fit - top);
}

static void others(const ls_planner_result *r, int top, ls_str *out)
{
    char words[96];
    const int n = r->n - r->n_fit, shown = top && n > 5 ? 5 : n;
    if (n)
        ls_str_addf(out, "\n%d layout%s do%s not fit%s\n", n, n == 1 ? "" : "s", n == 1 ? "es" : "",
                    shown < n ? "; those that need least:" : ":");
    for (int i = r->n_fit; i < r->n_fit + shown; i++) {
        ls_planned_words(&r->layout[i].cfg, words);
        ls_str_addf(out, "  %s: %s\n", words, r->layout[i].why);
    }
    if (r->n_slow)
        ls_str_addf(out,
                    "\n%d layout%s not evaluated: a lower bound of the step time is above the layouts in the table\n",
                    r->n_slow, r->n_slow == 1 ? " was" : "s were");
    if (r->no_dp)
        ls_str_add(
            out,
            "\ndp is not ranked on several hosts: one worker updates all parameters and its communication is never "
            "hidden; --strategy dp evaluates it\n");
    if (!r->n_bad) return;
    ls_str_addf(out, "\n%d combination%s not possible:\n", r->n_bad, r->n_bad == 1 ? "" : "s");
    for (size_t k = 0; k < sizeof r->bad / sizeof r->bad[0] && r->bad[k][0]; k++) ls_str_addf(out, "  %s\n", r->bad[k]);
}

/* Appends an argument, quoted for the shell. */
static void add_word(const char *flag, const char *word, ls_str *out)
{
    ls_str_addf(out, " %s %s", flag, ls_quoted(word).text);
}

/* `-n` starts the workers of one host, and at most LS_LAUNCH_MOST; launchers start those of several. */
static void command(const ls_cluster *cl, const ls_planner_query *q, const ls_planned *l, ls_str *out)
{
    const ls_train_config *c = &l->cfg;
    const int W = c->world_size, on_host = ls_cluster_crowd(cl, W).on_host;
    const bool launcher = W > on_host || W > LS_LAUNCH_MOST;
    if (launcher) ls_str_addf(out, "mpirun -np %d ", W);
    ls_str_add(out, "lockstep train");
    add_word("--data", q->data ? q->data : "DIR", out);
    add_word("--model", q->from ? q->from : q->model.name, out);
    ls_str_addf(out, " --seq_length %d --micro_batch_size_per_gpu %d --grad_accum_steps %d", q->seq_len, c->micro_batch,
                c->grad_accum);
    ls_str_addf(out, " --device %s", cl->cpu ? "cpu" : "cuda");
    if (q->precision_given || !is_default(q, c->dtype)) ls_str_addf(out, " --precision %s", c->precision);
    if (q->no_deterministic) ls_str_add(out, " --no_deterministic");
    if (q->vocab_given) ls_str_addf(out, " --vocab_size %d", q->model.vocab_size);
    if (q->dropout_given) ls_str_addf(out, " --dropout %g", q->model.attn_pdrop);
    if (W > 1 && !launcher) ls_str_addf(out, " -n %d", W);
    if (W > 1) ls_str_addf(out, " --strategy %s", c->strategy);
    if (c->schedule) ls_str_addf(out, " --pp %d --schedule %s", c->mesh.n[LS_AXIS_PP], c->schedule);
    if (c->mesh.n[LS_AXIS_TP] > 1) ls_str_addf(out, " --tp %d", c->mesh.n[LS_AXIS_TP]);
    if (c->interleave > 1) ls_str_addf(out, " --interleave %d", c->interleave);
    if (c->recompute) ls_str_add(out, " --recompute");
    if (c->offload) ls_str_add(out, " --offload_optimizer cpu");
    const bool reduces =
        strcmp(c->strategy, "single") && strcmp(c->strategy, "dp"); /* train refuses what it would not use */
    if (reduces && (q->bucket || (W > 1 && c->bucket != (q->cuda ? LS_BUCKET_GPU : LS_BUCKET))))
        ls_str_addf(out, " --bucket %lld", (long long)c->bucket);
    if (c->gather_bucket != LS_GATHER_BUCKET) ls_str_addf(out, " --gather_bucket %lld", (long long)c->gather_bucket);
    if (q->mtbf > 0) {
        const ls_failures f = ls_planner_failures(cl, q, l);
        ls_str_addf(out, " --save_every %lld", (long long)ls_goodput_best(&f).steps);
    }
    if (q->model.variant != LS_VARIANT_HF) ls_str_addf(out, " --variant %s", ls_variant_word(q->model.variant));
}

enum { SIM_SEED = 1 };

static void failures(const ls_cluster *cl, const ls_planner_query *q, const ls_planned *l, const ls_plan_totals *t,
                     ls_str *out)
{
    const ls_failures f = ls_planner_failures(cl, q, l);
    const ls_goodput g = ls_goodput_best(&f);
    char size[32];
    ls_str_addf(
        out,
        "failures: a node fails once in %.4g hours, one of %d node%s once in %.4g hours; a checkpoint (%s) takes %.3g s at %.4g GB/s, "
        "a restart %.4g s\n",
        f.mtbf / 3600, f.hosts, f.hosts == 1 ? "" : "s", g.mtbf / 3600,
        ls_human_bytes(size, (double)ls_planner_checkpoint_bytes(&l->cfg.model)), f.checkpoint,
        q->checkpoint_bandwidth / 1e9, f.restart);
    if (g.goodput < LS_GOODPUT_LEAST) {
        ls_str_addf(
            out,
            "  the run does not progress: a failure comes once in %.3g s, and %.3g s without one are needed for a restart, a step and a "
            "checkpoint (goodput below %g %%); use fewer nodes, a shorter --restart_time or a higher --checkpoint_bandwidth\n",
            g.mtbf, f.restart + f.step + f.checkpoint, 100 * LS_GOODPUT_LEAST);
        return;
    }
    ls_str_addf(out, "  best checkpoint interval: %lld steps = %.4g minutes (first order, Young: %.4g minutes)\n",
                (long long)g.steps, (double)g.steps * f.step / 60, g.young / 60);
    ls_str_addf(
        out,
        "  goodput %.2f %% (event simulation: %.2f %%); checkpoints take %.2f %%, repeated steps and restarts %.2f %%\n",
        100 * g.goodput, 100 * ls_goodput_simulate(&f, g.steps, SIM_SEED), 100 * g.checkpoints, 100 * g.lost);
    if (isnan(t->seconds)) return;
    ls_str_addf(out,
                "  %.4g tokens: %.4g hours of steps, %.4g hours expected in all, with %.4g failures; %.4g hours lost\n",
                q->tokens, t->seconds / 3600, t->elapsed / 3600, t->elapsed / g.mtbf, (t->elapsed - t->seconds) / 3600);
}

/* MFU of the best layout, and time and energy of the whole training if requested. */
static void totals(const ls_cluster *cl, const ls_planner_query *q, const ls_planned *l, ls_str *out)
{
    const ls_plan_totals t = ls_planner_totals(cl, q, l);
    const int W = l->cfg.world_size;
    if (t.mfu >= 0)
        ls_str_addf(out, "MFU %.1f %% of %g TFLOP/s per device (%s, dense peak)\n", 100 * t.mfu,
                    ls_cluster_peak(cl, l->cfg.dtype) / 1e12, ls_precision_word(l->cfg.dtype));
    if (q->mtbf > 0) failures(cl, q, l, &t, out);
    if (t.goodput < LS_GOODPUT_LEAST) return; /* it never ends */
    if (q->price > 0 && isnan(t.cost))
        ls_str_addf(out, "cost %.4g per hour, %.4g per 1e9 tokens (%d x %g per hour)\n", q->price * W,
                    q->price * W / 3600 * 1e9 / l->time.tokens_per_sec, W, q->price);
    if (isnan(t.seconds)) return;
    ls_str_addf(out, "%.4g tokens: %.4g hours", q->tokens, t.elapsed / 3600);
    if (q->mtbf > 0) ls_str_addf(out, " with failures");
    if (t.cost >= 0) ls_str_addf(out, ", cost %.4g (%d x %g per hour)", t.cost, W, q->price);
    if (t.kwh >= 0)
        ls_str_addf(out,
                    ", %.4g kWh (estimate: %d x %g W, the board power limit, throughout; without hosts and cooling)\n",
                    t.kwh, W, cl->power);
    else ls_str_addf(out, "; energy unknown: cluster %s has no power_watts\n", cl->name);
}

/* Sentences, indented. */
static void lines(const char *head, const ls_str *text, ls_str *out)
{
    if (!text->len) return;
    ls_str_addf(out, "\n%s\n", head);
    for (const char *p = text->data, *end; (end = strchr(p, '\n')); p = end + 1)
        ls_str_addf(out, "  %.*s\n", (int)(end - p), p);
}

void ls_planner_text(const ls_cluster *cl, const ls_planner_query *q, const ls_planner_result *r, int top, ls_str *out)
{
    head_of(cl, q, out);
    if (r->n_fit) {
        table(cl, q, r, top, out);
        ls_str_add(out, "\nbest: ");
        command(cl, q, &r->layout[0], out);
        ls_str_addc(out, '\n');
        totals(cl, q, &r->layout[0], out);
    } else {
        ls_str_add(out, "no layout fits.\n");
    }
    ls_str why = {0}, change = {0};
    ls_planner_explain(r, &why);
    ls_planner_advise(cl, q, r, &change);
    lines("why the first layout is the fastest:", &why, out);
    lines("what to change:", &change, out);
    ls_str_fini(&why);
    ls_str_fini(&change);
    others(r, top, out);
}

static void json_lines(ls_jsonw *w, const char *key, ls_str *text)
{
    ls_jsonw_put_open(w, key, '[');
    for (char *p = text->data, *end; text->len && (end = strchr(p, '\n')); p = end + 1) {
        *end = '\0';
        ls_jsonw_str(w, p);
    }
    ls_jsonw_close(w);
    ls_str_fini(text);
}

static void json_failures(ls_jsonw *w, const ls_cluster *cl, const ls_planner_query *q, const ls_planned *l)
{
    const ls_failures f = ls_planner_failures(cl, q, l);
    const ls_goodput g = ls_goodput_best(&f);
    const ls_plan_totals t = ls_planner_totals(cl, q, l);
    ls_jsonw_put_open(w, "failures", '{');
    ls_jsonw_members(
        w, LS_KV("node_mtbf_hours", f.mtbf / 3600), LS_KV("nodes", f.hosts), LS_KV("mtbf_hours", g.mtbf / 3600),
        LS_KV("checkpoint_bytes", ls_planner_checkpoint_bytes(&l->cfg.model)), LS_KV("checkpoint_sec", f.checkpoint),
        LS_KV("restart_sec", f.restart), LS_KV("interval_steps", g.steps),
        LS_KV("interval_sec", (double)g.steps * f.step), LS_KV("interval_young_sec", g.young),
        LS_KV("interval_exact_sec", g.best), LS_KV("goodput", g.goodput),
        LS_KV("goodput_simulated", ls_goodput_simulate(&f, g.steps, SIM_SEED)),
        LS_KV("checkpoint_share", g.checkpoints), LS_KV("lost_share", g.lost),
        LS_KV("expected_failures", t.elapsed / g.mtbf), LS_KV("lost_hours", (t.elapsed - t.seconds) / 3600));
    ls_jsonw_close(w);
}

static void memory(ls_jsonw *w, const ls_planned *l)
{
    ls_jsonw_put_open(w, "memory", '{');
    ls_jsonw_put_int(w, "worst_rank", l->worst_rank);
    for (int p = 0; p < LS_N_PART; p++) ls_jsonw_put_int(w, ls_part_word((ls_part)p), l->worst.part[p]);
    ls_jsonw_put_int(w, "planned", l->worst.total);
    ls_jsonw_key(w, "host");
    if (l->host_bytes) ls_jsonw_int(w, l->host_bytes);
    else ls_jsonw_null(w);
    ls_jsonw_put_int(w, "comm", l->comm_bytes);
    ls_jsonw_close(w);
}

static void layout(ls_jsonw *w, const ls_cluster *cl, const ls_planner_query *q, const ls_planned *l)
{
    const ls_train_config *c = &l->cfg;
    const ls_prediction *t = &l->time;
    const ls_plan_totals all = ls_planner_totals(cl, q, l);
    ls_str words = {0};
    ls_jsonw_open(w, '{');
    ls_jsonw_members(w, LS_KV("strategy", c->strategy), LS_KV("dp", c->mesh.n[LS_AXIS_DP]),
                     LS_KV("pp", c->mesh.n[LS_AXIS_PP]), LS_KV("tp", c->mesh.n[LS_AXIS_TP]),
                     LS_KV("schedule", c->schedule), LS_KV("interleave", c->interleave),
                     LS_KV("micro_batch", c->micro_batch), LS_KV("grad_accum", c->grad_accum), LS_KV("fits", l->fits));
    if (!l->fits) ls_jsonw_put_str(w, "why", l->why);
    ls_jsonw_members(w, LS_KV("tokens_per_sec", t->tokens_per_sec), LS_KV("mfu", all.mfu),
                     LS_KV("hours", all.seconds / 3600), LS_KV("hours_expected", all.elapsed / 3600),
                     LS_KV("energy_kwh", all.kwh), LS_KV("cost", all.cost), LS_KV("step_sec", t->step),
                     LS_KV("forward_sec", t->forward), LS_KV("backward_sec", t->backward),
                     LS_KV("exposed_comm_sec", t->exposed), LS_KV("optimizer_sec", t->optimizer),
                     LS_KV("other_sec", t->other), LS_KV("comm_sec", t->comm), LS_KV("bubble", t->bubble));
    memory(w, l);
    command(cl, q, l, &words);
    ls_jsonw_put_str(w, "command", words.data);
    ls_str_fini(&words);
    ls_jsonw_close(w);
}

void ls_planner_json(const ls_cluster *cl, const ls_planner_query *q, const ls_planner_result *r, int top, ls_str *out)
{
    const double peak = ls_cluster_peak(cl, q->dtype);
    ls_jsonw w;
    ls_jsonw_init(&w, out, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_members(&w, LS_KV("model", q->model.name), LS_KV("vocab_size", q->model.vocab_size),
                     LS_KV("global_batch", q->global_batch), LS_KV("seq_length", q->seq_len),
                     LS_KV("workers", q->workers), LS_KV("precision", ls_precision_word(q->dtype)),
                     LS_KV("tokens", q->tokens > 0 ? q->tokens : NAN),
                     LS_KV("power_watts", cl->power > 0 ? cl->power : NAN), LS_KV("peak_flops", peak > 0 ? peak : NAN));
    if (cl->cpu)
        ls_jsonw_put_real(&w, "workers_per_core", (double)ls_cluster_crowd(cl, q->workers).on_host / cl->devices);
    ls_jsonw_members(&w, LS_KV("cluster", cl->name), LS_KV("source", cl->source),
                     LS_KV("memory_bytes", q->memory ? q->memory : cl->memory),
                     LS_KV("reserved_bytes", ls_planner_reserve(q)),
                     LS_KV("working_space_by", !q->cuda ? "cpu"
                                               : q->gpu ? "this machine's GPU"
                                                        : "formulas, without cuDNN"),
                     LS_KV("fit", r->n_fit), LS_KV("do_not_fit", r->n - r->n_fit), LS_KV("not_evaluated", r->n_slow),
                     LS_KV("cannot_be", r->n_bad));
    ls_jsonw_put_open(&w, "layouts", '[');
    for (int i = 0; i < r->n && (!top || i < top); i++) layout(&w, cl, q, &r->layout[i]);
    ls_jsonw_close(&w);
    ls_str why = {0}, change = {0};
    ls_planner_explain(r, &why);
    ls_planner_advise(cl, q, r, &change);
    json_lines(&w, "why", &why);
    json_lines(&w, "what_to_change", &change);
    if (q->mtbf > 0 && r->n_fit) json_failures(&w, cl, q, &r->layout[0]);
    ls_jsonw_put_open(&w, "reasons", '[');
    for (size_t k = 0; k < sizeof r->bad / sizeof r->bad[0] && r->bad[k][0]; k++) ls_jsonw_str(&w, r->bad[k]);
    ls_jsonw_close(&w);
    ls_jsonw_close(&w);
    ls_str_addc(out, '\n');
}
