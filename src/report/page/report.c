#include "core/fs.h"
#include "core/mem.h"
#include "core/table.h"
#include "report/page/report_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static ls_status write_charts(const ls_doc *d, const char *out, ls_report_result *r, bool png)
{
    const ls_path dir = ls_path_of(out, "charts");
    report_pen pen = {.there = png};
    ls_str words = {0};
    for (int i = 0; i < d->n; i++) {
        if (d->block[i].kind != LS_BLOCK_CHART) continue;
        LS_TRY(report_write_chart(&d->block[i].chart, dir.text, &pen));
        r->n_chart++;
    }
    report_pen_words(&pen, &words);
    if (words.data) ls_notes_add(&r->notes, "%s", words.data);
    r->n_png = pen.n_png;
    r->no_rsvg = png && !pen.there;
    ls_str_fini(&words);
    return LS_OK;
}

void report_slug(const char *text, char *out, size_t cap)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t n = 0;
    bool gap = false;
    for (const char *p = text; *p && n + 2 < cap; p++) {
        const bool fits = strchr(plain, *p) != NULL;
        if (fits && gap && n) out[n++] = '_';
        if (fits) out[n++] = *p;
        gap = !fits;
    }
    out[n] = '\0';
}

/* "pp (1f1b)" -> scaling_report_pp_1f1b.json; one that is too long for a file is numbered: `setting` in it has the name. */
static void scaling_file(const char *setting, int i, char *file, size_t cap)
{
    char name[256];
    report_slug(setting, name, sizeof name);
    if (strlen(name) < 100) snprintf(file, cap, "scaling_report_%.99s.json", name);
    else snprintf(file, cap, "scaling_report_setting_%d.json", i + 1);
}

/* The first group on several workers of its setting. */
static bool first_of_setting(const ls_analysis *a, int i)
{
    for (int k = 0; k < i; k++)
        if (a->group[k].world > 1 && !strcmp(a->group[k].short_name, a->group[i].short_name)) return false;
    return a->group[i].world > 1;
}

/* One scaling_report.json, or one per setting if several were run on several workers. */
static ls_status write_scaling(const ls_analysis *a, const char *out)
{
    int n = 0;
    for (int i = 0; i < a->n_group; i++) n += first_of_setting(a, i);
    const bool several = n > 1 && a->comparable;
    for (int i = 0; i < (several ? a->n_group : 1); i++) {
        ls_str text = {0};
        char file[128] = "scaling_report.json";
        if (several && !first_of_setting(a, i)) continue;
        if (several) scaling_file(a->group[i].short_name, i, file, sizeof file);
        ls_scaling_text(a, several ? a->group[i].short_name : NULL, NULL, NULL, &text);
        ls_status st = report_write_text(out, file, &text);
        ls_str_fini(&text);
        LS_TRY(st);
    }
    return LS_OK;
}

static void terminal_table(const ls_analysis *a, const ls_found_bench *bench, ls_str *out)
{
    static const char *const head[] = {"setting", "workers",  "runs",       "tokens/s",
                                       "95 %",    "speed-up", "efficiency", "loss"};
    ls_table t = {.n_col = 8};
    if (!a->n_group) return;
    for (int k = 0; k < t.n_col; k++) ls_table_cell(&t, "%s", head[k]);
    for (int i = 0; i < a->n_group; i++) {
        const ls_group *g = &a->group[i];
        char rate[40];
        ls_str loss = {0};
        ls_table_cell(&t, "%s", g->short_name);
        ls_table_cell(&t, "%d", g->world);
        ls_table_cell(&t, "%d", g->n_run);
        ls_table_cell(&t, "%s", isnan(g->tokens.mean) ? "-" : ls_number_text(rate, g->tokens.mean, 1));
        ls_table_cell(&t, g->tokens.half >= 0 ? "%.1f %%" : "-", 100 * g->tokens.half / g->tokens.mean);
        ls_table_cell(&t, isnan(g->speedup.mean) ? "-" : "%.2f", g->speedup.mean);
        ls_table_cell(&t, isnan(g->efficiency.mean) ? "-" : "%.1f %%", 100 * g->efficiency.mean);
        ls_loss_words(a, g, false, true, &loss);
        ls_table_cell(&t, "%s", loss.data ? loss.data : "-");
        ls_str_fini(&loss);
    }
    ls_table_print(&t, out);
    ls_basis_words(a, out);
    ls_str_addc(out, '\n');
    const size_t before = out->len;
    if (a->comparable) content_ab_verdict(bench, out);
    if (out->len == before) ls_winner_words(a, out);
    if (out->len > before) ls_str_addc(out, '\n');
}

static void estimate_members(ls_jsonw *w, const char *key, const char *half, const ls_estimate *e)
{
    ls_jsonw_put_real(w, key, e->mean);
    ls_jsonw_put_real(w, half, e->half);
}

static void settings_member(const ls_analysis *a, ls_jsonw *w)
{
    ls_jsonw_put_open(w, "settings", '[');
    for (int i = 0; i < a->n_group; i++) {
        const ls_group *g = &a->group[i];
        ls_jsonw_open(w, '{');
        ls_jsonw_members(w, LS_KV("setting", g->short_name), LS_KV("workers", g->world), LS_KV("runs", g->n_run),
                         LS_KV("benchmark", (bool)!g->no_benchmark), LS_KV("interrupted", g->interrupted));
        estimate_members(w, "tokens_per_sec", "tokens_per_sec_half_interval", &g->tokens);
        estimate_members(w, "speedup", "speedup_half_interval", &g->speedup);
        ls_jsonw_put_real(w, "efficiency", g->efficiency.mean);
        ls_jsonw_put_real(w, "wall_seconds", g->wall.mean);
        ls_ratios_put(w, g);
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
    ls_leading_put(w, a);
}

static void part_json(const report_part *p, ls_str *out)
{
    const ls_run_set *set = &p->set;
    ls_jsonw w;
    ls_jsonw_init(&w, out, 0);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_str(&w, "benchmark", p->bench ? p->bench->dir : NULL);
    ls_jsonw_members(&w, LS_KV("comparable", p->a.comparable), LS_KV("differences", p->a.n_mismatch),
                     LS_KV("speed_of", ls_basis_of(&p->a)));
    settings_member(&p->a, &w);
    ls_jsonw_put_open(&w, "runs", '[');
    for (int i = 0; i < set->n; i++) {
        const ls_run *r = &set->run[i];
        ls_jsonw_open(&w, '{');
        ls_jsonw_members(&w, LS_KV("run", r->dir), LS_KV("complete", r->complete));
        ls_jsonw_key(&w, "interruptions");
        content_interruptions_json(r, &w);
        ls_jsonw_close(&w);
    }
    ls_jsonw_close(&w);
    ls_jsonw_close(&w);
}

ls_status report_write_doc(const ls_doc *d, const char *out)
{
    ls_str html = {0}, md = {0};
    ls_doc_markdown(d, "charts", &md);
    ls_status st = report_write_text(out, "report.md", &md);
    ls_doc_html(d, &html);
    if (st == LS_OK) st = report_write_text(out, "report.html", &html); /* last: when it exists, all other files do */
    ls_str_fini(&html);
    ls_str_fini(&md);
    return st;
}

ls_status report_part_write(report_part *p)
{
    ls_doc d = {0};
    ls_status st = LS_OK;
    ls_report_doc(&p->a, p->bench, &d);
    if (d.failed) {
        st = ls_nomem(1024, "a report");
        goto done;
    }
    LS_TRY_GOTO(st, done, ls_fs_no_links(p->o.out));
    LS_TRY_GOTO(st, done, ls_fs_mkdirs(p->o.out));
    LS_TRY_GOTO(st, done, write_charts(&d, p->o.out, &p->r, p->o.png));
    LS_TRY_GOTO(st, done, write_scaling(&p->a, p->o.out));
    st = report_write_doc(&d, p->o.out);
done:
    ls_doc_fini(&d);
    return st;
}

static void tell(const ls_analysis *a, ls_report_result *r)
{
    const ls_run_set *set = a->set;
    for (int i = 0; i < set->notes.n; i++) ls_notes_add(&r->notes, "%s", set->notes.text[i]);
    for (int i = 0; i < a->n_mismatch && i < 8; i++) {
        const ls_mismatch *m = &a->mismatch[i];
        char base[400], other[400];
        ls_notes_add(&r->notes, "%s: %s differs from %s: %s, not %s", set->run[m->run].name, m->field,
                     set->run[m->base].name, content_json_text(other, sizeof other, m->other),
                     content_json_text(base, sizeof base, m->baseline));
    }
    if (a->n_mismatch > 8) ls_notes_add(&r->notes, "and %d more differences", a->n_mismatch - 8);
}

/* --- the runs, and how they were made --- */

typedef struct protocol {
    int warm; /* steps that were left out, the largest of several; 0: unknown */
    bool weak, apart, precisions;
} protocol;

static void read_protocol(const json_t *root, protocol *p)
{
    const report_doc d = {root, "", NULL};
    const int64_t warm = report_int(&d, "protocol.warmup_steps_excluded");
    const char *scaling = report_str(&d, "protocol.scaling");
    if (warm > p->warm && warm < 1000000) p->warm = (int)warm;
    if (scaling && !strcmp(scaling, "weak")) p->weak = true;
    if (ls_compares_precisions(root)) p->precisions = true;
}

/* The protocol of a benchmark, from the report next to its runs: scaling reports were read with the runs, the others are in the
 * folders given. */
static ls_status find_protocol(const report_part *part, protocol *p)
{
    const ls_report_opts *o = &part->o;
    const ls_found_bench *b = part->bench;
    *p = (protocol){0};
    if (b) read_protocol(b->root, p);
    if (b && b->root && b->kind == LS_BENCH_OF_R3) p->weak = p->apart = true; /* as the translation study */
    for (int i = 0; i < part->set.n_scaling; i++) read_protocol(part->set.scaling[i].root, p);
    for (int i = 0; i < o->n_path && !b; i++)
        for (int k = LS_BENCH_OF_SCALING + 1; k < LS_N_BENCH_KIND && ls_fs_is_dir(o->path[i]); k++) {
            json_t *root = NULL; /* one that cannot be read is no run: nothing is lost with it */
            LS_TRY(report_load(o->path[i], ls_bench_file[k], NULL, &root));
            read_protocol(root, p);
            if (root && k == LS_BENCH_OF_R3) p->weak = p->apart = true;
            json_decref(root);
        }
    return LS_OK;
}

static ls_status read_runs(report_part *p, int warm)
{
    const ls_report_opts *o = &p->o;
    ls_run_set *set = &p->set;
    ls_run_set_fini(set);
    set->warm = warm;
    set->apart = p->apart;
    for (int i = 0; i < o->n_path; i++) LS_TRY(ls_run_set_add(set, o->path[i]));
    ls_run_set_sort(set);
    return LS_OK;
}

/* Reads with the warm-up of the benchmark, so that the page has its numbers. Runs that are shorter than that are taken as they
 * recorded themselves, as there: with a warm-up by a rule of ours for the parts of their steps, which needs no speed. */
static ls_status read_alike(report_part *part, ls_compare_opts *c)
{
    const ls_report_opts *o = &part->o;
    const ls_run_set *set = &part->set;
    protocol p;
    bool shorter = false, longer = false;
    int asked;
    LS_TRY(read_runs(part, o->warm ? o->warm : LS_REPORT_WARM));
    LS_TRY(find_protocol(part, &p));
    if (!o->warm && p.warm && p.warm != set->warm) LS_TRY(read_runs(part, p.warm));
    for (int i = 0; i < set->n; i++) {
        const ls_run *r = &set->run[i];
        if (!r->metrics || !r->n_step) continue;
        *(r->n_step <= ls_run_first(r) ? &shorter : &longer) = true;
    }
    shorter = shorter && !longer; /* a short run among others is not compared */
    asked = set->warm;
    if (shorter) LS_TRY(read_runs(part, 0));
    *c = (ls_compare_opts){.allow_mismatch = o->allow_mismatch,
                           .weak = o->weak || p.weak,
                           .precisions = p.precisions,
                           .apart = p.apart,
                           .steady = !shorter,
                           .short_of = shorter ? asked : 0};
    return LS_OK;
}

bool report_part_readable(const report_part *part)
{
    const ls_run_set *set = &part->set;
    for (int i = 0; i < set->n; i++) {
        const ls_run *r = &set->run[i];
        const ls_run_proof *p = &r->proof;
        if (r->n_step || r->n_epoch || r->n_span || r->profile || !isnan(r->tokens_per_sec)) return true;
        if (p->nccl || p->topo || p->ibstat || p->nets[0]) return true;
    }
    return set->n_scaling > 0;
}

/* Whether only the batch differs, and is equal per worker. */
static ls_status looks_weak(const ls_analysis *a, bool *yes)
{
    ls_analysis b = {0};
    *yes = false;
    if (a->comparable || a->weak || !a->n_mismatch) return LS_OK;
    LS_TRY(ls_analyse(a->set, &(ls_compare_opts){.weak = true}, &b));
    *yes = b.comparable;
    ls_analysis_fini(&b);
    return LS_OK;
}

ls_status report_part_read(report_part *p)
{
    ls_compare_opts c;
    LS_TRY(read_alike(p, &c));
    LS_TRY(ls_analyse(&p->set, &c, &p->a));
    LS_TRY(looks_weak(&p->a, &p->r.looks_weak));
    p->r.n_run = p->set.n;
    p->r.n_group = p->a.n_group;
    p->r.n_mismatch = p->a.n_mismatch;
    p->r.comparable = p->a.comparable;
    tell(&p->a, &p->r);
    terminal_table(&p->a, p->bench, &p->r.table);
    content_interruptions_table(&p->set, &p->r.table);
    part_json(p, &p->r.json);
    return LS_OK;
}

void report_part_fini(report_part *p)
{
    ls_analysis_fini(&p->a);
    ls_run_set_fini(&p->set);
    ls_report_result_fini(&p->r);
}

/* --- the report --- */

/* All runs are one part. */
static ls_status write_one(const ls_report_opts *o, const ls_found_bench *bench, ls_report_result *r)
{
    report_part p = {.o = *o, .bench = bench};
    ls_status st = report_part_read(&p);
    if (st == LS_OK && !report_part_readable(&p))
        st = ls_fail(LS_E_FORMAT, "no %srun found in %s%s", p.set.n ? "readable " : "",
                     o->n_path ? o->path[0] : "nothing", o->n_path > 1 ? " and the other paths" : "");
    else if (st == LS_OK) st = report_part_write(&p);
    if (st != LS_E_NOMEM) {
        *r = p.r;
        p.r = (ls_report_result){0};
    }
    report_part_fini(&p);
    return st;
}

/* A run that is given itself is compared with all others; those that are found below a folder, inside their benchmark. */
static bool folders_alone(const ls_report_opts *o)
{
    for (int i = 0; i < o->n_path; i++)
        if (!ls_fs_is_dir(o->path[i]) || ls_is_run(o->path[i])) return false;
    return true;
}

ls_status ls_report_write(const ls_report_opts *o, ls_report_result *result)
{
    ls_found_benches all = {0};
    ls_status st = LS_OK;
    *result = (ls_report_result){0};
    for (int i = 0; i < o->n_path && st == LS_OK; i++) st = ls_benches_find(&all, o->path[i]);
    if (st == LS_OK && !o->together && all.n && folders_alone(o)) st = report_write_sections(o, &all, result);
    if (st == LS_OK && !result->n_part) st = write_one(o, o->n_path == 1 && all.n == 1 ? &all.bench[0] : NULL, result);
    ls_benches_fini(&all);
    return st;
}

void ls_report_result_fini(ls_report_result *r)
{
    ls_str_fini(&r->table);
    ls_str_fini(&r->json);
    ls_notes_fini(&r->notes);
    *r = (ls_report_result){0};
}
