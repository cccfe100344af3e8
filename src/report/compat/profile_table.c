/* profile_table.c - a trace for a terminal: the parts of a step by rank, the longest operations, collectives. */
#include "report/compat/profile_summary.h"

#include <math.h>
#include <stdio.h>

enum { MAX_RANK = 16, MAX_ROW = 8 };

static const struct {
    const char *head;
    int part;
} column[] = {{"forward", TRACE_PART_FORWARD}, {"backward", TRACE_PART_BACKWARD}, {"optimizer", TRACE_PART_OPTIMIZER},
              {"input", TRACE_PART_INPUT},     {"comm exposed", TRACE_PART_WAIT}, {"other", TRACE_PART_REST}};
enum { N_COLUMN = sizeof column / sizeof *column };

static double sum_of(const trace_rank *r)
{
    double sum = 0;
    for (int i = 0; i < TRACE_N_PART; i++) sum += r->part[i];
    return sum;
}

/* Time of collectives while the main thread did not wait. */
static double hidden(const trace_rank *r)
{
    return fmax(0, r->coll_in_steps - r->part[TRACE_PART_WAIT]);
}

/* One row; values are multiplied by k. */
static void row(const char *name, const trace_rank *r, double k, ls_str *out)
{
    ls_str_addf(out, "%-6s %10.2f", name, k * sum_of(r));
    for (int i = 0; i < N_COLUMN; i++) ls_str_addf(out, " %12.2f", k * r->part[column[i].part]);
    ls_str_addf(out, " %12.2f\n", k * hidden(r));
}

static bool has_pipeline(const trace_facts *f)
{
    for (int i = 0; i < f->n_rank; i++)
        if (f->rank[i].pipeline) return true;
    return false;
}

/* The rank that the others wait for: it waits least itself. */
static void slowest(const trace_facts *f, ls_str *out)
{
    int least = -1, most = -1;
    for (int i = 0; i < f->n_rank; i++) {
        if (!f->rank[i].n_step) continue;
        if (least < 0 || f->rank[i].part[TRACE_PART_WAIT] < f->rank[least].part[TRACE_PART_WAIT]) least = i;
        if (most < 0 || f->rank[i].part[TRACE_PART_WAIT] > f->rank[most].part[TRACE_PART_WAIT]) most = i;
    }
    if (least < 0 || least == most) return;
    const double step = sum_of(&f->rank[most]),
                 gap = f->rank[most].part[TRACE_PART_WAIT] - f->rank[least].part[TRACE_PART_WAIT];
    if (gap > 0.05 * step)
        ls_str_addf(out,
                    "Rank %d waits least and rank %d most: %.1f %% of a step more, which is time for slower ranks.\n",
                    least, most, 100 * gap / step);
}

static void steps_table(const trace_facts *f, ls_str *out)
{
    trace_rank all = {0};
    int shown = 0;
    for (int i = 0; i < f->n_rank; i++) {
        const trace_rank *r = &f->rank[i];
        char name[16];
        if (!r->n_step) continue;
        if (!all.n_step)
            ls_str_addf(out, "Time of a step by rank, ms (mean of %d steps)\n%-6s %10s", r->n_step, "rank", "step");
        for (int k = 0; k < N_COLUMN && !all.n_step; k++) ls_str_addf(out, " %12s", column[k].head);
        if (!all.n_step) ls_str_addf(out, " %12s\n", "comm hidden");
        for (int k = 0; k < TRACE_N_PART; k++) all.part[k] += r->part[k];
        all.coll_in_steps += r->coll_in_steps;
        all.n_step++;
        snprintf(name, sizeof name, "%d", i);
        if (shown++ < MAX_RANK) row(name, r, 1e-3 / r->n_step, out);
    }
    if (!all.n_step) {
        ls_str_add(out,
                   "The trace has no whole step: older spans were dropped (--profile_spans), or no step was made.\n");
        return;
    }
    if (shown > MAX_RANK) ls_str_addf(out, "... %d more ranks are in profile_summary.json\n", shown - MAX_RANK);
    if (sum_of(&all) > 0) row("%", &all, 100 / sum_of(&all), out);
    ls_str_add(out, "The parts add up to the step; hidden communication ran at the same time as other parts.\n");
    if (has_pipeline(f)) ls_str_add(out, "In a pipeline, exposed communication includes the bubble.\n");
    else slowest(f, out);
}

static void operations(const char *title, const trace_table *t, double total, ls_str *out)
{
    if (!t->n) return;
    ls_str_addf(out, "\n%-40s %8s %12s %12s %8s\n", title, "calls", "total, ms", "mean, ms", "%");
    for (int i = 0; i < t->n && i < MAX_ROW; i++) {
        const trace_row *r = &t->row[i];
        ls_str_addf(out, "%-40.40s %8lld %12.2f %12.3f %8.1f\n", r->name, (long long)r->calls, 1e-3 * r->us,
                    1e-3 * r->us / (double)r->calls, total > 0 ? 100 * r->us / total : 0);
    }
    if (t->n > MAX_ROW) ls_str_addf(out, "... %d more in profile_summary.json\n", t->n - MAX_ROW);
}

static double total_of(const trace_table *t)
{
    double sum = 0;
    for (int i = 0; i < t->n; i++) sum += t->row[i].us;
    return sum;
}

static void collectives(const trace_table *t, const trace_table *waits, ls_str *out)
{
    if (!t->n) return;
    ls_str_addf(out, "\n%-40s %8s %12s %12s %12s\n", "Collectives, all ranks, whole run", "calls", "MiB", "busy, ms",
                "waited, ms");
    for (int i = 0; i < t->n && i < MAX_ROW; i++) {
        const trace_row *r = &t->row[i], *wait = trace_find(waits, r->name);
        ls_str_addf(out, "%-40.40s %8lld %12.2f %12.2f %12.2f\n", r->name, (long long)r->calls,
                    (double)r->bytes / 1048576, 1e-3 * r->us, wait ? 1e-3 * wait->us : 0);
    }
}

void profile_table(const trace_facts *f, ls_str *out)
{
    const bool device = f->table[TRACE_KERNEL].n > 0;
    steps_table(f, out);
    if (device) {
        ls_str_add(
            out,
            "These are times of the host: forward and backward are the time to queue the work. The device's time is below.\n");
        operations("Device operations, all ranks", &f->table[TRACE_DEVICE_OP], total_of(&f->table[TRACE_DEVICE_OP]),
                   out);
    }
    operations(device ? "Units on the host, all ranks, whole run" : "Operations, all ranks, whole run",
               &f->table[TRACE_UNIT], total_of(&f->table[TRACE_UNIT]), out);
    collectives(&f->table[TRACE_COLL], &f->table[TRACE_WAIT], out);
}
