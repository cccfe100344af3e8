/* run_resources.c - what a run used: lockstep.comm and those of its other groups, lockstep.memory, lockstep.cpu_utilisation, lockstep.gpu_watch. */
#include "core/mem.h"
#include "report/run_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* group: its key under lockstep, words: before its kinds. */
static void read_comm(const report_doc *d, const char *group, const char *words, ls_run *r)
{
    const json_t *comm = report_object(d, group), *v;
    const double steps = report_num(&(report_doc){comm, d->file, d->notes}, "steps");
    const char *key;
    if (steps > 0) r->n_comm_step = steps;
    json_object_foreach((json_t *)(uintptr_t)comm, key, v)
    {
        if (!json_is_object(v) || r->n_coll == LS_RUN_MAX_PART) continue;
        report_doc k = {v, d->file, d->notes};
        ls_run_coll c = {.calls = report_num(&k, "calls"),
                         .nbytes = report_num(&k, "bytes_moved"),
                         .busy = report_num(&k, "busy_sec"),
                         .exposed = report_num(&k, "exposed_sec"),
                         .busbw = report_num(&k, "busbw_bytes_per_sec")};
        snprintf(c.kind, sizeof c.kind, "%s%.24s", words, key);
        if (c.busy >= 0 || json_is_null(json_object_get(v, "busy_sec")))
            r->coll[r->n_coll++] = c; /* null: not measured */
        else ls_notes_add(d->notes, "%s: key %s.%.40s.busy_sec: a time was expected", d->file, group, key);
    }
}

/* Numbers of a list; of objects in it, the total, what was planned, or the sum of the parts. */
static double bytes_of(const json_t *v)
{
    static const char *const whole[] = {"total", "planned"};
    const json_t *item;
    const char *key;
    double sum = 0;
    if (json_is_number(v)) return json_number_value(v);
    for (int i = 0; i < 2; i++)
        if (json_is_number(json_object_get(v, whole[i]))) return json_number_value(json_object_get(v, whole[i]));
    json_object_foreach((json_t *)(uintptr_t)v, key, item) if (json_is_number(item) && strcmp(key, "rank")) sum +=
        json_number_value(item);
    return sum;
}

static ls_status read_list(const json_t *list, double **out, int *n_out)
{
    size_t n = json_array_size(list);
    if (!n || n > 65536 || *out) return LS_OK;
    double *x = ls_alloc(n * sizeof *x);
    if (!x) return ls_nomem(n * sizeof *x, "a list of ranks");
    for (size_t i = 0; i < n; i++) x[i] = bytes_of(json_array_get(list, i));
    *out = x;
    *n_out = (int)n;
    return LS_OK;
}

/* {"weights": bytes, ...}, perhaps below "parts"; a list in it is by rank. Totals are no parts. */
static ls_status read_memory(const json_t *m, ls_run *r)
{
    static const char *const total[] = {"total", "peak", "planned", "arena", "rank"};
    const json_t *v;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)m, key, v)
    {
        bool sum = false;
        for (size_t i = 0; i < sizeof total / sizeof total[0]; i++)
            sum = sum || !strncmp(key, total[i], strlen(total[i]));
        if (json_is_number(v) && !sum && json_number_value(v) > 0 && r->n_part < LS_RUN_MAX_PART)
            r->part[r->n_part++] = (ls_run_part){key, json_number_value(v)};
        else if (json_is_array(v)) LS_TRY(read_list(v, &r->rank_bytes, &r->n_rank));
        else if (json_is_object(v)) LS_TRY(read_memory(v, r));
    }
    return LS_OK;
}

static ls_status read_utilisation(const report_doc *d, ls_run *r)
{
    const json_t *v = report_get(d, "lockstep.cpu_utilisation");
    if (json_is_array(v)) {
        LS_TRY(read_list(v, &r->rank_cpu, &r->n_rank_cpu));
        double sum = 0;
        for (int i = 0; i < r->n_rank_cpu; i++) sum += r->rank_cpu[i];
        if (r->n_rank_cpu) r->cpu_utilisation = sum / r->n_rank_cpu;
    } else {
        r->cpu_utilisation = report_num(d, "lockstep.cpu_utilisation");
    }
    r->gpu_utilisation = report_num(d, "lockstep.gpu_watch.utilization_mean");
    return LS_OK;
}

/* Everybody waits for the slowest worker, which waits for communication alone: the least time waited. What rank 0 waited beyond it was
 * for slower workers. */
static void find_stragglers(const report_doc *d, ls_run *r)
{
    const json_t *list = report_array(d, "lockstep.workers");
    double least = NAN, first = NAN;
    for (size_t i = 0; i < json_array_size(list); i++) {
        double x = report_num(&(report_doc){json_array_get(list, i), d->file, d->notes}, "exposed_comm_sec");
        least = fmin(least, x);
        if (!i) first = x;
    }
    if (first > 0 && least >= 0) r->straggler_share = 1 - least / first;
}

/* A pipeline's step, as the mean over its stages: busy, the bubble that its schedule has for the costs measured, and what was waited
 * beyond that: communication. Seconds were recorded over all steps, so they are scaled to the steps that the split is of. */
static bool tell_pipeline(const report_doc *d, ls_run *r)
{
    const json_t *stages = report_array(d, "lockstep.pipeline.per_stage"),
                 *split = report_object(d, "lockstep.step_split"), *v;
    const size_t n = json_array_size(stages);
    const char *key;
    double busy = 0, all = 0, now = 0;
    if (!n) return false;
    for (size_t i = 0; i < n; i++)
        busy += report_num(&(report_doc){json_array_get(stages, i), d->file, d->notes}, "busy_sec") / (double)n;
    json_object_foreach((json_t *)(uintptr_t)split, key, v) if (strcmp(key, "steps_without_times")) all +=
        json_number_value(v);
    for (int k = 0; k < LS_N_SPLIT; k++) now += isnan(r->split[k]) ? 0 : r->split[k];
    const double scale = all > 0 ? now / all : NAN, span = report_num(d, "lockstep.pipeline.makespan_sec");
    const double compute = r->split[LS_SPLIT_FORWARD] + r->split[LS_SPLIT_BACKWARD];
    double bubble =
        report_num(d, "lockstep.pipeline.bubble_predicted") * report_num(d, "lockstep.pipeline.makespan_predicted_sec");
    bubble = scale * fmin(bubble, span - busy);
    busy *= scale;
    const double exposed = r->split[LS_SPLIT_EXPOSED] + compute - busy - bubble;
    if (!(busy > 0) || !(bubble >= 0) || !(compute > 0) || isnan(exposed)) return true;
    r->split[LS_SPLIT_FORWARD] *= busy / compute;
    r->split[LS_SPLIT_BACKWARD] *= busy / compute;
    r->split[LS_SPLIT_BUBBLE] = bubble;
    r->split[LS_SPLIT_EXPOSED] = fmax(exposed, 0);
    return true;
}

void run_tell_waits(const report_doc *d, ls_run *r)
{
    if (!isnan(r->split[LS_SPLIT_BUBBLE]) || !r->metrics || tell_pipeline(d, r)) return;
    if (isnan(r->straggler_share) || !isnan(r->split[LS_SPLIT_STRAGGLER]) || !(r->split[LS_SPLIT_EXPOSED] > 0)) return;
    r->split[LS_SPLIT_STRAGGLER] = r->split[LS_SPLIT_EXPOSED] * r->straggler_share;
    r->split[LS_SPLIT_EXPOSED] *= 1 - r->straggler_share;
}

ls_status run_read_resources(const report_doc *d, ls_run *r)
{
    static const char *const group[][2] = {{"lockstep.comm", ""},
                                           {"lockstep.tensor_comm", "tensor "},
                                           {"lockstep.activations_comm", "activations "},
                                           {"lockstep.gradients_comm", "gradients "}};
    r->n_comm_step = r->n_update; /* older files do not say it */
    for (size_t i = 0; i < sizeof group / sizeof group[0]; i++) read_comm(d, group[i][0], group[i][1], r);
    find_stragglers(d, r);
    LS_TRY(read_memory(report_object(d, "lockstep.memory"), r));
    return read_utilisation(d, r);
}
