/* draw.c - charts as files: our SVG always, PNG if gnuplot can draw it. The script contains its data. */
#include "core/fs.h"
#include "core/mem.h"
#include "report/chart/chart.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const colour[] = {"#0072b2", "#d55e00", "#009e73", "#a84880",
                                     "#56b4e9", "#e69f00", "#7b8794", "#a89600"};

/* A text for double quotes of gnuplot: marks that it would read are taken out. */
static void plain(ls_str *out, const char *text)
{
    char code[16];
    const char *shown;
    for (const char *p = text; *p;) {
        const int n = ls_char_shown(p, code, &shown);
        if (*p == '"') ls_str_addc(out, '\'');
        else if (*p == '\\' || *p == '`' || *p == '\n' || *p == '\t') ls_str_addc(out, ' ');
        else if (shown) ls_str_add(out, shown);
        else ls_str_addn(out, p, (size_t)n);
        p += n;
    }
}

static void quoted(ls_str *out, const char *text)
{
    ls_str_addc(out, '"');
    plain(out, text);
    ls_str_addc(out, '"');
}

static void put_number(ls_str *out, double x)
{
    if (isnan(x)) ls_str_add(out, " NaN");
    else ls_str_addf(out, " %.9g", x);
}

static double scaled(const ls_chart *c, double x)
{
    return x * (c->scale != 0 ? c->scale : 1);
}

static void data_blocks(const ls_chart *c, ls_str *out)
{
    for (int i = 0; i < c->n_series; i++) {
        const ls_series *s = &c->series[i];
        ls_str_addf(out, "$s%d << EOD\n", i);
        for (int k = 0; k < s->n; k++) {
            const ls_point *p = &s->point[k];
            bool gantt = c->kind == LS_CHART_GANTT;
            put_number(out, gantt ? scaled(c, p->x) : p->x);
            put_number(out, scaled(c, p->y));
            put_number(out, scaled(c, p->lo)); /* NaN: no interval is drawn */
            put_number(out, scaled(c, p->hi));
            ls_str_addf(out, " %d\n", p->lane);
        }
        if (!s->n) ls_str_add(out, " NaN NaN NaN NaN 0\n");
        ls_str_add(out, "EOD\n");
    }
}

/* --- layout: all margins are set, in pixels, so that no text is cut off --- */

enum { WIDTH = 960, TOP = 44, LINE = 19, AXIS = 62 }; /* AXIS: tics and label of the x axis */

/* Columns of a name, and where it is wrapped. */
enum { NAME = 40, KEY = 100 };

static double pixels(const char *text)
{
    double n = 0;
    for (const char *p = text; *p; p++) n += (*p & 0xc0) != 0x80;
    return 7.6 * n;
}

/* A text in double quotes, in lines of at most `columns`, with `between` after each; returns their number. out NULL: nothing is written. */
static int joined_lines(ls_str *out, const char *text, int columns, const char *between)
{
    ls_str all = {0};
    int n = 0;
    do {
        const size_t k = ls_line_of(text, columns, NULL);
        ls_str line = {0};
        if (n++) ls_str_add(&all, between);
        ls_str_addn(&line, text, k);
        plain(&all, line.data ? line.data : "");
        ls_str_fini(&line);
        text += k;
        text += strspn(text, " ");
    } while (*text);
    if (out) ls_str_addf(out, "\"%s\"", all.data ? all.data : "");
    if (out && all.failed) out->failed = true;
    ls_str_fini(&all);
    return n;
}

static int quoted_lines(ls_str *out, const char *text, int columns)
{
    return joined_lines(out, text, columns, "\\n");
}

/* The name of a series in the key. gnuplot gives every entry one line, so each further line of a name is an entry without a sample. */
static int key_entry(ls_str *out, const char *name)
{
    return joined_lines(out, name, KEY, "\", \\\n  NaN with dots lc rgb \"#ffffff\" title \"");
}

/* Lines of the key below the plot, one name after the other. */
static int key_lines(const ls_chart *c)
{
    int lines = 0;
    for (int i = 0; i < c->n_series && c->kind != LS_CHART_BARS; i++)
        if (c->series[i].n) lines += key_entry(NULL, c->series[i].name);
    return lines;
}

/* Height of a row of bars: the most lines of a name. */
static int row_height(const ls_chart *c)
{
    int most = 1;
    for (int k = 0; k < c->n_category; k++) {
        const int n = quoted_lines(NULL, c->category[k], NAME);
        most = n > most ? n : most;
    }
    return most * LINE + 22;
}

static double left_room(const ls_chart *c)
{
    double longest = 0;
    for (int k = 0; k < c->n_category; k++) longest = fmax(longest, fmin(pixels(c->category[k]), 7.6 * NAME) * 1.08);
    return c->kind == LS_CHART_LINES ? 84 : longest + 30;
}

/* Room for the numbers after the bars. */
static double right_room(const ls_chart *c)
{
    double longest = 0;
    if (c->kind != LS_CHART_BARS) return c->kind == LS_CHART_STACK ? 90 : 30;
    for (int i = 0; i < c->n_series; i++)
        for (int k = 0; k < c->series[i].n; k++) {
            char t[160];
            ls_chart_value(c, &c->series[i].point[k], t, sizeof t);
            longest = fmax(longest, pixels(t));
        }
    return longest + 34;
}

static void plot_lines(const ls_chart *c, ls_str *out)
{
    static const char *const look[] = {"pt 7", "dt 2 pt 5", "dt 3 pt 9", "dt 4 pt 13"}; /* as in the SVG */
    const char *between = "";
    double tick[8], lo = INFINITY, hi = -INFINITY;
    int n_tick;
    if (c->zero) ls_str_add(out, "set yrange [0:*]\n");
    if (ls_chart_ticks(c, tick, &n_tick)) {
        ls_str_add(out, "set xtics (");
        for (int i = 0; i < n_tick; i++) {
            ls_str_addf(out, "%s%.9g", i ? ", " : "", tick[i]);
            lo = fmin(lo, tick[i]), hi = fmax(hi, tick[i]);
        }
        const double room = hi > lo ? 0.04 * (hi - lo) : 0.5; /* intervals beside the frame */
        ls_str_addf(out, ")\nset xrange [%.9g:%.9g]\n", lo - room, hi + room);
    }
    ls_str_add(out, "plot ");
    for (int bars = 1; bars >= 0; bars--) { /* intervals first, so that marks lie on them */
        for (int i = 0; i < c->n_series; i++) {
            const ls_series *s = &c->series[i];
            if (!s->n || (bars && (s->ideal || s->dots || s->n > 40))) continue;
            ls_str_addf(out, "%s$s%d using 1:2", between, i);
            between = ", \\\n  ";
            if (bars) {
                ls_str_add(out, ":3:4 with yerrorbars lc rgb \"#1c2430\" pt 0 notitle");
                continue;
            }
            ls_str_addf(out, " with %s lc rgb \"%s\" lw 2 %s title ",
                        s->dots                 ? "points"
                        : s->n > 40 || s->ideal ? "lines"
                                                : "linespoints",
                        s->ideal ? "#9aa5b1" : colour[ls_chart_hue(c, i)], s->ideal ? "dt 2" : look[ls_chart_mark(i)]);
            key_entry(out, s->name);
        }
    }
    ls_str_addc(out, '\n');
}

static void category_tics(const ls_chart *c, ls_str *out)
{
    ls_str_add(out, "set ytics (");
    for (int k = 0; k < c->n_category; k++) {
        ls_str_add(out, k ? ", " : "");
        quoted_lines(out, c->category[k], NAME);
        ls_str_addf(out, " %d", k);
    }
    ls_str_addf(out, ")\nset yrange [%g:-0.5]\nset style fill solid 1 noborder\n", c->n_category - 0.5);
}

/* A box from a to b in row k. */
static void box(ls_str *out, int *id, double a, double b, double row, const char *hue, bool idle)
{
    ls_str_addf(out, "set object %d rect from %.9g,%g to %.9g,%g fc rgb \"%s\" fs %s noborder\n", (*id)++, a,
                row - 0.32, b, row + 0.32, idle ? "#9aa5b1" : hue, idle ? "pattern 4" : "solid");
}

static void number(ls_str *out, double x, double row, const char *where, const char *text)
{
    ls_str_add(out, "set label ");
    quoted(out, text);
    ls_str_addf(out, " at %.9g,%g %s front\n", x, row, where);
}

/* The x axis of bars: from the lowest to the highest end; wider intervals run out of the picture, as in the SVG. */
typedef struct extent {
    double lo, hi;
} extent;

static extent bar_extent(const ls_chart *c)
{
    extent e = {0, c->end};
    double room = 0;
    for (int k = 0; k < c->n_category; k++) {
        double plus = 0, minus = 0;
        for (int i = 0; i < c->n_series; i++)
            for (int j = 0; j < c->series[i].n; j++) {
                const ls_point *p = &c->series[i].point[j];
                if (c->kind == LS_CHART_GANTT) plus = fmax(plus, p->y);
                else if ((int)p->x == k) *(p->y < 0 ? &minus : &plus) += p->y;
                if (c->kind == LS_CHART_BARS && !isnan(p->hi)) room = fmax(room, p->hi);
            }
        e.hi = fmax(e.hi, plus), e.lo = fmin(e.lo, minus);
    }
    e.hi = fmax(e.hi, fmin(room, 1.6 * e.hi));
    if (e.hi <= e.lo) e.hi = e.lo + 1;
    return (extent){scaled(c, e.lo), scaled(c, e.hi)};
}

/* The boxes of one row, with their numbers: inside the segments of a stack where there is room, and after the bar. */
static void plot_row(const ls_chart *c, int k, const extent *e, int *id, ls_str *out)
{
    const double per_pixel = (e->hi - e->lo) / (WIDTH - left_room(c) - right_room(c));
    double plus = 0, minus = 0;
    char t[160];
    for (int i = 0; i < c->n_series; i++)
        for (int j = 0; j < c->series[i].n; j++) {
            const ls_point *p = &c->series[i].point[j];
            const bool gantt = c->kind == LS_CHART_GANTT;
            const int hue = ls_chart_hue(c, i);
            if ((gantt ? p->lane : (int)p->x) != k) continue;
            double *at = p->y < 0 ? &minus : &plus;
            const double from = scaled(c, gantt ? p->x : *at), to = scaled(c, gantt ? p->y : *at + p->y);
            box(out, id, from, to, k, colour[hue], c->series[i].idle);
            if (!gantt) *at += p->y;
            if (gantt) snprintf(t, sizeof t, "%.40s", p->label ? p->label : "");
            else ls_chart_value(c, p, t, sizeof t);
            if (c->kind != LS_CHART_BARS && *t && pixels(t) + 4 < fabs(to - from) / per_pixel)
                number(out, (from + to) / 2, k,
                       hue == 0 || hue == 3 ? "center font \"sans,9\" tc rgb \"#ffffff\"" : "center font \"sans,9\"",
                       t);
            if (c->kind == LS_CHART_BARS)
                number(out, fmax(to, isnan(p->hi) ? to : fmin(scaled(c, p->hi), e->hi)) + 8 * per_pixel, k, "left", t);
        }
    if (c->kind == LS_CHART_STACK && c->unit && strcmp(c->unit, "%")) /* shares sum to 100 */
        number(out, scaled(c, plus) + 8 * per_pixel, k, "left",
               ls_number_text((char[40]){0}, scaled(c, plus + minus), c->decimals));
}

static bool has_interval(const ls_series *s)
{
    for (int k = 0; k < s->n; k++)
        if (!isnan(s->point[k].hi)) return true;
    return false;
}

static void plot_bars(const ls_chart *c, ls_str *out)
{
    const extent e = bar_extent(c);
    int id = 1;
    category_tics(c, out);
    for (int k = 0; k < c->n_category; k++) plot_row(c, k, &e, &id, out);
    ls_str_addf(out, "set xrange [%.9g:%.9g]\nplot NaN notitle", e.lo, e.hi);
    for (int i = 0; i < c->n_series; i++) {
        if (!c->series[i].n) continue;
        if (c->kind == LS_CHART_BARS) {
            if (has_interval(&c->series[i]))
                ls_str_addf(out, ", \\\n  $s%d using 2:1:3:4 with xerrorbars lc rgb \"#1c2430\" pt 0 lw 1.5 notitle",
                            i);
        } else {
            ls_str_addf(out, ", \\\n  NaN with boxes lc rgb \"%s\"%s title ",
                        c->series[i].idle ? "#9aa5b1" : colour[ls_chart_hue(c, i)],
                        c->series[i].idle ? " fs pattern 4" : "");
            key_entry(out, c->series[i].name);
        }
    }
    ls_str_addc(out, '\n');
}

static void begin_script(const ls_chart *c, const char *png, double height, ls_str *out)
{
    ls_str_addf(out, "set terminal pngcairo size %d,%.0f font \"sans,11\" noenhanced\nset output ", WIDTH, height);
    quoted(out, png);
    ls_str_add(out, "\nset border 3\nset tics nomirror out\nset grid lc rgb \"#e3e7ec\"\n");
    data_blocks(c, out);
}

static void one_plot(const ls_chart *c, const char *png, ls_str *out)
{
    const int lines = key_lines(c), key = lines ? lines * LINE + 16 : 0;
    const int plot = c->kind == LS_CHART_LINES ? 330 : row_height(c) * (c->n_category < 100 ? c->n_category : 100);
    const double height = TOP + plot + AXIS + key;
    begin_script(c, png, height, out);
    ls_str_add(out, "set title ");
    quoted(out, c->title ? c->title : "");
    ls_str_add(out, "\nset xlabel ");
    quoted(out, c->x_label ? c->x_label : "");
    ls_str_add(out, "\nset ylabel ");
    quoted(out, c->kind == LS_CHART_LINES && c->y_label ? c->y_label : "");
    ls_str_addf(out, "\nset lmargin at screen %.5f\nset rmargin at screen %.5f\nset tmargin at screen %.5f\n",
                left_room(c) / WIDTH, 1 - right_room(c) / WIDTH, 1 - TOP / height);
    ls_str_addf(out, "set bmargin at screen %.5f\n", (AXIS + key) / height);
    if (lines)
        ls_str_addf(out, "set key at screen %.5f, screen %.5f left top vertical maxcols 1 Left reverse\n",
                    left_room(c) / WIDTH, (key + 2) / height);
    if (c->kind == LS_CHART_LINES) plot_lines(c, out);
    else plot_bars(c, out);
}

/* --- panels, as in the SVG --- */

enum { COLS = 4, PANEL = 130, PANEL_LEFT = 64, PANEL_GAP = 26, PANEL_AXIS = 34, NAME_IN_PANEL = 24 };

/* Pixels of the tallest head of a row of panels: name and last value. */
static int head_height(const ls_chart *c, int row)
{
    const int n = ls_chart_panels(c);
    int most = 1;
    for (int k = row * COLS; k < n && k < (row + 1) * COLS; k++) {
        const int lines = quoted_lines(NULL, c->series[ls_chart_panel_series(c, k)].name, NAME_IN_PANEL);
        most = lines > most ? lines : most;
    }
    return (most + 1) * LINE + 14;
}

/* Name and last value above the panel whose upper left corner is at (x, y) of the screen. */
static void panel_head(const ls_chart *c, const ls_series *s, double x, double y, double line, ls_str *out)
{
    char t[160];
    ls_str_add(out, "unset label\nset label 1 ");
    const int n = quoted_lines(out, s->name, NAME_IN_PANEL);
    ls_str_addf(out, " at screen %.5f,%.5f left front\nset label 2 ", x, y + line * (n + 0.75));
    ls_chart_value(c, &s->point[s->n - 1], t, sizeof t);
    ls_str_addf(out, "\"%s%s%s\"", t, c->unit && strcmp(c->unit, "%") ? " " : "", c->unit ? c->unit : "");
    ls_str_addf(out, " at screen %.5f,%.5f left front tc rgb \"#5a6675\"\n", x, y + line * 0.75);
}

static void panel_plot(const ls_chart *c, int first, ls_str *out)
{
    const char *between = "plot ";
    for (int i = 0; i < c->n_series; i++) { /* first, so that its own line is drawn over them */
        const ls_series *s = &c->series[i];
        if (s->n < 2 || s->dots || s->beside || i == first) continue;
        ls_str_addf(out, "%s$s%d using 1:2 with lines lc rgb \"%s\" lw 1 dt %d notitle", between, i,
                    s->ideal ? "#9aa5b1" : "#d0d6dd", s->ideal ? 2 : 1);
        between = ", \\\n  ";
    }
    for (int i = first; i < c->n_series; i++) {
        const ls_series *s = &c->series[i];
        if (!ls_chart_in_panel(c, i, first)) continue;
        if (!s->dots && s->n <= 40)
            ls_str_addf(out, "%s$s%d using 1:2:3:4 with yerrorbars lc rgb \"#1c2430\" pt 0 notitle, \\\n  ", between,
                        i);
        else ls_str_add(out, between);
        between = ", \\\n  ";
        ls_str_addf(out, "$s%d using 1:2 with %s lc rgb \"%s\" lw 2 pt 7 notitle", i,
                    s->dots     ? "points"
                    : s->n > 40 ? "lines"
                                : "linespoints",
                    colour[i != first]);
    }
    ls_str_addc(out, '\n');
}

/* The same axes for all panels. */
static void panel_axes(const ls_chart *c, ls_str *out)
{
    double tick[8], lo_x = INFINITY, hi_x = -INFINITY, lo = INFINITY, hi = -INFINITY;
    int n_tick;
    for (int i = 0; i < c->n_series; i++)
        for (int k = 0; k < c->series[i].n; k++) {
            const ls_point *p = &c->series[i].point[k];
            lo_x = fmin(lo_x, p->x), hi_x = fmax(hi_x, p->x);
            lo = fmin(lo, p->y), hi = fmax(hi, p->y);
        }
    const double room_x = hi_x > lo_x ? 0.06 * (hi_x - lo_x) : 0.5, room = hi > lo ? 0.08 * (hi - lo) : 0.5;
    ls_str_addf(out, "set xrange [%.9g:%.9g]\n", lo_x - room_x, hi_x + room_x);
    ls_str_addf(out, "set yrange [%.9g:%.9g]\nset ytics %.9g\n", c->zero && lo > 0 ? 0 : lo - room, hi + room,
                ls_nice_step(c->zero && lo > 0 ? 0 : lo, hi, 4));
    if (!ls_chart_ticks(c, tick, &n_tick)) {
        ls_str_addf(out, "set xtics %.9g\n", ls_nice_step(lo_x, hi_x, 3));
        return;
    }
    ls_str_add(out, "set xtics (");
    for (int i = 0; i < n_tick; i++) ls_str_addf(out, "%s%.9g", i ? ", " : "", tick[i]);
    ls_str_add(out, ")\n");
}

static void panel_plots(const ls_chart *c, const char *png, ls_str *out)
{
    const int n = ls_chart_panels(c), rows = (n + COLS - 1) / COLS;
    const double cell = (double)(WIDTH - PANEL_LEFT - 8) / COLS;
    double height = TOP + 30, down = TOP; /* down: where the plots of a row begin */
    for (int row = 0; row < rows; row++) height += head_height(c, row) + PANEL + PANEL_AXIS;
    begin_script(c, png, height, out);
    ls_str_add(out, "unset key\nset multiplot title ");
    quoted(out, c->title ? c->title : "");
    ls_str_addc(out, '\n');
    panel_axes(c, out);
    for (int k = 0; k < n; k++) {
        const int first = ls_chart_panel_series(c, k), row = k / COLS, col = k % COLS;
        if (!col) down += head_height(c, row) + (row ? PANEL + PANEL_AXIS : 0);
        const double left = (PANEL_LEFT + col * cell) / WIDTH, right = left + (cell - PANEL_GAP) / WIDTH,
                     top = 1 - down / height;
        ls_str_addf(out, "set lmargin at screen %.5f\nset rmargin at screen %.5f\n", left, right);
        ls_str_addf(out, "set tmargin at screen %.5f\nset bmargin at screen %.5f\n", top, top - PANEL / height);
        ls_str_addf(out, "set format y \"%s\"\nset xlabel ", col ? "" : "%g");
        quoted(out, row == rows - 1 && !col && c->x_label ? c->x_label : "");
        ls_str_add(out, "\nset ylabel ");
        quoted(out, !col && c->y_label ? c->y_label : "");
        ls_str_addc(out, '\n');
        panel_head(c, &c->series[first], left, top, LINE / height, out);
        panel_plot(c, first, out);
    }
    ls_str_add(out, "unset multiplot\n");
}

static void gnuplot_text(const ls_chart *c, const char *png, ls_str *out)
{
    if (ls_chart_panels(c)) panel_plots(c, png, out);
    else one_plot(c, png, out);
}

/* Runs gnuplot on a script. *there false: it is not installed (no failure). LS_E_IO with its message when it fails. */
static ls_status gnuplot_run(const char *script, bool *there)
{
    char *argv[] = {"gnuplot", "-d", (char *)(uintptr_t)script, NULL}, words[512] = "", sink[512];
    posix_spawn_file_actions_t to_pipe;
    int fd[2], rc = 0;
    pid_t pid;
    if (pipe2(fd, O_CLOEXEC)) return ls_fail(LS_E_IO, "a pipe to gnuplot: %s", strerror(errno));
    posix_spawn_file_actions_init(&to_pipe);
    posix_spawn_file_actions_adddup2(&to_pipe, fd[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&to_pipe, fd[1], STDERR_FILENO);
    const int failed = posix_spawnp(&pid, "gnuplot", &to_pipe, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&to_pipe);
    close(fd[1]);
    *there = failed != ENOENT;
    if (failed) close(fd[0]);
    if (!*there) return LS_OK;
    if (failed) return ls_fail(LS_E_IO, "starting gnuplot: %s", strerror(failed));
    for (size_t n = 0;;) { /* all of it, or gnuplot would wait */
        const size_t room = sizeof words - 1 - n;
        const ssize_t k = read(fd[0], room ? words + n : sink, room ? room : sizeof sink);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) break;
        if (room) n += (size_t)k;
    }
    close(fd[0]);
    while (waitpid(pid, &rc, 0) < 0 && errno == EINTR) {}
    return rc ? ls_fail(LS_E_IO, "gnuplot could not draw %s: %.300s", script, words) : LS_OK;
}

ls_status report_write_text(const char *dir, const char *name, const ls_str *text)
{
    if (text->failed) return ls_nomem(text->cap, name);
    return ls_fs_write(ls_path_of(dir, name).text, text->data ? text->data : "", text->len);
}

static ls_status draw_png(const ls_chart *c, const char *dir, report_pen *pen)
{
    ls_str script = {0};
    char name[64];
    snprintf(name, sizeof name, "%.50s.png", c->file);
    const ls_path png = ls_path_of(dir, name);
    snprintf(name, sizeof name, ".%.50s.gp", c->file);
    const ls_path gp = ls_path_of(dir, name);
    gnuplot_text(c, png.text, &script);
    ls_status st = report_write_text(dir, name, &script);
    ls_str_fini(&script);
    LS_TRY(st);
    if (gnuplot_run(gp.text, &pen->there) != LS_OK) {
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
