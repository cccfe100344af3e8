/* plan_schedule.c - `lockstep plan --schedule`: a pipeline schedule checked, simulated, printed as a clock grid, drawn and
 * exported. */
#include "cli/commands.h"

#include "core/fs.h"
#include "parallel/mesh.h"
#include "parallel/schedule_check.h"
#include "parallel/schedule_text.h"
#include "parallel/simulate.h"
#include "parallel/stages.h"
#include "report/chart/chart.h"

#include <limits.h>

#define GRID_WIDTH 200

typedef struct options {
    const char *schedule, *costs, *model, *stages, *draw, *export;
    int64_t pp, micro, interleave, live, dp, tp, seq_length;
    bool json;
} options;

static const ls_opt table[] = {
    CLI_STR("schedule", schedule, "NAME|FILE", NULL,
            "naive, gpipe, 1f1b, interleaved, zb, or a file (docs/SCHEDULES.md)", "Pipeline"),
    CLI_POSITIVE("pp", pp, "P", "0", "number of stages [from the file]"),
    CLI_POSITIVE("micro", micro, "M", "0", "micro-batches per step [from the file]"),
    CLI_POSITIVE("interleave", interleave, "V", "0", "chunks per stage [interleaved: 2; others: 1; or from the file]"),
    CLI_POSITIVE("live", live, "N", "0",
                 "zb: number of activations that a stage may hold; with 2P-1 no stage is idle once it has started [P]"),
    CLI_POSITIVE("dp", dp, "D", "1", "data-parallel replicas, shown in the mesh"),
    CLI_POSITIVE("tp", tp, "T", "1", "tensor-parallel workers, shown in the mesh"),
    CLI_STR(
        "costs", costs, "F,B", NULL,
        "time of the forward and backward pass of a chunk, or any of fwd=1,bwd=2,bwd_in=1,bwd_w=1,latency=0,transfer=0 [1,2]",
        "Costs"),
    CLI_STR("model", model, "NAME|PATH", NULL, "split this model and use its floating-point operations as costs"),
    CLI_STR(
        "stages", stages, "LIST", NULL,
        "units of each chunk, such as 0-3,4-9,10-13 (0 is the embedding, then the blocks, then the output layer) [balanced]"),
    CLI_INT_IN(0, INT32_MAX, "seq_length", seq_length, "N", "512", "tokens per sequence, for the costs of --model"),
    CLI_STR("draw", draw, "FILE", NULL, "draw the schedule to an SVG file", "Output"),
    CLI_STR("export", export, "FILE", NULL, "write the schedule to a text file"),
    CLI_SWITCH("json", json, "print one JSON object instead of the drawing"),
};

static const cli_page page = {
    table, CLI_COUNT(table), "plan --schedule NAME|FILE --pp P --micro M [OPTIONS]",
    "Check and simulate a pipeline schedule. Print the timeline of each stage (F forward, B backward, I and W the input and weight parts of backward; one column per unit of time), the bubble (idle fraction of all stages) and the largest number of micro-batches whose activations each stage holds.\n\n"
    "  lockstep plan --schedule 1f1b --pp 4 --micro 8 --draw 1f1b.svg\n"
    "  lockstep plan --schedule interleaved --pp 4 --micro 8 --interleave 2 \\\n      --export mine.txt\n"
    "  lockstep plan --schedule mine.txt --costs fwd=1,bwd=2"};

typedef struct plan {
    ls_schedule *s;
    ls_sim sim;
    ls_pipe_costs costs;
    ls_part_cost *part; /* with --model */
    ls_str words;       /* the stages as text */
    int mailbox;
} plan;

/* ---- options ---- */

/* "1,2" or "fwd=1,bwd_in=1.5,bwd_w=0.5". */
static ls_status parse_costs(const char *text, ls_pipe_costs *c)
{
    double bwd = -1, in = -1, w = -1;
    *c = ls_pipe_equal;
    const struct {
        const char *key;
        double *to;
    } keys[] = {{"fwd", &c->each.fwd},     {"bwd", &bwd}, {"bwd_in", &in}, {"bwd_w", &w}, {"latency", &c->latency},
                {"transfer", &c->transfer}};
    int place = 0;
    for (const char *p = text ? text : ""; *p; place++) {
        char word[64];
        const size_t n = strcspn(p, ",");
        snprintf(word, sizeof word, "%.*s", (int)(n < 63 ? n : 63), p);
        p += n + (p[n] == ',' && p[n + 1]);
        if (*p == ',') return ls_fail(LS_E_ARG, "--costs %s: ends with a comma", text);
        char *eq = strchr(word, '=');
        double *to = !eq && place < 2 ? keys[place].to : NULL;
        if (eq) *eq = '\0';
        for (size_t k = 0; eq && k < CLI_COUNT(keys); k++)
            if (!strcmp(word, keys[k].key)) to = keys[k].to;
        if (!to || !ls_parse_f64(eq ? eq + 1 : word, to) || *to < 0 || *to > 1e12)
            return ls_fail(
                LS_E_ARG,
                "--costs %s: cannot parse '%s'; give two numbers (1,2) or some of fwd=, bwd=, bwd_in=, bwd_w=, latency=, transfer=",
                text, word);
    }
    if (bwd >= 0 && in >= 0 && w >= 0 && bwd != in + w)
        return ls_fail(LS_E_ARG, "--costs %s: bwd must be bwd_in + bwd_w, but %g is not %g + %g", text, bwd, in, w);
    if (bwd >= 0) {
        if (in < 0 && w < 0) in = bwd / 2;
        if (in < 0) in = bwd - w;
        if (w < 0) w = bwd - in;
        if (in < 0 || w < 0) return ls_fail(LS_E_ARG, "--costs %s: bwd_in and bwd_w must not be larger than bwd", text);
    }
    if (in >= 0) c->each.bwd_in = in;
    if (w >= 0) c->each.bwd_w = w;
    return c->each.fwd + c->each.bwd_in + c->each.bwd_w > 0
               ? LS_OK
               : ls_fail(LS_E_ARG, "--costs %s: at least one cost must be more than 0", text);
}

/* Parts of the model and what they cost, in units of the mean part's forward. */
static ls_status model_costs(const options *o, int n_stage, int n_chunk, plan *p)
{
    ls_model_config cfg;
    LS_TRY(ls_model_config_named(o->model, &cfg));
    if (o->seq_length < 1 || o->seq_length > cfg.n_ctx)
        return ls_fail(LS_E_CONFIG, "--seq_length %lld: the model has only %d positions", (long long)o->seq_length,
                       cfg.n_ctx);
    const int n_unit = cfg.n_layer + 2;
    static const char what[] = "costs of the model's units";
    ls_part_cost *unit = ls_alloc((size_t)n_unit * sizeof *unit);
    if (!unit) return ls_nomem((size_t)n_unit * sizeof *unit, what);
    ls_stages_model(&cfg, 1, o->seq_length, unit);
    ls_stages cut;
    ls_status st = o->stages ? ls_stages_parse(&cut, o->stages, n_unit, n_stage, n_chunk)
                             : ls_stages_balance(&cut, unit, n_unit, n_stage, n_chunk, NULL);
    const int n_part = n_stage * n_chunk;
    if (st == LS_OK && !(p->part = ls_alloc((size_t)n_part * sizeof *p->part)))
        st = ls_nomem((size_t)n_part * sizeof *p->part, what);
    if (st == LS_OK) {
        double fwd = 0, act = 0;
        ls_stages_costs(&cut, unit, p->part);
        ls_stages_print(&cut, unit, &p->words);
        for (int g = 0; g < n_part; g++) {
            fwd += p->part[g].fwd / n_part;
            act += p->part[g].act / n_part;
        }
        for (int g = 0; g < n_part; g++) {
            p->part[g].fwd /= fwd;
            p->part[g].bwd_in /= fwd;
            p->part[g].bwd_w /= fwd;
            p->part[g].act /= act;
        }
        p->costs.part = p->part;
    }
    ls_free(unit);
    return st;
}

static ls_status make_schedule(const options *o, plan *p)
{
    if (ls_schedule_is_builtin(o->schedule) || !ls_fs_exists(o->schedule)) {
        const int chunks = o->interleave ? (int)o->interleave : !strcmp(o->schedule, "interleaved") ? 2 : 1;
        if (ls_schedule_is_builtin(o->schedule) && (!o->pp || !o->micro))
            return ls_fail(LS_E_ARG, "plan --schedule %s needs --pp P and --micro M", o->schedule);
        if (o->model && o->pp && o->micro) LS_TRY(model_costs(o, (int)o->pp, chunks, p));
        ls_pipe_opts po = {(int)o->pp, (int)o->micro, chunks, (int)o->live, &p->costs};
        LS_TRY(ls_schedule_create(&p->s, o->schedule, &po));
        return ls_schedule_check(p->s);
    }
    if (o->live) return ls_fail(LS_E_ARG, "--live is only for --schedule zb (a file defines it); leave it out");
    LS_TRY(ls_schedule_load(&p->s, o->schedule, (int)o->pp, (int)o->micro));
    if (o->interleave && o->interleave != p->s->n_chunk)
        return ls_fail(LS_E_CONFIG, "%s has %d chunks per stage, but --interleave is %lld", o->schedule, p->s->n_chunk,
                       (long long)o->interleave);
    return o->model ? model_costs(o, p->s->n_stage, p->s->n_chunk, p) : LS_OK;
}

/* ---- pictures ---- */

typedef struct picture {
    ls_chart chart;
    char title[128], subtitle[128];
    char (*text)[40]; /* the notes of the stages, then the labels of the boxes */
} picture;

static void picture_fini(picture *v)
{
    ls_chart_fini(&v->chart);
    ls_free(v->text);
}

static ls_status picture_make(const plan *p, picture *v)
{
    const ls_schedule *s = p->s;
    ls_chart *c = &v->chart;
    char chunks[32] = "";
    if (s->n_chunk > 1) snprintf(chunks, sizeof chunks, " x %d chunks", s->n_chunk);
    snprintf(v->title, sizeof v->title, "%s, %d stages%s, %d micro-batches: bubble %.1f %%", s->name, s->n_stage,
             chunks, s->n_micro, 100 * p->sim.bubble);
    snprintf(v->subtitle, sizeof v->subtitle, "makespan %g; %.1f %% idle between a stage's first and last action",
             p->sim.makespan, 100 * p->sim.inner);
    *c = ls_chart_bars(LS_CHART_GANTT, "schedule", v->title, "time", NULL, 1, 3);
    c->subtitle = v->subtitle;
    c->end = p->sim.makespan;
    char(*text)[40] = v->text = ls_alloc((size_t)(s->n_stage + p->sim.n_span) * sizeof *v->text);
    ls_series *idle = ls_chart_series(c, "idle");
    if (idle) idle->idle = true;
    for (int k = LS_PIPE_FWD; k <= LS_PIPE_BWD_W; k++) {
        ls_series *kind = ls_chart_series(c, "%s", ls_pipe_names[k].words);
        if (kind) kind->token = ls_pipe_names[k].token, kind->hue = k;
    }
    if (!text || c->failed) return ls_nomem((size_t)p->sim.n_span * sizeof *text, "the picture of a schedule");
    for (int r = 0; r < s->n_stage; r++, text++) {
        snprintf(*text, sizeof *text, "idle %.1f %%, holds %d", 100 * (1 - p->sim.rank[r].busy / p->sim.makespan),
                 s->rank[r].peak_all);
        const int lane = ls_chart_category(c, "stage %d", r);
        ls_chart_point(c, &c->series[0], (ls_point){.y = c->end, .lane = lane, .label = *text});
    }
    for (int i = 0; i < p->sim.n_span; i++, text++) {
        const ls_span *sp = &p->sim.span[i];
        const ls_action *a = &s->rank[sp->rank].action[sp->action];
        if (!ls_pipe_computes(a->kind) || sp->end <= sp->begin) continue;
        snprintf(*text, sizeof *text, s->n_chunk > 1 ? "%d.%d" : "%d", a->micro, a->chunk);
        ls_chart_point(c, &c->series[1 + a->kind],
                       (ls_point){sp->begin, sp->end, .lane = sp->rank, .label = *text, .shade = a->chunk % 4});
    }
    return c->failed ? ls_nomem((size_t)p->sim.n_span * sizeof(ls_point), "the picture of a schedule") : LS_OK;
}

/* Writes the text and frees it; path NULL: only frees it. */
static ls_status write_file(const char *path, ls_str *s)
{
    ls_status st = LS_OK;
    if (path) st = s->failed ? ls_nomem(s->len, path) : ls_fs_write(path, s->data, s->len);
    ls_str_fini(s);
    return st;
}

/* ---- printing ---- */

static void print_text(const plan *p, const picture *v, ls_str *out)
{
    const ls_schedule *s = p->s;
    ls_str_addf(out, "%s\n", v->title);
    if (p->words.data) ls_str_add(out, p->words.data);
    ls_str_addc(out, '\n');
    if (!ls_gantt_text(&v->chart, GRID_WIDTH, out))
        ls_str_addf(out, "(the drawing is wider than %d columns; --draw FILE writes an SVG of any width)\n",
                    GRID_WIDTH);
    ls_str_add(out, "\nstage      busy      idle   activations held\n");
    for (int r = 0; r < s->n_stage; r++) {
        const ls_rank_list *l = &s->rank[r];
        const double busy = p->sim.rank[r].busy;
        ls_str_addf(out, "%5d %9.6g %8.1f%%   %d", r, busy, 100 * (1 - busy / p->sim.makespan), l->peak_all);
        for (int c = 0; s->n_chunk > 1 && c < s->n_chunk; c++)
            ls_str_addf(out, "%s%d", c ? " + " : " at once; by chunk ", l->peak[c]);
        ls_str_addc(out, '\n');
    }
    ls_str_addf(out, "\nmakespan %g, bubble %.2f %%; between each stage's first and last action %.2f %%\n",
                p->sim.makespan, 100 * p->sim.bubble, 100 * p->sim.inner);
    ls_str_addf(out, "message buffers per link: %d message%s\n", p->mailbox, p->mailbox == 1 ? "" : "s");
}

static void put_ints(ls_jsonw *w, const char *key, const int *value, int n)
{
    ls_jsonw_put_open(w, key, '[');
    for (int i = 0; i < n; i++) ls_jsonw_int(w, value[i]);
    ls_jsonw_close(w);
}

static ls_status print_json(const plan *p)
{
    const ls_schedule *s = p->s;
    cli_json j;
    ls_jsonw *w = cli_json_begin(&j);
    ls_jsonw_members(w, LS_KV("schedule", s->name), LS_KV("stages", s->n_stage), LS_KV("micro_batches", s->n_micro),
                     LS_KV("chunks", s->n_chunk), LS_KV("makespan", p->sim.makespan), LS_KV("bubble", p->sim.bubble),
                     LS_KV("inner_bubble", p->sim.inner), LS_KV("mailbox", p->mailbox));
    ls_jsonw_put_open(w, "ranks", '[');
    for (int r = 0; r < s->n_stage; r++) {
        const ls_sim_rank *me = &p->sim.rank[r];
        ls_jsonw_open(w, '{');
        ls_jsonw_members(w, LS_KV("rank", r), LS_KV("first", me->first), LS_KV("last", me->last),
                         LS_KV("busy", me->busy), LS_KV("idle", p->sim.makespan - me->busy),
                         LS_KV("peak_activations", s->rank[r].peak_all), LS_KV("peak_memory", me->peak));
        put_ints(w, "slots", s->rank[r].peak, s->n_chunk);
        put_ints(w, "gradient_slots", s->rank[r].grad_peak, s->n_chunk);
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
    return cli_json_end(&j);
}

/* The position of every rank, if there are more than the stages. */
static ls_status add_mesh(const options *o, int n_stage, ls_str *out)
{
    ls_mesh mesh;
    if (o->dp * o->tp == 1) return LS_OK;
    const int64_t world = o->dp * o->tp * n_stage;
    LS_TRY(ls_mesh_build(&mesh, world > INT_MAX ? INT_MAX : (int)world, (int)o->dp, n_stage, (int)o->tp));
    ls_mesh_print(&mesh, out);
    ls_str_addc(out, '\n');
    return LS_OK;
}

static ls_status show(const options *o, const plan *p)
{
    picture v = {0};
    ls_str svg = {0}, text = {0}, out = {0};
    ls_status st = picture_make(p, &v);
    if (st == LS_OK) {
        if (o->draw) ls_svg_draw(&v.chart, ls_gantt_width(&v.chart), LS_SVG_FILE, &svg);
        if (o->export) ls_schedule_write(p->s, &text);
        st = write_file(o->draw, &svg);
        const ls_status exported = write_file(st == LS_OK ? o->export : NULL, &text);
        if (st == LS_OK) st = exported;
    }
    if (st == LS_OK && o->json) st = print_json(p);
    else if (st == LS_OK) {
        st = add_mesh(o, p->s->n_stage, &out);
        if (st == LS_OK) {
            print_text(p, &v, &out);
            if (o->draw) ls_str_addf(&out, "Wrote %s\n", o->draw);
            if (o->export) ls_str_addf(&out, "Wrote %s\n", o->export);
            st = cli_print(&out);
        }
    }
    ls_str_fini(&out);
    picture_fini(&v);
    return st;
}

ls_status cli_plan_schedule(int argc, char **argv)
{
    options o = {0};
    unsigned char given[CLI_COUNT(table)] = {0};
    LS_TRY(cli_parse(&page, &o, argc, argv, NULL, given));
    if (!o.model && cli_given(&page, given, "seq_length"))
        return ls_fail(LS_E_ARG, "--seq_length is only for the costs of --model; add --model, or leave it out");
    if (!o.schedule) return ls_fail(LS_E_ARG, "plan needs --schedule NAME|FILE (%s, or a file)", ls_schedule_names);
    if (o.stages && !o.model) return ls_fail(LS_E_ARG, "--stages needs --model NAME");
    if (o.costs && o.model) return ls_fail(LS_E_ARG, "--costs and --model cannot be combined; leave one out");
    plan p = {0};
    LS_TRY(parse_costs(o.costs, &p.costs));
    ls_status st = make_schedule(&o, &p);
    if (st == LS_OK) st = ls_simulate(&p.sim, p.s, &p.costs, 0);
    if (st == LS_OK) st = ls_schedule_mailbox(p.s, &p.mailbox);
    if (st == LS_OK) st = show(&o, &p);
    ls_sim_fini(&p.sim);
    ls_schedule_destroy(&p.s);
    ls_free(p.part);
    ls_str_fini(&p.words);
    return st;
}
