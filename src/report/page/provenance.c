/* provenance.c - where each number comes from: commit, command, versions, host, topology, hash of the configuration. */
#include "core/hash.h"
#include "report/page/content.h"

#include <stdio.h>
#include <string.h>

static const char *text_at(const json_t *root, const char *path)
{
    report_doc d = {root, "", NULL};
    const char *s = report_str(&d, path);
    return s && *s ? s : NULL;
}

/* The first twelve digits of SHA-256 over training_config as written and the settings: equal for equal configurations. */
static void config_hash(const ls_run *r, char hex[13])
{
    ls_str s = {0};
    ls_jsonw w;
    ls_sha256 h;
    char all[65];
    ls_jsonw_init(&w, &s, 0);
    ls_jsonw_value(&w, json_object_get(r->metrics, "training_config"));
    ls_str_add(&s, r->setting ? r->setting : "");
    ls_sha256_init(&h);
    ls_sha256_add(&h, s.data ? s.data : "", s.len);
    ls_sha256_hex(&h, all);
    snprintf(hex, 13, "%.12s", all);
    ls_str_fini(&s);
}

static void program(const ls_run *r, char *buf, size_t n)
{
    const char *ours = text_at(r->metrics, "lockstep.version"), *torch = text_at(r->metrics, "env.torch_version"),
               *ds = text_at(r->metrics, "env.deepspeed_version");
    if (ours) snprintf(buf, n, "lockstep %.20s", ours);
    else snprintf(buf, n, "torch %.30s, deepspeed %.20s", torch ? torch : "?", ds ? ds : "?");
}

static void device(const ls_run *r, char *buf, size_t n)
{
    const char *gpu = text_at(r->metrics, "hardware.gpu_name"), *compute = text_at(r->metrics, "lockstep.compute");
    if (gpu && strcmp(gpu, "none")) snprintf(buf, n, "%.60s", gpu);
    else snprintf(buf, n, "%.160s", compute ? compute : gpu ? "cpu" : "unknown");
}

static void topology(const ls_run *r, char *buf, size_t n)
{
    const char *backend = ls_run_backend(r), *nodes = text_at(r->metrics, "scheduler.nodelist");
    if (!r->world) snprintf(buf, n, "\xe2\x80\x93");
    else
        snprintf(buf, n, "%d%s%.20s%s%.60s", r->world, backend ? " over " : "", backend ? backend : "",
                 nodes ? " on " : "", nodes ? nodes : "");
}

static void row(const ls_run *r, ls_doc *d, ls_block *b)
{
    char hash[13] = "", made[80], where[160], commit[24];
    ls_run_commit(r->metrics, commit);
    program(r, made, sizeof made);
    topology(r, where, sizeof where);
    if (r->metrics) config_hash(r, hash);
    ls_doc_cells(d, b, r->name,
                 r->complete  ? "complete"
                 : r->metrics ? "metrics only"
                              : "unfinished",
                 text_at(r->metrics, "timestamp_utc"), LS_TEXT("%s", *commit ? commit : "unknown"),
                 r->metrics ? made : NULL, text_at(r->metrics, "host.hostname"), where, hash);
}

/* Each machine once: where, on what, under which system. */
static void machines(const ls_analysis *a, ls_doc *d)
{
    ls_block *b = ls_doc_table(d, "Machines", "host", "device", "system");
    for (int i = 0; i < a->set->n && b; i++) {
        const ls_run *r = &a->set->run[i];
        const char *host = text_at(r->metrics, "host.hostname"), *os = text_at(r->metrics, "host.os");
        char on[192];
        bool seen = !r->metrics;
        device(r, on, sizeof on);
        for (int k = 3; k + 2 < b->n_cell && !seen; k += 3)
            seen = !strcmp(b->cell[k], host ? host : "unknown") && !strcmp(b->cell[k + 1], on);
        if (!seen) ls_doc_cells(d, b, host ? host : "unknown", on, os ? os : "unknown");
    }
}

void content_provenance(const ls_analysis *a, ls_doc *d)
{
    if (!a->set->n) return;
    ls_doc_add(d, LS_BLOCK_SECTION, "Provenance");
    ls_block *b =
        ls_doc_table(d, NULL, "run", "state", "started", "commit", "program", "host", "workers", "configuration");
    for (int i = 0; i < a->set->n; i++) row(&a->set->run[i], d, b);
    machines(a, d);
    b = ls_doc_add(d, LS_BLOCK_CODE, "Command lines and settings");
    for (int i = 0; i < a->set->n && i < 100; i++) {
        const ls_run *r = &a->set->run[i];
        const char *command = text_at(r->metrics, "command_line");
        ls_doc_cell(d, b, "%s", r->dir);
        ls_doc_cell(d, b, "%s\n\n%s", command ? command : "no command_line", r->setting ? r->setting : "");
    }
}
