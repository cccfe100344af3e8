#include "report/page/report.h"
#include "core/fs.h"
#include "core/mem.h"
#include "report/page/content.h"

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
    r->no_gnuplot = png && !pen.there;
    ls_str_fini(&words);
    return LS_OK;
}

/* "pp (1f1b)" -> scaling_report_pp_1f1b.json */
static void scaling_file(const char *setting, int i, char *file, size_t cap)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t n = (size_t)snprintf(file, cap, "scaling_report");
    bool gap = true;
    for (const char *p = setting; *p && n + 8 < cap; p++) {
        const bool fits = strchr(plain, *p) != NULL;
        if (fits && gap) file[n++] = '_';
        if (fits) file[n++] = *p;
        gap = !fits;
    }
    if (n + 8 < cap) snprintf(file + n, cap - n, ".json");
    else
        snprintf(file, cap, "scaling_report_setting_%d.json",
                 i + 1); /* too long for a file: `setting` in it has the name */
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

static void terminal_table(const ls_analysis *a, ls_str *out)
{
    const int wide = ls_name_width(a);
    if (!a->n_group) return;
    ls_str_addf(out, "%-*s workers runs     tokens/s   95 %%  speed-up efficiency     loss\n", wide, "setting");
    for (int i = 0; i < a->n_group; i++) {
        const ls_group *g = &a->group[i];
        const char *rest = g->short_name;
        char rate[40], half[24] = "-", up[24] = "-", eff[24] = "-";
        ls_str loss = {0};
        if (g->tokens.half >= 0) snprintf(half, sizeof half, "%.1f %%", 100 * g->tokens.half / g->tokens.mean);
        if (!isnan(g->speedup.mean)) snprintf(up, sizeof up, "%.2f", g->speedup.mean);
        if (!isnan(g->efficiency.mean)) snprintf(eff, sizeof eff, "%.1f %%", 100 * g->efficiency.mean);
        ls_loss_words(a, g, false, true, &loss);
        ls_str_add_piece(out, &rest, wide);
        ls_str_addf(out, " %7d %4d %12s %6s %9s %10s %8s\n", g->world, g->n_run,
                    isnan(g->tokens.mean) ? "-" : ls_number_text(rate, g->tokens.mean, 1), half, up, eff,
                    loss.data ? loss.data : "-");
        ls_str_fini(&loss);
        ls_name_rest(out, rest, wide);
    }
    ls_basis_words(a, out);
    ls_str_addc(out, '\n');
    const size_t before = out->len;
    ls_winner_words(a, out);
    if (out->len > before) ls_str_addc(out, '\n');
}

static ls_status write_all(const ls_analysis *a, const ls_report_opts *o, ls_report_result *r)
{
    ls_doc d = {0};
    ls_str html = {0}, md = {0};
    ls_status st = LS_OK;
    ls_report_doc(a, &d);
    if (d.failed) {
        st = ls_nomem(1024, "a report");
        goto done;
    }
    LS_TRY_GOTO(st, done, ls_fs_mkdirs(o->out));
    LS_TRY_GOTO(st, done, write_charts(&d, o->out, r, o->png));
    LS_TRY_GOTO(st, done, write_scaling(a, o->out));
    ls_doc_markdown(&d, "charts", &md);
    LS_TRY_GOTO(st, done, report_write_text(o->out, "report.md", &md));
    ls_doc_html(&d, &html);
    st = report_write_text(o->out, "report.html", &html); /* last: when it exists, all other files do */
done:
    ls_str_fini(&html);
    ls_str_fini(&md);
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
    bool weak, apart;
} protocol;

static void read_protocol(const json_t *root, protocol *p)
{
    const report_doc d = {root, "", NULL};
    const int64_t warm = report_int(&d, "protocol.warmup_steps_excluded");
    const char *scaling = report_str(&d, "protocol.scaling");
    if (warm > p->warm && warm < 1000000) p->warm = (int)warm;
    if (scaling && !strcmp(scaling, "weak")) p->weak = true;
}

/* The protocol of a benchmark, from the report next to its runs: scaling reports were read with the runs, the others are in the
 * folders given. */
static ls_status find_protocol(const ls_run_set *set, const ls_report_opts *o, protocol *p)
{
    static const char *const file[] = {"strategies_report.json", "ab_report.json", "r3_report.json"};
    *p = (protocol){0};
    for (int i = 0; i < set->n_scaling; i++) read_protocol(set->scaling[i].root, p);
    for (int i = 0; i < o->n_path; i++)
        for (int k = 0; k < 3 && ls_fs_is_dir(o->path[i]); k++) {
            json_t *root = NULL; /* one that cannot be read is no run: nothing is lost with it */
            LS_TRY(report_load(o->path[i], file[k], NULL, &root));
            read_protocol(root, p);
            if (root && k == 2) p->weak = p->apart = true; /* the comparisons of R3 */
            json_decref(root);
        }
    return LS_OK;
}

static ls_status read_runs(const ls_report_opts *o, int warm, ls_run_set *set)
{
    ls_run_set_fini(set);
    set->warm = warm;
    for (int i = 0; i < o->n_path; i++) LS_TRY(ls_run_set_add(set, o->path[i]));
    ls_run_set_sort(set);
    return LS_OK;
}

/* Reads with the warm-up of the benchmark, so that the page has its numbers. Runs that are shorter than that are taken as they
 * recorded themselves, as there: with a warm-up by a rule of ours for the parts of their steps, which needs no speed. */
static ls_status read_alike(const ls_report_opts *o, ls_run_set *set, ls_compare_opts *c)
{
    protocol p;
    bool shorter = false;
    int asked;
    LS_TRY(read_runs(o, o->warm ? o->warm : LS_REPORT_WARM, set));
    LS_TRY(find_protocol(set, o, &p));
    if (!o->warm && p.warm && p.warm != set->warm) LS_TRY(read_runs(o, p.warm, set));
    for (int i = 0; i < set->n; i++)
        shorter =
            shorter || (set->run[i].metrics && set->run[i].n_step > 0 && set->run[i].n_step <= set->run[i].n_warm);
    asked = set->warm;
    if (shorter) LS_TRY(read_runs(o, 0, set));
    *c = (ls_compare_opts){.allow_mismatch = o->allow_mismatch,
                           .weak = o->weak || p.weak,
                           .apart = p.apart,
                           .steady = !shorter,
                           .short_of = shorter ? asked : 0};
    return LS_OK;
}

/* Whether there is one run with something to report. */
static bool any_readable(const ls_run_set *set)
{
    for (int i = 0; i < set->n; i++) {
        const ls_run *r = &set->run[i];
        const ls_run_proof *p = &r->proof;
        if (r->n_step || r->n_epoch || r->n_span || r->profile || !isnan(r->tokens_per_sec)) return true;
        if (p->nccl || p->topo || p->ibstat || p->nets[0]) return true;
    }
    return false;
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

ls_status ls_report_write(const ls_report_opts *o, ls_report_result *result)
{
    ls_run_set set = {0};
    ls_analysis a = {0};
    ls_compare_opts c;
    ls_report_result r = {0};
    ls_status st = LS_OK;
    LS_TRY_GOTO(st, done, read_alike(o, &set, &c));
    LS_TRY_GOTO(st, done, ls_analyse(&set, &c, &a));
    LS_TRY_GOTO(st, done, looks_weak(&a, &r.looks_weak));
    r.n_run = set.n;
    r.n_group = a.n_group;
    r.n_mismatch = a.n_mismatch;
    r.comparable = a.comparable;
    tell(&a, &r);
    terminal_table(&a, &r.table);
    if (!any_readable(&set) && !set.n_scaling)
        st = ls_fail(LS_E_FORMAT, "no %srun found in %s%s", set.n ? "readable " : "",
                     o->n_path ? o->path[0] : "nothing", o->n_path > 1 ? " and the other paths" : "");
    else st = write_all(&a, o, &r);
done:
    ls_analysis_fini(&a);
    ls_run_set_fini(&set);
    if (st == LS_E_NOMEM) ls_report_result_fini(&r);
    *result = r;
    return st;
}

void ls_report_result_fini(ls_report_result *r)
{
    ls_str_fini(&r->table);
    ls_notes_fini(&r->notes);
    *r = (ls_report_result){0};
}
