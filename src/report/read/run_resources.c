/* run_resources.c - what a run used: lockstep.comm and those of its other groups, lockstep.memory, lockstep.cpu_utilisation, lockstep.gpu_watch. */
#include "report/read/run_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const ls_run_comm ls_run_comms[LS_N_RUN_COMM] = {
    [LS_RUN_COMM_REPLICAS] = {"comm", "", "replicas"},
    [LS_RUN_COMM_TENSOR] = {"tensor_comm", "tensor ", "tensor parallel"},
    [LS_RUN_COMM_ACTS] = {"activations_comm", "activations ", "pipeline, activations"},
    [LS_RUN_COMM_GRADS] = {"gradients_comm", "gradients ", "pipeline, gradients"},
};

static const char *backend_of(const ls_run *r, int comm)
{
    char key[64];
    snprintf(key, sizeof key, "lockstep.%s.backend", ls_run_comms[comm].key);
    return report_str(&(report_doc){r->metrics, "", NULL}, key);
}

const char *ls_run_backend(const ls_run *r)
{
    const char *name = NULL;
    for (int i = 0; i < LS_N_RUN_COMM && !name; i++) name = backend_of(r, i);
    return name;
}

bool ls_run_over_nccl(const ls_run *r)
{
    for (int i = 0; i < LS_N_RUN_COMM; i++) {
        const char *name = backend_of(r, i);
        if (name && !strcmp(name, "nccl")) return true;
    }
    return false;
}

bool ls_run_comm_time_of(const ls_run *r, int comm, ls_run_comm_time *out)
{
    const double n = r->n_comm_step > 0 ? r->n_comm_step : NAN;
    bool any = false;
    *out = (ls_run_comm_time){0};
    for (int k = 0; k < r->n_coll; k++) {
        if (r->coll[k].comm != comm) continue;
        out->busy += r->coll[k].busy / n;
        out->exposed += r->coll[k].exposed / n;
        any = true;
    }
    out->hidden = out->busy - out->exposed;
    if (out->hidden < 0) out->hidden = 0;
    if (comm == LS_RUN_COMM_ACTS || comm == LS_RUN_COMM_GRADS) out->exposed *= 1 - r->bubble_share;
    return any;
}

static void read_comm(const report_doc *d, int comm, ls_run *r)
{
    char group[64];
    snprintf(group, sizeof group, "lockstep.%s", ls_run_comms[comm].key);
    const json_t *all = report_object(d, group), *v;
    const double steps = report_num(&(report_doc){all, d->file, d->notes}, "steps");
    const char *key;
    if (steps > 0) r->n_comm_step = steps;
    json_object_foreach((json_t *)(uintptr_t)all, key, v)
    {
        if (!json_is_object(v) || r->n_coll == LS_RUN_MAX_PART) continue;
        report_doc k = {v, d->file, d->notes};
        ls_run_coll c = {.comm = comm,
                         .calls = report_num(&k, "calls"),
                         .nbytes = report_num(&k, "bytes_moved"),
                         .busy = report_num(&k, "busy_sec"),
                         .exposed = report_num(&k, "exposed_sec"),
                         .busbw = report_num(&k, "busbw_bytes_per_sec")};
        snprintf(c.kind, sizeof c.kind, "%s%.24s", ls_run_comms[comm].before, key);
        if (c.nbytes == 0)
            c.busbw = NAN; /* this rank moved nothing, as the source of a broadcast: it measured no link */
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

static void read_ranks(const json_t *list, ls_run *r)
{
    const size_t n = json_array_size(list);
    if (r->n_rank || n > 65536) return;
    for (size_t i = 0; i < n; i++) {
        const double nbytes = bytes_of(json_array_get(list, i));
        r->rank_least = fmin(r->rank_least, nbytes); /* ignores NaN */
        r->rank_most = fmax(r->rank_most, nbytes);
    }
    r->n_rank = (int)n;
}

/* {"weights": bytes, ...}, perhaps below "parts"; a list in it is by rank. Totals are no parts. at_most has the parts again. */
static void read_memory(const json_t *m, ls_run *r)
{
    static const char *const total[] = {"total", "peak", "planned", "arena", "rank", "device", "host"};
    const json_t *v;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)m, key, v)
    {
        bool sum = false;
        for (size_t i = 0; i < sizeof total / sizeof total[0]; i++)
            sum = sum || !strncmp(key, total[i], strlen(total[i]));
        if (json_is_number(v) && !sum && json_number_value(v) > 0 && r->n_part < LS_RUN_MAX_PART)
            r->part[r->n_part++] = (ls_run_part){key, json_number_value(v)};
        else if (json_is_array(v)) read_ranks(v, r);
        else if (json_is_object(v) && strcmp(key, "at_most")) read_memory(v, r);
    }
}

/* Makes the parts add up to what was planned: buffers that are never in use together share memory. Recorded are the parts at the moment of most
 * memory; in older files the sums of all buffers, and then those that share memory are one part. */
static void settle_parts(const json_t *m, ls_run *r)
{
    const json_t *most = json_object_get(m, "at_most");
    double sum = 0, kept = 0;
    int n = 0;
    if (json_is_object(most)) {
        r->n_part = 0;
        read_memory(most, r);
    }
    for (int i = 0; i < r->n_part; i++) sum += r->part[i].nbytes;
    const double rest = r->planned_bytes - sum;
    if (!r->n_part || !(fabs(rest) >= 1)) return; /* NaN: the plan is not known */
    for (int i = 0; i < r->n_part && rest < 0; i++) {
        if (strcmp(r->part[i].name, "parameters") && strcmp(r->part[i].name, "optimizer")) continue;
        kept += r->part[i].nbytes;
        r->part[n++] = r->part[i];
    }
    if (rest < 0) r->n_part = n;
    const ls_run_part last = rest > 0 ? (ls_run_part){"gaps at that moment", rest}
                                      : (ls_run_part){"all others, which share memory", r->planned_bytes - kept};
    if (last.nbytes > 0 && r->n_part < LS_RUN_MAX_PART) r->part[r->n_part++] = last;
}

/* A number, or one per worker. */
static double mean_utilisation(const report_doc *d)
{
    const json_t *v = report_get(d, "lockstep.cpu_utilisation");
    const size_t n = json_array_size(v);
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += bytes_of(json_array_get(v, i));
    return n ? sum / (double)n : json_is_array(v) ? NAN : report_num(d, "lockstep.cpu_utilisation");
}

/* All workers wait for the slowest one, which waits only for communication: the shortest wait. The rest of rank 0's wait was
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

static double or_zero(double x)
{
    return isnan(x) ? 0 : x;
}

/* Moves seconds from a part of the step into *want, as many as it still needs: not more than `most`, or than the part has. */
static void take(double *part, double most, double *want)
{
    const double x = fmax(0, fmin(*want, fmin(*part, most)));
    *part -= x;
    *want -= x;
}

/* The report of a pipeline, seconds per step. */
typedef struct pipe_facts {
    double busy;       /* computing, mean over the stages                                  */
    double bubble;     /* of the schedule with the costs measured, mean over the stages    */
    double neighbours; /* rank 0's exposed time for messages of its neighbours             */
} pipe_facts;

/* They were recorded over all steps: scale takes them to the steps that the split is of. */
static bool read_pipe(const report_doc *d, double scale, pipe_facts *f)
{
    const json_t *stages = report_array(d, "lockstep.pipeline.per_stage");
    const size_t n = json_array_size(stages);
    double busy = 0;
    for (size_t i = 0; i < n; i++)
        busy += report_num(&(report_doc){json_array_get(stages, i), d->file, d->notes}, "busy_sec") / (double)n;
    const double span = report_num(d, "lockstep.pipeline.makespan_sec"),
                 predicted = report_num(d, "lockstep.pipeline.bubble_predicted") *
                             report_num(d, "lockstep.pipeline.makespan_predicted_sec"),
                 waited =
                     report_num(&(report_doc){json_array_get(stages, 0), d->file, d->notes}, "exposed_sec_per_step");
    *f = (pipe_facts){.busy = scale * busy,
                      .bubble = scale * fmin(predicted, span - busy),
                      .neighbours = isnan(waited) ? INFINITY : scale * waited};
    return f->busy > 0 && f->bubble >= 0;
}

/* A pipeline's step as the mean over its stages. Recorded is rank 0's: forward and backward are what its actions computed, exposed_comm
 * what it waited for messages, and the rest of the pipeline's time is in other; waits are in no action, on cores and on devices alike.
 * So the mean stage's bubble, and what the mean stage computes more than rank 0, lie in exposed and other: they come out of the waits
 * for neighbours first, then out of other, and are never more than those have. The parts keep their sum. */
static bool tell_pipeline(const report_doc *d, ls_run *r)
{
    const json_t *split = report_object(d, "lockstep.step_split"), *v;
    const char *key;
    double all = 0, now = 0, *part = r->split;
    pipe_facts f;
    if (!json_array_size(report_array(d, "lockstep.pipeline.per_stage"))) return false;
    json_object_foreach((json_t *)(uintptr_t)split, key, v) if (strcmp(key, "steps_without_times")) all +=
        json_number_value(v);
    for (int k = 0; k < LS_N_SPLIT; k++) now += or_zero(part[k]);
    const double compute = part[LS_SPLIT_FORWARD] + part[LS_SPLIT_BACKWARD];
    if (!(all > 0) || !(compute > 0) || isnan(part[LS_SPLIT_EXPOSED]) || !read_pipe(d, now / all, &f)) return true;
    double exposed = part[LS_SPLIT_EXPOSED], other = or_zero(part[LS_SPLIT_OTHER]);
    double idle = fmax(0, compute - f.busy), more = fmax(0, f.busy - compute), bubble = f.bubble, before = exposed;
    take(&exposed, f.neighbours, &more);
    take(&other, INFINITY, &more);
    take(&idle, INFINITY, &bubble); /* rank 0 computes while the mean stage waits */
    take(&exposed, f.neighbours - (before - exposed), &bubble);
    if (f.neighbours > 0 && isfinite(f.neighbours)) r->bubble_share = fmin(1, (before - exposed) / f.neighbours);
    take(&other, INFINITY, &bubble);
    const double busy = f.busy - more;
    part[LS_SPLIT_FORWARD] *= busy / compute;
    part[LS_SPLIT_BACKWARD] *= busy / compute;
    part[LS_SPLIT_BUBBLE] = f.bubble - bubble;
    part[LS_SPLIT_EXPOSED] = exposed + idle; /* the mean stage's wait beyond its bubble */
    if (!isnan(part[LS_SPLIT_OTHER])) part[LS_SPLIT_OTHER] = other;
    return true;
}

void run_tell_waits(const report_doc *d, ls_run *r)
{
    if (!isnan(r->split[LS_SPLIT_BUBBLE]) || !r->metrics || tell_pipeline(d, r)) return;
    if (isnan(r->straggler_share) || !isnan(r->split[LS_SPLIT_STRAGGLER]) || !(r->split[LS_SPLIT_EXPOSED] > 0)) return;
    r->split[LS_SPLIT_STRAGGLER] = r->split[LS_SPLIT_EXPOSED] * r->straggler_share;
    r->split[LS_SPLIT_EXPOSED] *= 1 - r->straggler_share;
}

void run_read_resources(const report_doc *d, ls_run *r)
{
    r->n_comm_step = r->n_update; /* older files do not have it */
    for (int i = 0; i < LS_N_RUN_COMM; i++) read_comm(d, i, r);
    find_stragglers(d, r);
    r->cpu_utilisation = mean_utilisation(d);
    r->gpu_utilisation = report_num(d, "lockstep.gpu_watch.utilization_mean");
    read_memory(report_object(d, "lockstep.memory"), r);
    settle_parts(report_object(d, "lockstep.memory"), r);
}
