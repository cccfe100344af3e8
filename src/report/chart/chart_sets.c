/* chart_sets.c - which numbers make which chart. Parts of a step keep their colour through all charts. */
#include "report/page/content.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BINS = 240, MAX_BAR = 30 };

static const int part_hue[LS_N_SPLIT] = {0, 4, 2, 1, 5, 3, 7, 6};

static ls_point at(double x, double y)
{
    return (ls_point){.x = x, .y = y, .lo = NAN, .hi = NAN};
}

static ls_point with_interval(double x, const ls_estimate *e)
{
    ls_point p = at(x, e->mean);
    if (e->half >= 0) p.lo = fmax(e->mean - e->half, 0), p.hi = e->mean + e->half; /* no speed is below zero */
    return p;
}

static ls_chart new_lines(const char *file, const char *title, const char *x, const char *y, const char *unit,
                          int decimals)
{
    return (ls_chart){LS_CHART_LINES, file, title, x, y, unit, .decimals = decimals};
}

static ls_series *new_series(ls_chart *c, const char *name, int hue)
{
    ls_series *s = ls_chart_series(c, "%s", name);
    if (s) s->hue = hue;
    return s;
}

/* --- many settings: bars are of the fastest; tables have all --- */

/* Whether a group has a bar: all, or one worker and the MAX_BAR fastest. */
static bool has_bar(const ls_analysis *a, int i)
{
    int faster = 0;
    for (int k = 0; k < a->n_group; k++) faster += a->group[k].tokens.mean > a->group[i].tokens.mean;
    return a->n_group <= MAX_BAR || faster < MAX_BAR || a->group[i].world == 1;
}

/* The row of a group that has a bar. */
static int row_of(const ls_analysis *a, int i)
{
    int row = 0;
    for (int k = 0; k < i; k++) row += has_bar(a, k);
    return row;
}

/* One category per group that has a bar. */
static void group_rows(const ls_analysis *a, ls_chart *c)
{
    for (int i = 0; i < a->n_group; i++)
        if (has_bar(a, i)) ls_chart_category(c, "%s", a->group[i].label);
        else ls_chart_leave_out(c, a->group[i].label);
}

/* Its row in a chart that does not show every group; -1: none. */
static int new_row(const ls_analysis *a, ls_chart *c, int i)
{
    if (has_bar(a, i)) return ls_chart_category(c, "%s", a->group[i].label);
    ls_chart_leave_out(c, a->group[i].label);
    return -1;
}

/* --- loss --- */

/* Mean of each of BINS parts of the steps, at the part's last step. */
static void add_curve(ls_chart *c, const ls_run *r, const char *name, int hue)
{
    ls_series *s = new_series(c, name, hue);
    int bins = r->n_step < BINS ? r->n_step : BINS;
    for (int b = 0; b < bins; b++) {
        int64_t from = (int64_t)b * r->n_step / bins, to = (int64_t)(b + 1) * r->n_step / bins;
        double sum = 0;
        int n = 0;
        for (int64_t i = from; i < to; i++)
            if (!isnan(r->step[i].loss)) sum += r->step[i].loss, n++;
        if (n) ls_chart_point(c, s, at((double)r->step[to - 1].step, sum / n));
    }
}

static void add_validation(ls_chart *c, const ls_run *r, const char *name, int hue)
{
    int n = 0;
    for (int i = 0; i < r->n_step; i++) n += !isnan(r->step[i].val_loss);
    if (!n) return;
    ls_series *s = ls_chart_series(c, "%s, validation", name);
    if (s) s->dots = true, s->hue = hue;
    for (int i = 0; i < r->n_step; i++) ls_chart_point(c, s, at((double)r->step[i].step, r->step[i].val_loss));
}

static const ls_group *group_of(const ls_analysis *a, const ls_run *r)
{
    for (int g = 0; g < a->n_group; g++)
        for (int k = 0; k < a->group[g].n_run; k++)
            if (&a->set->run[a->group[g].run[k]] == r) return &a->group[g];
    return NULL;
}

/* How many different curves the runs of a group have. */
static int curves_of(const ls_analysis *a, const ls_group *g)
{
    int n = 0;
    for (int i = 0; i < g->n_run; i++) {
        int k = 0;
        while (k < i && !ls_same_losses(&a->set->run[g->run[k]], &a->set->run[g->run[i]])) k++;
        n += k == i && a->set->run[g->run[i]].n_step > 0;
    }
    return n;
}

/* The setting; with its seed, or else the name of its folder, where the setting has several curves. */
static void curve_name(const ls_analysis *a, const ls_run *r, ls_str *out)
{
    const ls_group *g = group_of(a, r);
    ls_str_add(out, g ? g->label : r->name);
    if (!g || curves_of(a, g) < 2) return;
    if (r->seed >= 0) ls_str_addf(out, ", seed %lld", (long long)r->seed);
    for (int i = 0; i < g->n_run; i++) {
        const ls_run *o = &a->set->run[g->run[i]];
        if (o == r || o->seed != r->seed || ls_same_losses(o, r)) continue;
        ls_str_addf(out, ", %s", r->name);
        break;
    }
}

/* The name of a curve: every setting that has it, bit for bit. */
static void shared_name(const ls_analysis *a, int i, ls_str *out)
{
    const ls_run *r = &a->set->run[i];
    if (a->same_loss && a->n_group > 4) { /* too many names for one line */
        ls_str_addf(out, "all %d settings", a->n_group);
        return;
    }
    const ls_group *own = group_of(a, r);
    curve_name(a, r, out);
    for (int g = 0; g < a->n_group; g++)
        for (int k = 0; k < a->group[g].n_run && &a->group[g] != own; k++) {
            const ls_run *o = &a->set->run[a->group[g].run[k]];
            if (!ls_same_losses(r, o)) continue;
            ls_str_add(out, " = ");
            curve_name(a, o, out);
            break;
        }
    for (int m = 0; m < a->set->n; m++) { /* runs without a group: unfinished ones */
        const ls_run *o = &a->set->run[m];
        if (o != r && !(o->metrics && o->world) && ls_same_losses(r, o)) ls_str_addf(out, " = %s", o->name);
    }
}

/* One curve per setting, or per seed of a setting; settings whose losses are equal bit for bit share a curve that names all of them. */
void chart_loss(const ls_analysis *a, ls_chart *c)
{
    enum { MOST = LS_CHART_MAX_LINE }; /* each may have its validation beside it */
    const ls_run *shown[MOST];
    int n = 0;
    *c = new_lines("loss", "Training loss", "step", "loss", NULL, 4);
    for (int i = 0; i < a->set->n; i++) {
        const ls_run *r = &a->set->run[i];
        ls_str name = {0};
        int k = 0;
        while (k < n && !ls_same_losses(shown[k], r)) k++;
        if (!r->n_step || k < n) continue;
        shared_name(a, i, &name);
        if (name.failed || !name.data) c->failed = true;
        else if (n == MOST) ls_chart_leave_out(c, name.data);
        else {
            shown[n] = r;
            add_curve(c, r, name.data, n);
            add_validation(c, r, name.data, n++);
        }
        ls_str_fini(&name);
    }
}

void chart_epoch_loss(const ls_analysis *a, ls_chart *c)
{
    *c = new_lines("loss_epochs", "Loss by epoch", "epoch", "loss", NULL, 4);
    for (int i = 0; i < a->set->n; i++) {
        const ls_run *r = &a->set->run[i];
        if (r->n_step || r->n_epoch < 2) continue;
        if (c->n_series + 2 > 2 * LS_CHART_MAX_LINE) {
            ls_chart_leave_out(c, r->name);
            continue;
        }
        ls_series *s = ls_chart_series(c, "%s", r->name);
        for (int e = 0; e < r->n_epoch; e++) ls_chart_point(c, s, at(e + 1, r->epoch_loss[e]));
        s = ls_chart_series(c, "%s, validation", r->name);
        if (s) s->beside = true;
        for (int e = 0; e < r->n_epoch; e++) ls_chart_point(c, s, at(e + 1, r->epoch_val[e]));
    }
}

/* --- speed --- */

void chart_throughput(const ls_analysis *a, ls_chart *c)
{
    const bool later = !strcmp(ls_basis_of(a), "epochs after the first");
    double most = 0;
    bool any = false;
    for (int i = 0; i < a->n_group; i++) {
        most = fmax(most, a->group[i].tokens.mean);
        any = any || ls_leads(a, i);
    }
    *c = ls_chart_bars(LS_CHART_BARS, "throughput", "Throughput",
                       a->steady ? "tokens per second, all workers, after the warm-up"
                       : later   ? "tokens per second, all workers, of the epochs after the first"
                                 : "tokens per second, all workers, of whole epochs",
                       "tokens/s", 1, most < 100 ? 1 : 0);
    group_rows(a, c);
    static const char *const kind[] = {"in the lead", "others",
                                       "no benchmark: profiled, resized, resumed or too short"};
    for (int k = 0; k < 3;
         k++) { /* the leading settings in colour, the others beside it in grey; runs that are no benchmarks always */
        ls_series *s = new_series(c, kind[k], k == 0 || (k == 1 && !any) ? 0 : 6);
        for (int i = 0; i < a->n_group; i++)
            if (has_bar(a, i) && (a->group[i].no_benchmark ? 2 : !ls_leads(a, i)) == k)
                ls_chart_point(c, s, with_interval(row_of(a, i), &a->group[i].tokens));
    }
}

bool content_has_wall(const ls_analysis *a)
{
    bool wall = true;
    for (int i = 0; i < a->n_group; i++) {
        const ls_group *g = &a->group[i];
        wall = wall && (g->no_benchmark || g->interrupted || !isnan(g->wall.mean));
    }
    return wall;
}

/* The time of the runs of each setting that was neither profiled nor interrupted; of the epochs, where a run did not record its wall time. Empty if the runs are
 * not comparable: times of different work say nothing. */
void chart_time(const ls_analysis *a, ls_chart *c)
{
    const bool wall = content_has_wall(a);
    double longest = 0;
    for (int i = 0; i < a->n_group; i++)
        longest = fmax(longest, wall ? a->group[i].wall.mean : a->group[i].epoch_time.mean);
    *c = ls_chart_bars(LS_CHART_BARS, "training_time", "Training time",
                       wall ? "seconds of the run" : "seconds per epoch", "s", 1, longest < 10 ? 2 : 1);
    ls_series *s = ls_chart_series(c, "%s", c->title);
    for (int i = 0; i < a->n_group && a->n_group > 1 && a->comparable; i++) {
        const ls_estimate *e = wall ? &a->group[i].wall : &a->group[i].epoch_time;
        const bool timed = !a->group[i].no_benchmark && !a->group[i].interrupted;
        const int row = e->mean > 0 && timed ? new_row(a, c, i) : -1;
        if (row >= 0) ls_chart_point(c, s, with_interval(row, e));
    }
}

/* One line per setting, starting with its one-worker group. */
static void add_scaling(const ls_analysis *a, ls_chart *c, double factor, bool efficiency)
{
    int most = 0;
    for (int i = 0; i < a->n_group; i++) {
        const ls_group *g = &a->group[i];
        bool first = g->world > 1 && g->base >= 0 && !isnan(g->speedup.mean);
        for (int k = 0; k < i && first; k++)
            first = a->group[k].world < 2 || strcmp(a->group[k].short_name, g->short_name) != 0;
        if (!first) continue;
        if (c->n_series + 1 == LS_CHART_MAX_LINE) { /* the last is the ideal one */
            ls_chart_leave_out(c, g->short_name);
            continue;
        }
        ls_series *s = ls_chart_series(c, "%s", g->short_name);
        ls_chart_point(c, s, at(1, factor));
        for (int k = i; k < a->n_group; k++) {
            const ls_group *o = &a->group[k];
            if (strcmp(o->short_name, g->short_name)) continue;
            ls_estimate e = efficiency ? o->efficiency : o->speedup;
            e.mean *= factor, e.half *= factor;
            ls_chart_point(c, s, with_interval(o->world, &e));
            if (o->world > most) most = o->world;
        }
    }
    if (!most) return;
    ls_series *s = ls_chart_series(c, "%s", "ideal");
    if (s) s->ideal = true;
    ls_chart_point(c, s, at(1, factor));
    ls_chart_point(c, s, at(most, efficiency ? factor : factor * most));
}

/* The only number of workers above one, if there are more settings on it than lines can be told apart: two points make no curve. 0: there are
 * several numbers, or few settings. */
static int single_world(const ls_analysis *a)
{
    int world = 0, n = 0;
    for (int i = 0; i < a->n_group; i++) {
        const ls_group *g = &a->group[i];
        if (g->world < 2 || g->base < 0 || isnan(g->speedup.mean)) continue;
        if (world && world != g->world) return 0;
        world = g->world;
        n++;
    }
    return n > LS_CHART_TOGETHER ? world : 0;
}

/* One bar per setting on the only number of workers, after the ideal one. */
static void scaling_bars(const ls_analysis *a, int world, bool efficiency, ls_chart *c)
{
    const double factor = efficiency ? 100 : 1;
    ls_series *s = new_series(c, "ideal", 6);
    ls_chart_point(c, s, at(ls_chart_category(c, "%s", "ideal"), efficiency ? factor : world));
    s = new_series(c, c->title, 0);
    for (int i = 0; i < a->n_group; i++) {
        const ls_group *g = &a->group[i];
        ls_estimate e = efficiency ? g->efficiency : g->speedup;
        e.mean *= factor, e.half *= factor;
        const int row = g->world > 1 && g->base >= 0 && !isnan(e.mean) ? new_row(a, c, i) : -1;
        if (row >= 0) ls_chart_point(c, s, with_interval(row, &e));
    }
}

void chart_speedup(const ls_analysis *a, ls_chart *c)
{
    const int world = single_world(a);
    if (world) {
        *c = ls_chart_bars(LS_CHART_BARS, "speedup", "Speed-up over one worker", "times one worker", "times", 1, 2);
        scaling_bars(a, world, false, c);
        return;
    }
    *c = new_lines("speedup", "Speed-up over one worker", "workers", "times one worker", "times", 2);
    c->zero = true;
    add_scaling(a, c, 1, false);
}

void chart_efficiency(const ls_analysis *a, ls_chart *c)
{
    const int world = single_world(a);
    if (world) {
        *c = ls_chart_bars(LS_CHART_BARS, "efficiency", "Scaling efficiency", "% of ideal", "%", 1, 1);
        scaling_bars(a, world, true, c);
        return;
    }
    *c = new_lines("efficiency", "Scaling efficiency", "workers", "% of ideal", "%", 1);
    c->zero = true;
    add_scaling(a, c, 100, true);
}

void chart_step_split(const ls_analysis *a, ls_chart *c)
{
    double longest = 0;
    for (int i = 0; i < a->n_group; i++) longest = fmax(longest, a->group[i].step_time); /* NaN: no parts */
    *c = ls_chart_bars(LS_CHART_STACK, "step_split", "Where a step's time goes", "milliseconds per step", "ms", 1000,
                       longest < 0.1 ? 1 : 0);
    group_rows(a, c);
    for (int k = 0; k < LS_N_SPLIT; k++) {
        ls_series *s = new_series(c, ls_split[k].words, part_hue[k]);
        for (int i = 0; i < a->n_group; i++)
            if (has_bar(a, i) && a->group[i].split[k] > 0) ls_chart_point(c, s, at(row_of(a, i), a->group[i].split[k]));
    }
}

const char *content_part_words(int part)
{
    return part == LS_SPLIT_FORWARD     ? "compute slowdown"
           : part == LS_SPLIT_OPTIMIZER ? "optimizer not shared"
                                        : ls_split[part].words;
}

void chart_waterfall(const ls_analysis *a, ls_chart *c)
{
    *c = ls_chart_bars(LS_CHART_STACK, "waterfall", "Where the ideal went", "% of a step's time", "%", 100, 1);
    for (int i = 0; i < a->n_group; i++)
        if (a->group[i].waterfall.known) new_row(a, c, i);
    for (int k = -1; k < LS_N_SPLIT; k++) {
        ls_series *s = k < 0 ? new_series(c, "useful work", 0)
                             : new_series(c, content_part_words(k), k == LS_SPLIT_FORWARD ? 4 : part_hue[k]);
        for (int i = 0, row = 0; i < a->n_group; i++) {
            const ls_waterfall *w = &a->group[i].waterfall;
            if (!w->known || !has_bar(a, i)) continue;
            double share = k < 0 ? w->useful : w->lost[k];
            if (fabs(share) >= 0.0005) ls_chart_point(c, s, at(row, share));
            row++;
        }
    }
}

/* --- resources --- */

/* Seconds per step of a communicator, 0 where nothing was measured; their sum. */
static double shown_time(const ls_run *r, int comm, double *exposed, double *hidden)
{
    ls_run_comm_time t;
    *exposed = *hidden = 0;
    if (!ls_run_comm_time_of(r, comm, &t)) return 0;
    if (t.exposed > 0) *exposed = t.exposed;
    if (t.hidden > 0) *hidden = t.hidden;
    return *exposed + *hidden;
}

/* One row per setting and communicator; those below a hundredth of the longest are in the table only. */
void chart_comm(const ls_analysis *a, ls_chart *c)
{
    double longest = 0, out, in;
    for (int i = 0; i < a->n_group; i++)
        for (int k = 0; k < LS_N_RUN_COMM; k++) longest = fmax(longest, shown_time(a->group[i].first, k, &out, &in));
    *c = ls_chart_bars(LS_CHART_STACK, "communication", "Exposed and hidden time, by communicator",
                       "milliseconds per step, rank 0", "ms", 1000,
                       longest < 0.01  ? 2
                       : longest < 0.1 ? 1
                                       : 0);
    new_series(c, "exposed: compute waits", 1);
    new_series(c, "hidden behind compute", 0);
    for (int i = 0; i < a->n_group && !c->failed; i++)
        for (int k = 0; k < LS_N_RUN_COMM; k++) {
            if (!(shown_time(a->group[i].first, k, &out, &in) > 0.01 * longest)) continue;
            if (c->n_category == 60) {
                ls_chart_leave_out(c, a->group[i].label);
                continue;
            }
            const int row = ls_chart_category(c, "%s, %s", a->group[i].label, ls_run_comms[k].words);
            if (out > 0) ls_chart_point(c, &c->series[0], at(row, out));
            if (in > 0) ls_chart_point(c, &c->series[1], at(row, in));
        }
}

/* The series of a name, made if it is new; NULL when there are too many. */
static ls_series *series_of(ls_chart *c, const char *name, int most)
{
    for (int m = 0; m < c->n_series; m++)
        if (!strcmp(c->series[m].name, name)) return &c->series[m];
    return c->n_series < most ? ls_chart_series(c, "%s", name) : NULL;
}

void chart_memory(const ls_analysis *a, ls_chart *c)
{
    *c = ls_chart_bars(LS_CHART_STACK, "memory", "Memory by part, rank 0", "MiB", "MiB", 1 / 1048576.0, 1);
    for (int i = 0; i < a->n_group; i++) {
        const ls_run *r = a->group[i].first;
        const int row = r->n_part ? new_row(a, c, i) : -1;
        for (int k = 0; k < r->n_part && row >= 0; k++)
            ls_chart_point(c, series_of(c, r->part[k].name, LS_RUN_MAX_PART), at(row, r->part[k].nbytes));
    }
}

static double utilisation(const ls_run *r)
{
    return r->gpu_utilisation > 0 ? r->gpu_utilisation : r->cpu_utilisation;
}

/* The mean over the runs of each group that have the number; of a number by token, times the group's tokens/s. */
static void bars(const ls_analysis *a, ls_chart *c, double (*get)(const ls_run *r), bool by_token)
{
    ls_series *s = ls_chart_series(c, "%s", c->title);
    for (int i = 0; i < a->n_group; i++) {
        double sum = 0;
        int n = 0;
        for (int k = 0; k < a->group[i].n_run; k++) {
            double x = get(&a->set->run[a->group[i].run[k]]);
            if (x > 0) sum += x, n++;
        }
        const double times = by_token ? a->group[i].tokens.mean : 1; /* NaN: not known */
        const int row = n && times > 0 ? new_row(a, c, i) : -1;
        if (row >= 0) ls_chart_point(c, s, at(row, sum / n * times));
    }
}

static double peak(const ls_run *r)
{
    return r->peak_bytes;
}

static double tflop_per_token(const ls_run *r)
{
    return r->tflop_per_token;
}

void chart_peak(const ls_analysis *a, ls_chart *c)
{
    *c = ls_chart_bars(LS_CHART_BARS, "peak_memory", "Peak memory of rank 0", "MiB", "MiB", 1 / 1048576.0, 0);
    bars(a, c, peak, false);
}

void chart_utilisation(const ls_analysis *a, ls_chart *c)
{
    *c = ls_chart_bars(LS_CHART_BARS, "utilisation", "Utilisation", "% of the cores or devices given", "%", 100, 0);
    bars(a, c, utilisation, false);
}

void chart_tflops(const ls_analysis *a, ls_chart *c)
{
    *c = ls_chart_bars(LS_CHART_BARS, "tflops", "Model floating-point rate", "TFLOP/s, all workers", "TFLOP/s", 1, 3);
    bars(a, c, tflop_per_token, true);
}

void chart_gantt(const ls_run *r, double end, ls_chart *c)
{
    const char *schedule = json_string_value(json_object_get(r->pipeline, "schedule"));
    double last[2] = {0}; /* ends of the measured and of the simulated step */
    *c = ls_chart_bars(LS_CHART_GANTT, "pipeline", "One step of the pipeline", "milliseconds", "ms", 1000, 2);
    if (schedule) c->name = ls_asprintf("One step of the pipeline: %s", schedule);
    if (c->name) c->title = c->name;
    c->failed = schedule && !c->name;
    c->end = end;
    ls_series *idle = new_series(c, "idle", 6);
    if (idle) idle->idle = true;
    for (int i = 0; i < r->n_span; i++) last[r->span[i].simulated] = fmax(last[r->span[i].simulated], r->span[i].end);
    for (int i = 0; i < (last[1] > 0 ? 2 : 1) * r->n_lane; i++) {
        const bool simulated = i >= r->n_lane;
        ls_point p = at(0, last[simulated]);
        p.lane = ls_chart_category(c, simulated ? "simulated %d" : "stage %d", i % r->n_lane);
        ls_chart_point(c, idle, p);
    }
    for (int i = 0; i < r->n_span; i++) {
        ls_point p = at(r->span[i].begin, r->span[i].end);
        p.lane = r->span[i].lane + (r->span[i].simulated ? r->n_lane : 0);
        p.label = r->span[i].label;
        ls_series *s = series_of(c, r->span[i].kind, 9);
        if (!s && !c->failed) s = &c->series[8]; /* the last colour takes the rest */
        if (s) s->hue = (int)(s - c->series) - 1;
        ls_chart_point(c, s, p);
    }
}

/* A lane per run that was interrupted, a box per attempt; its colour is the number of workers. */
void chart_attempts(const ls_analysis *a, ls_chart *c)
{
    *c = ls_chart_bars(LS_CHART_GANTT, "attempts", "Attempts over time", "seconds since the start of the run", "s", 1,
                       1);
    for (int i = 0; i < a->set->n; i++) {
        const ls_run *r = &a->set->run[i];
        if (!r->events || !ls_has_lost_time(r->events)) continue;
        if (c->n_category == MAX_BAR) {
            ls_chart_leave_out(c, r->name);
            continue;
        }
        const int lane = ls_chart_category(c, "%s", r->name);
        for (int k = 0; k < r->events->n_attempt; k++) {
            const ls_attempt *t = &r->events->attempt[k];
            char words[40] = "workers not known";
            if (t->workers > 0)
                snprintf(words, sizeof words, "%lld %s", (long long)t->workers, t->workers == 1 ? "worker" : "workers");
            if (!(t->end > t->begin)) continue; /* it failed before it began, or the clock was changed */
            ls_point p = at(t->begin, t->end);
            p.lane = lane;
            p.label = t->label;
            ls_series *s = series_of(c, words, 8);
            ls_chart_point(c, s || c->failed ? s : &c->series[7], p);
        }
    }
}
