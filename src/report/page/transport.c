/* transport.c - how GPUs of a run communicated, and what it cost: NCCL's own statements, bus bandwidth, the parts of a step, and what tools
 * printed about the machine. A value that was not measured or not stated is a dash. */
#include "report/page/content.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Our own finished run records whether its communicators used NCCL; files next to it may be those of an earlier run.
 * For the scaling study's runs, and for a run that has not finished, only the files are available. */
static bool has_gpus(const ls_run *r)
{
    const report_doc m = {.root = r->metrics};
    const ls_run_proof *p = &r->proof;
    if (report_object(&m, "lockstep")) return ls_run_over_nccl(r);
    return p->nccl || p->topo || p->ibstat || p->nets[0];
}

/* ---- what NCCL states: texts of cells, NULL where it states nothing ---- */

static const char *used(const report_doc *s, const char *key)
{
    const json_t *v = report_get(s, key);
    return json_is_true(v) ? "yes" : json_is_false(v) ? "no" : NULL;
}

static const char *ranks_text(const report_doc *s, char buf[96])
{
    const int64_t n = report_int(s, "n_ranks"), logged = report_int(s, "n_ranks_logged"),
                  nodes = report_int(s, "n_nodes");
    char missing[40] = "", hosts[40] = "";
    if (n < 0) return NULL;
    if (logged >= 0 && logged < n) snprintf(missing, sizeof missing, " (logs of %lld)", (long long)logged);
    if (nodes > 0) snprintf(hosts, sizeof hosts, " on %lld %s", (long long)nodes, nodes == 1 ? "host" : "hosts");
    return ls_doc_text(buf, "%lld%s%s", (long long)n, hosts, missing);
}

static const char *transports_text(const report_doc *s, char text[400])
{
    const json_t *all = report_object(s, "transports"), *v;
    const char *name;
    text[0] = '\0';
    json_object_foreach((json_t *)(uintptr_t)all, name, v)
    {
        const size_t n = strlen(text);
        if (json_is_integer(v))
            snprintf(text + n, 400 - n, "%s%.40s x %lld", n ? ", " : "", name, (long long)json_integer_value(v));
    }
    return *text ? text : NULL;
}

static const char *rings_text(const report_doc *s, char text[200])
{
    const int64_t rings = report_int(s, "rings"), channels = report_int(s, "channels");
    const char *path = report_str(s, "ring_path"), *order = report_str(s, "first_ring");
    text[0] = '\0';
    if (rings >= 0) snprintf(text, 200, "%lld", (long long)rings);
    else if (channels >= 0) snprintf(text, 200, "%lld channels", (long long)channels);
    size_t n = strlen(text);
    if (path) snprintf(text + n, 200 - n, "%sover %.7s", n ? " " : "", path);
    n = strlen(text);
    if (order) snprintf(text + n, 200 - n, "%sfirst: %.60s", n ? "; " : "", order);
    return *text ? text : NULL;
}

static void transports(const ls_analysis *a, ls_doc *d)
{
    ls_block *b = ls_doc_table(d, "Transport", "run", "communicator", "NCCL", "ranks", "network",
                               "transports (connections)", "rings", "NVLink", "NVLS", "GPUDirect RDMA", "InfiniBand");
    for (int i = 0; i < a->set->n; i++) {
        const ls_run *r = &a->set->run[i];
        const report_doc s = {.root = r->proof.nccl}, m = {.root = r->metrics};
        const char *backend = ls_run_backend(r), *version = report_str(&s, "version");
        char ranks[96], links[400], rings[200];
        if (!backend && r->proof.nccl) backend = "nccl";
        if (!version) version = report_str(&m, "lockstep.gpu.nccl_version");
        if (has_gpus(r))
            ls_doc_cells(d, b, r->name, backend, version, ranks_text(&s, ranks), report_str(&s, "network"),
                         transports_text(&s, links), rings_text(&s, rings), used(&s, "nvlink"), used(&s, "nvls"),
                         used(&s, "gpudirect_rdma"), used(&s, "infiniband"));
    }
}

static void warnings(const ls_analysis *a, ls_doc *d)
{
    for (int i = 0; i < a->set->n; i++) {
        const ls_run *r = &a->set->run[i];
        const report_doc s = {.root = r->proof.nccl};
        const int64_t n = report_int(&s, "warnings");
        const char *first = report_str(&s, "first_warning");
        if (n > 0 && has_gpus(r))
            ls_doc_add(d, LS_BLOCK_WARN, "%s: NCCL printed %lld %s; the first: %s", r->name, (long long)n,
                       n == 1 ? "warning" : "warnings", first ? first : "?");
    }
}

/* ---- what it cost ---- */

static void cells_step(ls_doc *d, ls_block *b, const ls_run *r)
{
    double sum = 0;
    bool any = false;
    for (int k = 0; k < LS_N_SPLIT; k++)
        if (!isnan(r->split[k])) sum += r->split[k], any = true;
    const char *over = any && !r->split_of_steps                  ? "all steps"
                       : r->n_step > ls_run_first(r) && r->n_warm ? LS_TEXT("steps after the first %d", r->n_warm)
                       : r->n_step > ls_run_first(r)              ? "all steps"
                                                                  : NULL;
    ls_doc_cells(d, b, LS_NUM(1000 * (any ? sum : r->step_time), 3), over);
}

static bool has_times(const ls_run *r)
{
    bool any = !isnan(r->step_time);
    for (int k = 0; k < LS_N_SPLIT; k++) any = any || !isnan(r->split[k]);
    return any;
}

/* The step is the sum of its parts; without any, as metrics.jsonl has it. */
static void step_parts(const ls_analysis *a, ls_doc *d)
{
    bool any = false;
    for (int i = 0; i < a->set->n; i++) any = any || (has_gpus(&a->set->run[i]) && has_times(&a->set->run[i]));
    if (!any) return;
    ls_block *b = ls_doc_add(
        d, LS_BLOCK_TABLE, "A step of rank 0, ms: the parts add up to the step (of a pipeline, means over its stages)");
    if (!b) return;
    b->n_col = LS_N_SPLIT + 3;
    ls_doc_cells(d, b, "run");
    for (int k = 0; k < LS_N_SPLIT; k++) ls_doc_cells(d, b, ls_split[k].words);
    ls_doc_cells(d, b, "step", "mean over");
    for (int i = 0; i < a->set->n; i++) {
        const ls_run *r = &a->set->run[i];
        if (!has_gpus(r) || !has_times(r)) continue;
        ls_doc_cells(d, b, r->name);
        for (int k = 0; k < LS_N_SPLIT; k++) ls_doc_cells(d, b, LS_NUM(1000 * r->split[k], 3));
        cells_step(d, b, r);
    }
}

/* Exposed and hidden time of one row are over the same steps. */
static void hidden_time(const ls_analysis *a, ls_doc *d)
{
    ls_block *b = NULL;
    for (int i = 0; i < a->set->n; i++)
        for (int k = 0; k < LS_N_RUN_COMM; k++) {
            const ls_run *r = &a->set->run[i];
            ls_run_comm_time t;
            if (!has_gpus(r) || !ls_run_comm_time_of(r, k, &t)) continue;
            if (!b)
                b = ls_doc_table(d, "Exposed and hidden communication of rank 0, ms per step, mean over all steps",
                                 "run", "communicator", "busy", "exposed communication", "hidden communication");
            ls_doc_cells(d, b, r->name, ls_run_comms[k].words, LS_NUM(1000 * t.busy, 3), LS_NUM(1000 * t.exposed, 3),
                         LS_NUM(1000 * t.hidden, 3));
        }
    for (int i = 0; b && i < a->set->n; i++)
        if (has_gpus(&a->set->run[i])) content_counted_steps(a->set->run[i].name, &a->set->run[i], d);
    if (b) ls_doc_add(d, LS_BLOCK_TEXT, "%s", content_wait_words());
}

/* Telemetry that was lost: means are of what is left. */
static void untimed(const ls_analysis *a, ls_doc *d)
{
    for (int i = 0; i < a->set->n; i++) {
        const ls_run *r = &a->set->run[i];
        const report_doc m = {.root = r->metrics};
        const int64_t steps = report_int(&m, "lockstep.step_split.steps_without_times");
        int64_t requests = 0;
        for (int k = 0; k < LS_N_RUN_COMM; k++) {
            char key[64];
            snprintf(key, sizeof key, "lockstep.%s.requests_without_times", ls_run_comms[k].key);
            const int64_t n = report_int(&m, key);
            requests += n > 0 ? n : 0;
        }
        if (has_gpus(r) && (steps > 0 || requests > 0))
            ls_doc_add(
                d, LS_BLOCK_TEXT,
                "%s: no times are known of %lld steps and %lld requests of collectives; means and bandwidths are of the others.",
                r->name, (long long)(steps > 0 ? steps : 0), (long long)requests);
    }
}

static void bandwidth(const ls_analysis *a, ls_doc *d)
{
    ls_block *b = NULL;
    for (int i = 0; i < a->set->n; i++) {
        const ls_run *r = &a->set->run[i];
        const double n = r->n_comm_step > 0 ? r->n_comm_step : NAN;
        for (int k = 0; k < r->n_coll && has_gpus(r); k++) {
            const ls_run_coll *x = &r->coll[k];
            if (!b)
                b = ls_doc_table(d, "Bus bandwidth of rank 0's collectives", "run", "collective", "bus, GB/s",
                                 "busy, ms per step", "waited, ms per step");
            ls_doc_cells(d, b, r->name, x->kind, LS_NUM(x->busbw > 0 ? x->busbw / 1e9 : NAN, 2),
                         LS_NUM(1000 * x->busy / n, 3), LS_NUM(1000 * x->exposed / n, 3));
        }
    }
}

/* ---- what tools printed ---- */

static void evidence(const ls_analysis *a, ls_doc *d)
{
    ls_block *b = NULL;
    for (int i = 0; i < a->set->n; i++) {
        const ls_run *r = &a->set->run[i];
        const ls_run_proof *p = &r->proof;
        const struct {
            const char *file, *words, *text;
        } all[] = {{"topo.txt", "links between GPUs", p->topo ? (p->links[0] ? p->links : "none listed") : NULL},
                   {"ibstat.txt", "ports", p->ibstat ? (p->ports[0] ? p->ports : "none listed") : NULL},
                   {"nccl_topo.xml", "network cards", p->nets[0] ? p->nets : NULL}};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
            if (!all[k].text || !has_gpus(r)) continue;
            if (!b) b = ls_doc_add(d, LS_BLOCK_LIST, NULL);
            ls_doc_cell(d, b, "%s, %s: %s: %s", r->name, all[k].file, all[k].words, all[k].text);
        }
    }
    b = NULL;
    for (int i = 0; i < a->set->n && i < 100; i++) {
        const ls_run *r = &a->set->run[i];
        const char *const text[] = {r->proof.topo, r->proof.ibstat}, *const file[] = {"topo.txt", "ibstat.txt"};
        for (int k = 0; k < 2; k++) {
            if (!text[k] || !has_gpus(r)) continue;
            if (!b) b = ls_doc_add(d, LS_BLOCK_CODE, "What nvidia-smi and ibstat printed");
            ls_doc_cell(d, b, "%s/%s", r->dir, file[k]);
            ls_doc_cell(d, b, "%s", text[k]);
        }
    }
}

static bool is_deterministic(const ls_run *r)
{
    const report_doc m = {.root = r->metrics};
    return json_is_true(report_get(&m, "lockstep.deterministic"));
}

void content_transport(const ls_analysis *a, ls_doc *d)
{
    bool any = false, logs = false, tree = false;
    for (int i = 0; i < a->set->n; i++) {
        tree = tree || (has_gpus(&a->set->run[i]) && is_deterministic(&a->set->run[i]));
        any = any || has_gpus(&a->set->run[i]);
        logs = logs || (a->set->run[i].proof.of_logs && has_gpus(&a->set->run[i]));
    }
    if (!any) return;
    ls_doc_add(d, LS_BLOCK_SECTION, "Communication between GPUs");
    ls_doc_add(
        d, LS_BLOCK_TEXT,
        "As NCCL states it in its own log%s. A dash: not stated, or not measured. The path of rings is the slowest link of a ring inside a host (NVL: NVLink; PIX, PXB, PHB, SYS: PCI Express; LOC: ranks that share a GPU). Network IB is NCCL's name for InfiniBand and RoCE; the column InfiniBand needs the connections and the link layer of the cards, which the log states with NCCL_DEBUG=INFO.",
        logs ? " (read from the logs where a run has no summary)" : "");
    if (tree)
        ls_doc_add(
            d, LS_BLOCK_TEXT,
            "Deterministic runs do not use the rings for sums: their sums are messages between ranks in a fixed tree; gathers and broadcasts are NCCL's own.");
    transports(a, d);
    warnings(a, d);
    step_parts(a, d);
    hidden_time(a, d);
    bandwidth(a, d);
    untimed(a, d);
    evidence(a, d);
}
