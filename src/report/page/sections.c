/* sections.c - a report of several benchmarks. Only runs of one benchmark are compared with one another.
 *
 *   report/report.html             an overview, then one section per benchmark: verdict, chart, table
 *   report/benchmarks.json         the verdict of each
 *   report/<benchmark>/            the complete report of each, as if it had been made alone
 */
#include "core/clock.h"
#include "core/fs.h"
#include "core/mem.h"
#include "report/page/report_impl.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct section {
    report_part part;
    char name[80]; /* its folder below that of the report */
    char *out;
} section;

typedef struct sections {
    section *s;
    int n;
} sections;

/* --- the parts --- */

/* Whether a path is at or below a benchmark. */
static bool inside_bench(const ls_found_benches *all, const char *path)
{
    char real[PATH_MAX];
    if (!realpath(path, real)) return false;
    for (int i = 0; i < all->n; i++) {
        const size_t n = strlen(all->bench[i].real);
        if (!strncmp(real, all->bench[i].real, n) && (!real[n] || real[n] == '/')) return true;
    }
    return false;
}

/* The paths whose runs outside of benchmarks are a part of their own. */
static ls_status outside(const ls_report_opts *o, const ls_found_benches *all, ls_argv *out)
{
    for (int i = 0; i < o->n_path; i++)
        if (!inside_bench(all, o->path[i])) LS_TRY(ls_argv_add(out, o->path[i]));
    return LS_OK;
}

/* A folder name that no other section has. */
static void name_section(const sections *all, section *s)
{
    const char *dir = s->part.bench ? s->part.bench->real : "runs", *last = strrchr(dir, '/');
    char plain[64];
    report_slug(last ? last + 1 : dir, plain, sizeof plain);
    if (!plain[strspn(plain, ".")] || !strcmp(plain, "charts")) snprintf(plain, sizeof plain, "bench");
    snprintf(s->name, sizeof s->name, "%s", plain);
    for (int k = 2, i = 0; i < all->n; i++)
        if (!strcmp(all->s[i].name, s->name)) {
            snprintf(s->name, sizeof s->name, "%s-%d", plain, k++);
            i = -1;
        }
}

/* Reads a part and keeps it if it has something to report. */
static ls_status add_part(sections *all, const ls_report_opts *o, const ls_found_bench *bench, const ls_argv *path)
{
    section *s = &all->s[all->n];
    *s = (section){.part = {.o = *o, .bench = bench, .apart = true}};
    s->part.o.path = (const char *const *)path->word;
    s->part.o.n_path = path->n;
    ls_status st = report_part_read(&s->part);
    if (st == LS_OK && report_part_readable(&s->part)) {
        name_section(all, s);
        s->out = ls_path_join(o->out, s->name);
        if (s->out) {
            s->part.o.out = s->out;
            all->n++;
            return LS_OK;
        }
        st = ls_nomem(strlen(o->out), "a path");
    }
    report_part_fini(&s->part);
    return st;
}

static ls_status read_parts(const ls_report_opts *o, const ls_found_benches *benches, const ls_argv *others,
                            sections *all)
{
    all->s = ls_alloc((size_t)(benches->n + 1) * sizeof *all->s);
    if (!all->s) return ls_nomem((size_t)benches->n * sizeof *all->s, "sections");
    for (int i = 0; i < benches->n; i++) LS_TRY(add_part(all, o, &benches->bench[i], &benches->bench[i].path));
    return others->n ? add_part(all, o, NULL, others) : LS_OK;
}

/* --- the page --- */

/* A benchmark whose runs are not comparable is invalid; runs outside of one need not be comparable. */
static bool is_invalid(const section *s)
{
    return s->part.bench && s->part.a.n_mismatch && !s->part.a.comparable;
}

static void overview(const sections *all, ls_doc *d)
{
    ls_doc_add(d, LS_BLOCK_SECTION, "Overview");
    ls_doc_add(
        d, LS_BLOCK_TEXT,
        "Each benchmark answers its own question with its own work, so runs are compared inside a benchmark only; --together compares all of them.");
    ls_block *b = ls_doc_table(d, NULL, "benchmark", "settings", "runs", "result");
    for (int i = 0; i < all->n; i++) {
        const report_part *p = &all->s[i].part;
        ls_str title = {0}, verdict = {0};
        content_bench_title(p->bench, &title);
        content_verdict(&p->a, p->bench, &verdict);
        ls_doc_cells(d, b, title.data, LS_TEXT("%d", p->a.n_group), LS_TEXT("%d", p->set.n), verdict.data);
        d->failed = d->failed || title.failed || verdict.failed;
        ls_str_fini(&title);
        ls_str_fini(&verdict);
    }
}

static ls_status write_page(const ls_report_opts *o, const sections *all)
{
    ls_doc d = {0};
    char now[24];
    int n_run = 0, n_bench = 0;
    for (int i = 0; i < all->n; i++) {
        n_run += all->s[i].part.set.n;
        n_bench += all->s[i].part.bench != NULL;
    }
    ls_utc_stamp(now);
    snprintf(d.title, sizeof d.title, "%s", n_bench > 1 ? "Benchmarks" : "A benchmark and other runs");
    ls_doc_add(&d, LS_BLOCK_TEXT, "%d runs, %d %s, %s, lockstep %s", n_run, n_bench,
               n_bench == 1 ? "benchmark" : "benchmarks", now, LS_VERSION);
    overview(all, &d);
    for (int i = 0; i < all->n; i++) content_bench(&all->s[i].part.a, all->s[i].part.bench, all->s[i].name, &d);
    const ls_status st = d.failed ? ls_nomem(1024, "a report") : report_write_doc(&d, o->out);
    ls_doc_fini(&d);
    return st;
}

static ls_status write_json(const ls_report_opts *o, const sections *all)
{
    ls_str out = {0};
    ls_jsonw w;
    ls_jsonw_init(&w, &out, 2);
    ls_jsonw_open(&w, '{');
    ls_jsonw_put_open(&w, "benchmarks", '[');
    for (int i = 0; i < all->n; i++) {
        const section *s = &all->s[i];
        const report_part *p = &s->part;
        ls_str verdict = {0};
        content_verdict(&p->a, p->bench, &verdict);
        ls_jsonw_open(&w, '{');
        ls_jsonw_members(&w, LS_KV("folder", p->bench ? p->bench->dir : "runs outside of a benchmark"),
                         LS_KV("status", is_invalid(s)                         ? "invalid_comparison"
                                         : p->a.n_mismatch && !p->a.comparable ? "not_compared"
                                         : p->a.n_mismatch                     ? "mismatch_allowed"
                                                                               : "ok"),
                         LS_KV("runs", p->set.n), LS_KV("settings", p->a.n_group),
                         LS_KV("verdict", verdict.data ? verdict.data : ""), LS_KV("report", s->name));
        ls_jsonw_key(&w, "result_file");
        if (p->bench && p->bench->kind < LS_N_BENCH_KIND) ls_jsonw_str(&w, ls_bench_file[p->bench->kind]);
        else ls_jsonw_null(&w);
        ls_jsonw_close(&w);
        ls_str_fini(&verdict);
    }
    ls_jsonw_close(&w);
    ls_jsonw_close(&w);
    const ls_status st = report_write_text(o->out, "benchmarks.json", &out);
    ls_str_fini(&out);
    return st;
}

/* --- the result --- */

static void add_result(const section *s, ls_report_result *r)
{
    const report_part *p = &s->part;
    ls_str title = {0};
    content_bench_title(p->bench, &title);
    r->n_part++;
    r->n_run += p->r.n_run;
    r->n_group += p->r.n_group;
    r->n_chart += p->r.n_chart;
    r->n_png += p->r.n_png;
    r->no_rsvg = r->no_rsvg || p->r.no_rsvg;
    r->looks_weak = r->looks_weak || (is_invalid(s) && p->r.looks_weak);
    if (is_invalid(s)) r->n_mismatch += p->r.n_mismatch;
    for (int i = 0; i < p->r.notes.n && (p->bench || !p->a.n_mismatch); i++)
        ls_notes_add(&r->notes, "%s: %s", title.data ? title.data : "", p->r.notes.text[i]);
    ls_str_addf(&r->table, "%s%s\n", r->n_part > 1 ? "\n" : "", title.data ? title.data : "");
    if (p->r.table.data) ls_str_add(&r->table, p->r.table.data);
    if (p->a.n_mismatch && !p->a.comparable) {
        content_verdict(&p->a, p->bench, &r->table);
        ls_str_addc(&r->table, '\n');
    }
    if (p->r.json.data) ls_str_addf(&r->json, "%s%s", r->json.len ? ", " : "", p->r.json.data);
    ls_str_fini(&title);
}

ls_status report_write_sections(const ls_report_opts *o, const ls_found_benches *benches, ls_report_result *r)
{
    sections all = {0};
    ls_argv others = {0};
    ls_status st = LS_OK;
    LS_TRY_GOTO(st, done, outside(o, benches, &others));
    LS_TRY_GOTO(st, done, read_parts(o, benches, &others, &all));
    if (all.n < 2) goto done; /* one page for all */
    LS_TRY_GOTO(st, done, ls_fs_mkdirs(o->out));
    unlink(ls_path_of(o->out, "scaling_report.json").text); /* of an earlier report of one benchmark */
    for (int i = 0; i < all.n; i++) LS_TRY_GOTO(st, done, report_part_write(&all.s[i].part));
    LS_TRY_GOTO(st, done, write_json(o, &all));
    LS_TRY_GOTO(st, done, write_page(o, &all));
    for (int i = 0; i < all.n; i++) add_result(&all.s[i], r);
    r->comparable = !r->n_mismatch;
done:
    for (int i = 0; i < all.n; i++) {
        report_part_fini(&all.s[i].part);
        ls_free(all.s[i].out);
    }
    ls_free(all.s);
    ls_argv_fini(&others);
    return st;
}
