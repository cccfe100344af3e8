/* draw.c - charts as files: our SVG always, PNG if gnuplot can draw it. */
#include "core/fs.h"
#include "core/mem.h"
#include "report/chart/chart.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

ls_status report_write_text(const char *dir, const char *name, const ls_str *text)
{
    if (text->failed) return ls_nomem(text->cap, name);
    return ls_fs_write(ls_path_in(dir, name).text, text->data ? text->data : "", text->len);
}

static ls_status draw_png(const ls_chart *c, const char *dir, report_pen *pen)
{
    ls_str script = {0};
    char name[64];
    snprintf(name, sizeof name, "%.50s.png", c->file);
    const ls_path png = ls_path_in(dir, name);
    snprintf(name, sizeof name, ".%.50s.gp", c->file);
    const ls_path gp = ls_path_in(dir, name);
    ls_gnuplot_text(c, png.text, &script);
    ls_status st = report_write_text(dir, name, &script);
    ls_str_fini(&script);
    LS_TRY(st);
    if (ls_gnuplot_run(gp.text, &pen->there) != LS_OK) {
        if (!pen->n_failed++) snprintf(pen->words, sizeof pen->words, "%s", ls_err_words());
        ls_err_clear();
        unlink(png.text); /* half a picture, or an earlier report's */
    } else if (pen->there) pen->n_png++;
    unlink(gp.text);
    return LS_OK;
}

ls_status report_write_chart(const ls_chart *c, const char *dir, report_pen *pen)
{
    ls_str svg = {0};
    char name[64];
    snprintf(name, sizeof name, "%.50s.svg", c->file);
    ls_svg_draw(c, 760, true, &svg);
    ls_status st = report_write_text(dir, name, &svg);
    ls_str_fini(&svg);
    LS_TRY(st);
    return pen->there ? draw_png(c, dir, pen) : LS_OK;
}

void report_pen_words(const report_pen *pen, ls_str *out)
{
    if (!pen->n_failed) return;
    size_t n = strcspn(pen->words, "\n");
    ls_str_addf(out, "%.*s", (int)n, pen->words);
    if (pen->n_failed > 1) ls_str_addf(out, " (and %d more)", pen->n_failed - 1);
    ls_str_addf(out, ": %s", pen->n_failed > 1 ? "those charts are SVG files only" : "that chart is an SVG file only");
}
