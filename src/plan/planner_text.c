/* planner_text.c - prints the ranking as text and as JSON. */
#include "plan/planner_impl.h"

#include "core/argv.h"
#include "comm/launch.h"
#include "core/progress.h"
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
    const bool chosen = !q->precision_given || (q->precision_auto && !ls_cluster_has_bf16(cl));
    const ls_card *lacks = ls_cluster_lacks(cl, LS_BF16);
    if (chosen && lacks)
        ls_str_addf(out, "--precision %s: %s, because %s cards (compute capability %d.%d) have no bf16\n",
                    q->precision_auto ? "auto" : "was not given", ls_precision_word(q->dtype), lacks->name,
                    cl->capability / 10, cl->capability % 10);
    else if (chosen && !is_default(q, q->dtype))
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
        "Optimizer state in host memory: %.2f GiB per host in the first layout (%d x %.2f GiB, with gradients and "
        "buffers); not compared with the host's memory, whose size cluster files do not have\n",
        all, on_host, all / on_host);
}

/* What the times include, and what the cluster does not know. */
static void rates_line(const ls_cluster *cl, const ls_planner_query *q, ls_str *out)
{
    const bool dropout = q->model.attn_pdrop > 0;
    if (q->dropout_unknown || q->order_unknown)
        ls_str_addf(out,
                    "Cluster %s has no times with %s: times, memory and the command are those of %s%s%s. %s has them "
                    "(or %s%s%s under rates.%s).\n",
                    cl->name,
                    !q->order_unknown     ? "dropout"
                    : !q->dropout_unknown ? "one order of sums"
                                          : "dropout and one order of sums",
                    q->dropout_unknown ? "--dropout 0" : "", q->dropout_unknown && q->order_unknown ? " and " : "",
                    q->order_unknown ? "--no_deterministic" : "", "plan --measure",
                    q->dropout_unknown ? "attention_dropout_flops" : "",
                    q->dropout_unknown && q->order_unknown ? ", " : "",
                    q->order_unknown ? "attention_ordered_flops" : "", ls_precision_word(q->dtype));
    if (!dropout && !ls_cluster_knows_dropout(cl, q->dtype, false))
        ls_str_add(out, "Times were measured with dropout: without it the run is faster.\n");
    const ls_cluster_rates *r = &cl->rates[ls_precision_index(q->dtype)];
    if (r->matmul > 0 && r->dropout == r->matmul) /* a whole run was fitted */
        ls_str_add(
            out,
            "Times are those of a published PyTorch run on this card, with dropout and attention of several kernels "
            "(docs/PLAN.md); this program was not timed on it.\n");
    else if (!cl->cpu && !cl->n_units && (dropout || !q->no_deterministic) && !q->order_unknown)
        ls_str_addf(out,
                    "Times include %s%s%s: attention takes what it took on an H200 in proportion (docs/PLAN.md).\n",
                    dropout ? "dropout" : "", dropout && !q->no_deterministic ? " and " : "",
                    q->no_deterministic ? "" : "one order of sums");
}

/* No layout is both faster and smaller. */
static bool on_frontier(const ls_planner_result *r, int i)
{
    for (int j = 0; j < i; j++)
        if (planner_need(&r->layout[j]) <= planner_need(&r->layout[i])) return false;
    return i < r->n_fit;
}

/* The next layout of at most three quarters of the memory of layout i and at most 5 % slower than the first; 0: none. */
static int roomier(const ls_planner_result *r, int i)
{
    const double most = 0.75 * (double)planner_need(&r->layout[i]);
    for (int j = i + 1; j < r->n_fit && r->layout[j].time.step <= 1.05 * r->layout[0].time.step; j++)
        if ((double)planner_need(&r->layout[j]) <= most) return j;
    return 0;
}

enum { N_CELL = 12 };
typedef char cell[40];

static void row_of(const ls_cluster *cl, const ls_planner_query *q, const ls_planner_result *r, int i, double by,
                   cell to[N_CELL])
{
    const ls_planned *l = &r->layout[i];
    const ls_train_config *c = &l->cfg;
    const double mfu = ls_planner_totals(cl, q, l).mfu;
    snprintf(to[0], sizeof(cell), "%d", i + 1);
    snprintf(to[1], sizeof(cell), "%s", on_frontier(r, i) ? "*" : "");
    snprintf(to[2], sizeof(cell), "%s", c->strategy);
    for (int k = 0; k < 3; k++)
        snprintf(to[3 + k], sizeof(cell), "%d", c->mesh.n[(ls_axis[]){LS_AXIS_DP, LS_AXIS_PP, LS_AXIS_TP}[k]]);
    snprintf(to[6], sizeof(cell), c->interleave > 1 ? "%.20s x%d" : "%.20s", c->schedule ? c->schedule : "-",
             c->interleave);
    snprintf(to[7], sizeof(cell), "%d x %d", c->micro_batch, c->grad_accum);
    if (r->layout[0].time.tokens_per_sec < 1e7) planner_rate_words(to[8], l->time.tokens_per_sec);
    else snprintf(to[8], sizeof(cell), "%.4gM", l->time.tokens_per_sec / 1e6);
    snprintf(to[9], sizeof(cell), mfu >= 0 ? "%.1f" : "-", 100 * mfu);
    snprintf(to[10], sizeof(cell), "%.1f", 100 * l->time.exposed / l->time.step);
    snprintf(to[11], sizeof(cell), "%.1f", (double)planner_need(l) / by);
}

static void print_row(cell row[N_CELL], const size_t width[N_CELL], ls_str *out)
{
    for (int k = 0; k < N_CELL; k++) {
        const bool left = k == 2 || k == 6; /* words */
        ls_str_addf(out, "%s%*s", k > 1 ? " " : "", left ? -(int)width[k] : (int)width[k], row[k]);
    }
    ls_str_addc(out, '\n');
}

static void table(const ls_cluster *cl, const ls_planner_query *q, const ls_planner_result *r, int top, ls_str *out)
{
    double by;
    const char *unit = unit_of(r, &by);
    const int n = top && r->n_fit > top ? top : r->n_fit;
    cell head[N_CELL] = {"#",           "",         "strategy", "dp",     "pp", "tp", "schedule",
                         "micro x acc", "tokens/s", "MFU %",    "wait %", ""},
         row[N_CELL];
    size_t width[N_CELL] = {0};
    snprintf(head[11], sizeof(cell), "%s", unit);
    for (int i = -1; i < n; i++) {
        if (i >= 0) row_of(cl, q, r, i, by, row);
        for (int k = 0; k < N_CELL; k++)
            width[k] = strlen((i < 0 ? head : row)[k]) > width[k] ? strlen((i < 0 ? head : row)[k]) : width[k];
    }
    print_row(head, width, out);
    for (int i = 0; i < n; i++) {
        row_of(cl, q, r, i, by, row);
        print_row(row, width, out);
    }
    if (n < r->n_fit) ls_str_addf(out, "… and %d more that fit (--all)\n", r->n_fit - n);
    ls_str_addf(out, "\n%s of the worst worker:\n  #  param   grad    opt    act   rest  shared   total\n", unit);
    for (int i = 0, at = 1; at; i = at) {
        const ls_planned *l = &r->layout[i];
        const int64_t *p = l->worst.part;
        int64_t sum = 0;
        for (int k = 0; k < LS_N_PART; k++) sum += p[k];
        const double saved = (double)(sum - l->worst.total) / by;
        ls_str_addf(out, "%3d", i + 1);
        for (int k = 0; k < LS_PART_BUCKET; k++) ls_str_addf(out, " %6.2f", (double)p[k] / by);
        ls_str_addf(out, " %6.2f %7.2f %7.2f\n", (double)(p[LS_PART_BUCKET] + p[LS_PART_WORK] + l->comm_bytes) / by,
                    saved < 0.005 ? 0.0 : -saved, (double)planner_need(l) / by);
        at = roomier(r, i);
    }
}

/* How far predictions were from runs (docs/PLAN.md). */
static const char *error_of(const ls_cluster *cl, int workers)
{
    if (workers > ls_cluster_crowd(cl, workers).on_host) return "not compared with runs on several hosts";
    if (cl->n_units) return "predictions from measured times were at most 7 % off in 50 runs on quiet machines";
    if (!strcmp(cl->name, "h200"))
        return workers > 1 ? "not compared with runs on several GPUs; at most 7 % off in 14 cases on one H200"
                           : "at most 7 % off in 14 cases on one H200";
    return "this cluster was not compared with runs of this program; others were 1 to 15 % off";
}

/* What the columns mean, which layouts leave room, how far a prediction may be off. */
static void notes(const ls_cluster *cl, const ls_planner_query *q, const ls_planner_result *r, ls_str *out)
{
    double by;
    char words[96];
    const char *unit = unit_of(r, &by);
    ls_str_add(out, "micro x acc: micro-batch x accumulation; wait: communication and other stages, of the step; "
                    "shared: buffers that are never in use together; rest and total include sums over NCCL.\n"
                    "*: no layout is both faster and smaller.");
    for (int i = roomier(r, 0), first = 1; i; i = roomier(r, i), first = 0) {
        const ls_planned *l = &r->layout[i];
        ls_planned_words(&l->cfg, words);
        ls_str_addf(out, " Rank %d (%s%s) needs %.1f %s", i + 1, words,
                    q->top && i >= q->top ? "; its row with --all" : "", (double)planner_need(l) / by, unit);
        if (first) ls_str_addf(out, " instead of %.1f", (double)planner_need(&r->layout[0]) / by);
        ls_str_addf(out, " and is %.1f %% slower.", 100 * (l->time.step / r->layout[0].time.step - 1));
    }
    ls_str_addf(out, "\nError: %s. A difference of less than 5 %% decides nothing.\n", error_of(cl, q->workers));
    rates_line(cl, q, out);
    if (q->offload) host_line(cl, &r->layout[0], out);
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
    ls_str_addf(out, "\n%d combination%s not possible; reasons:\n", r->n_bad, r->n_bad == 1 ? "" : "s");
    for (size_t k = 0; k < sizeof r->bad / sizeof r->bad[0] && r->bad[k][0]; k++) ls_str_addf(out, "  %s\n", r->bad[k]);
}

#define UNIT "\x1f" /* before each part of a command that stays on one line */

/* How the workers start. */
typedef enum form { FORM_HERE, FORM_LAUNCH, FORM_MPIRUN, FORM_SRUN, N_FORM } form;
static const char *const form_words[] = {"on one host", "over ssh, with the names of the hosts for A,B",
                                         "with Open MPI", "in a Slurm job"};

/* The start of the command; false if workers of this layout are not started so. `-n` starts those of one host, at most LS_LAUNCH_MOST. */
static bool start(const ls_cluster *cl, const ls_planned *l, form f, ls_str *out)
{
    enum { NAMES = 8 };
    const int W = l->cfg.world_size, each = ls_cluster_crowd(cl, W).on_host, H = (W + each - 1) / each;
    if (f == FORM_HERE) return H == 1 && W <= LS_LAUNCH_MOST;
    if (W == 1 || (f == FORM_LAUNCH && H == 1)) return false;
    if (f == FORM_LAUNCH) ls_str_add(out, "lockstep launch" UNIT);
    else if (f == FORM_MPIRUN) ls_str_addf(out, "mpirun -np %d" UNIT, W);
    else ls_str_addf(out, "srun --nodes %d --ntasks %d --ntasks-per-node %d --mpi=pmix" UNIT, H, W, each);
    if (f == FORM_SRUN) return true;
    if (H > NAMES) ls_str_add(out, "--hostfile HOSTS" UNIT);
    else if (H > 1) ls_str_add(out, f == FORM_LAUNCH ? "--hosts " : "-H ");
    for (int h = 0; h < H && H > 1 && H <= NAMES; h++)
        ls_str_addf(out, "%s%c:%d%s", h ? "," : "", 'A' + h, h < H - 1 ? each : W - h * each, h < H - 1 ? "" : UNIT);
    if (f == FORM_LAUNCH && H > NAMES) ls_str_addf(out, "-n %d" UNIT, W);
    if (f == FORM_LAUNCH) ls_str_add(out, "--" UNIT);
    return true;
}

/* The command that runs the layout; false if it is not started so. columns: lines of at most so many, which the shell joins; 0: one line. */
static bool command(const ls_cluster *cl, const ls_planner_query *q, const ls_planned *l, form f, int columns,
                    ls_str *out)
{
    const ls_train_config *c = &l->cfg;
    const int W = c->world_size;
    ls_str s = {0};
    if (!start(cl, l, f, &s)) return false;
    ls_str_addf(&s, f == FORM_LAUNCH ? "train" : "lockstep train");
    ls_str_addf(&s, UNIT "--data %s", ls_quoted(q->data ? q->data : "DIR").text);
    ls_str_addf(&s, UNIT "--model %s", ls_quoted(q->from ? q->from : q->model.name).text);
    ls_str_addf(&s, UNIT "--seq_length %d" UNIT "--micro_batch_size_per_gpu %d" UNIT "--grad_accum_steps %d",
                q->seq_len, c->micro_batch, c->grad_accum);
    ls_str_addf(&s, UNIT "--device %s", cl->cpu ? "cpu" : "cuda");
    if (q->precision_given || !is_default(q, c->dtype)) ls_str_addf(&s, UNIT "--precision %s", c->precision);
    if (q->no_deterministic) ls_str_add(&s, UNIT "--no_deterministic");
    if (q->vocab_given) ls_str_addf(&s, UNIT "--vocab_size %d", q->model.vocab_size);
    if (q->dropout_given) ls_str_addf(&s, UNIT "--dropout %g", q->model.attn_pdrop);
    if (W > 1 && f == FORM_HERE) ls_str_addf(&s, UNIT "-n %d", W);
    if (W > 1) ls_str_addf(&s, UNIT "--strategy %s", c->strategy);
    if (c->schedule) ls_str_addf(&s, UNIT "--pp %d" UNIT "--schedule %s", c->mesh.n[LS_AXIS_PP], c->schedule);
    if (c->mesh.n[LS_AXIS_TP] > 1) ls_str_addf(&s, UNIT "--tp %d", c->mesh.n[LS_AXIS_TP]);
    if (c->interleave > 1) ls_str_addf(&s, UNIT "--interleave %d", c->interleave);
    if (c->recompute) ls_str_add(&s, UNIT "--recompute");
    if (c->offload) ls_str_add(&s, UNIT "--offload_optimizer cpu");
    const bool reduces =
        strcmp(c->strategy, "single") && strcmp(c->strategy, "dp"); /* train refuses what it would not use */
    if (reduces && (q->bucket || (W > 1 && c->bucket != (q->cuda ? LS_BUCKET_GPU : LS_BUCKET))))
        ls_str_addf(&s, UNIT "--bucket %lld", (long long)c->bucket);
    if (c->gather_bucket != LS_GATHER_BUCKET) ls_str_addf(&s, UNIT "--gather_bucket %lld", (long long)c->gather_bucket);
    if (q->mtbf > 0) {
        const ls_failures x = ls_planner_failures(cl, q, l);
        ls_str_addf(&s, UNIT "--save_every %lld", (long long)ls_goodput_best(&x).steps);
    }
    if (q->model.variant != LS_VARIANT_HF) ls_str_addf(&s, UNIT "--variant %s", ls_variant_word(q->model.variant));
    size_t at = 2;
    for (const char *p = s.failed ? "" : s.data; *p;) {
        const size_t n = strcspn(p, UNIT);
        const bool more = p[n] != '\0', breaks = columns && p != s.data && at + 1 + n + 2 > (size_t)columns;
        ls_str_addf(out, "%s%.*s", p == s.data ? "" : breaks ? " \\\n      " : " ", (int)n, p);
        at = breaks ? 6 + n : at + (p != s.data) + n;
        p += n + more;
    }
    ls_str_fini(&s);
    return true;
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
    char a[40], b[40];
    if (t.mfu >= 0)
        ls_str_addf(out, "MFU %.1f %% of %g TFLOP/s per device (%s, dense peak)\n", 100 * t.mfu,
                    ls_cluster_peak(cl, l->cfg.dtype) / 1e12, ls_precision_word(l->cfg.dtype));
    if (q->mtbf > 0) failures(cl, q, l, &t, out);
    if (t.goodput < LS_GOODPUT_LEAST) return; /* it never ends */
    if (q->price > 0 && isnan(t.cost))
        ls_str_addf(out,
                    "cost, in the currency of --price: %s per hour, %s per 1e9 tokens (%d devices x %g per hour)\n",
                    ls_number_text(a, q->price * W, 2),
                    ls_number_text(b, q->price * W / 3600 * 1e9 / l->time.tokens_per_sec, 2), W, q->price);
    if (isnan(t.seconds)) return;
    ls_str_addf(out, "%.4g tokens: %.4g hours", q->tokens, t.elapsed / 3600);
    if (q->mtbf > 0) ls_str_addf(out, " with failures");
    if (t.cost >= 0)
        ls_str_addf(out, ", cost %s in the currency of --price (%d devices x %g per hour)",
                    ls_number_text(a, t.cost, 0), W, q->price);
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

void ls_planner_text(const ls_cluster *cl, const ls_planner_query *q, const ls_planner_result *r, int top, int columns,
                     ls_str *out)
{
    ls_str text = {0}, why = {0}, change = {0};
    head_of(cl, q, &text);
    if (r->n_fit) {
        const ls_planned *best = &r->layout[0];
        char words[96];
        table(cl, q, r, top, &text);
        notes(cl, q, r, &text);
        ls_planned_words(&best->cfg, words);
        ls_str_addf(&text, "\nbest: %s\n", words);
        ls_progress_wrap(text.failed ? "" : text.data, columns, out);
        text.len = 0;
        for (form f = FORM_HERE; f < N_FORM; f++) {
            ls_str line = {0};
            if (command(cl, q, best, f, columns, &line) && line.data)
                ls_str_addf(out, "%s:\n  %s\n", best->cfg.world_size > 1 ? form_words[f] : "run it with", line.data);
            ls_str_fini(&line);
        }
        ls_str_addc(&text, '\n');
        totals(cl, q, best, &text);
    } else {
        ls_str_add(&text, "no layout fits.\n");
    }
    ls_planner_explain(r, &why);
    ls_planner_advise(cl, q, r, &change);
    lines("why the first layout is the fastest:", &why, &text);
    lines(r->n_fit ? "what to change:" : "what makes it fit, the fastest first (add the option):", &change, &text);
    others(r, top, &text);
    ls_str_addf(&text, "\nsource of the figures of %s: %s\n", cl->name, cl->source);
    ls_progress_wrap(text.failed ? "" : text.data, columns, out);
    out->failed |= text.failed;
    ls_str_fini(&text);
    ls_str_fini(&why);
    ls_str_fini(&change);
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

static void layout(ls_jsonw *w, const ls_cluster *cl, const ls_planner_query *q, const ls_planned *l, bool frontier)
{
    const ls_train_config *c = &l->cfg;
    const ls_prediction *t = &l->time;
    const ls_plan_totals all = ls_planner_totals(cl, q, l);
    ls_str words = {0};
    ls_jsonw_open(w, '{');
    ls_jsonw_members(w, LS_KV("strategy", c->strategy), LS_KV("dp", c->mesh.n[LS_AXIS_DP]),
                     LS_KV("pp", c->mesh.n[LS_AXIS_PP]), LS_KV("tp", c->mesh.n[LS_AXIS_TP]),
                     LS_KV("schedule", c->schedule), LS_KV("interleave", c->interleave),
                     LS_KV("micro_batch", c->micro_batch), LS_KV("grad_accum", c->grad_accum), LS_KV("fits", l->fits),
                     LS_KV("frontier", frontier));
    if (!l->fits) ls_jsonw_put_str(w, "why", l->why);
    ls_jsonw_members(w, LS_KV("tokens_per_sec", t->tokens_per_sec), LS_KV("mfu", all.mfu),
                     LS_KV("hours", all.seconds / 3600), LS_KV("hours_expected", all.elapsed / 3600),
                     LS_KV("energy_kwh", all.kwh), LS_KV("cost", all.cost), LS_KV("step_sec", t->step),
                     LS_KV("forward_sec", t->forward), LS_KV("backward_sec", t->backward),
                     LS_KV("exposed_comm_sec", t->exposed), LS_KV("optimizer_sec", t->optimizer),
                     LS_KV("other_sec", t->other), LS_KV("comm_sec", t->comm), LS_KV("bubble", t->bubble));
    memory(w, l);
    for (form f = FORM_HERE; f < N_FORM && !command(cl, q, l, f, 0, &words);) f++;
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
    for (int i = 0; i < r->n && (!top || i < top); i++) layout(&w, cl, q, &r->layout[i], on_frontier(r, i));
    ls_jsonw_close(&w);
    ls_jsonw_put_open(&w, "commands", '[');
    for (form f = FORM_HERE; f < N_FORM && r->n_fit; f++) {
        ls_str line = {0};
        if (command(cl, q, &r->layout[0], f, 0, &line)) ls_jsonw_str(&w, line.data);
        ls_str_fini(&line);
    }
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
