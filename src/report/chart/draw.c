/* draw.c - charts as files: our SVG always, PNG if gnuplot can draw it. */
#include "core/fs.h"
#include "core/mem.h"
#include "report/page/report_impl.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

ls_status report_write_text(const char *dir, const char *name, const ls_str *text)
{
    if (text->failed) return ls_nomem(text->cap, name);
    char *path = ls_path_join(dir, name);
    if (!path) return ls_nomem(strlen(dir), "a path");
    ls_status st = ls_fs_write(path, text->data ? text->data : "", text->len);
    ls_free(path);
    return st;
}

static ls_status draw_png(const ls_chart *c, const char *dir, report_pen *pen)
{
    ls_str script = {0};
    ls_status st = LS_OK;
    char *png = ls_asprintf("%s/%s.png", dir, c->file), *gp = ls_asprintf("%s/.%s.gp", dir, c->file);
    if (!png || !gp) {
        st = ls_nomem(strlen(dir), "a path");
        goto done;
    }
    ls_gnuplot_text(c, png, &script);
    if (script.failed) st = ls_nomem(script.cap, "a script for gnuplot");
    if (st != LS_OK) goto done;
    LS_TRY_GOTO(st, done, ls_fs_write(gp, script.data, script.len));
    if (ls_gnuplot_run(gp, &pen->there) != LS_OK) {
        if (!pen->n_failed++) snprintf(pen->words, sizeof pen->words, "%s", ls_err_words());
        ls_err_clear();
        unlink(png); /* half a picture, or an earlier report's */
    } else if (pen->there) pen->n_png++;
done:
    if (gp) unlink(gp);
    ls_str_fini(&script);
    ls_free(png);
    ls_free(gp);
    return st;
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
