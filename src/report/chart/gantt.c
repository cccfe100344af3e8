#include "report/chart/gantt.h"

#include "core/mem.h"
#include "report/chart/chart.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- SVG ---- */

enum { LANE = 30, BAR = 26, TOP = 76, BOTTOM = 78, RIGHT = 16, CHAR = 7, WIDEST = 14000 };

/* Plain classes, and others in their place where the viewer prefers dark: programs that know no media queries draw
 * the light ones. */
static const char style[] =
    "<style>\n"
    "text{font:12px system-ui,'DejaVu Sans',sans-serif;fill:#1c2733}.t{font-size:16px;font-weight:600}.s{fill:#5b6875}"
    "\n"
    ".b{fill:#14212e;font-size:11px;text-anchor:middle;pointer-events:none}.m{text-anchor:middle}.e{text-anchor:end}\n"
    ".paper{fill:#fff}.back{fill:#f1f3f5}.idle{fill:url(#hatch)}.hatch{stroke:#d9dfe5}.grid{stroke:#cfd6dd}\n"
    ".k0{fill:#b9d5f1}.k1{fill:#f7c697}.k2{fill:#f2aaa4}.k3{fill:#b9dfb4}\n"
    ".edge{fill:none;stroke:#fff}.shade{fill:#000;pointer-events:none}\n"
    "@media (prefers-color-scheme:dark){text{fill:#e6ebf0}.s{fill:#9aa7b4}.b{fill:#fff}\n"
    ".paper{fill:#14191f}.back{fill:#1c232b}.hatch{stroke:#2e3843}.grid{stroke:#3a4550}\n"
    ".k0{fill:#2f6199}.k1{fill:#9c5a1c}.k2{fill:#97403a}.k3{fill:#34733a}.edge{stroke:#14191f}}\n"
    "</style>\n";

static void add_text(ls_str *out, double x, double y, const char *class, const char *text)
{
    ls_str_addf(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, class);
    ls_xml_text(out, text);
    ls_str_add(out, "</text>\n");
}

/* The longest of n words, in pixels. */
static int widest(const char *const *word, int n, int least)
{
    int most = least;
    for (int i = 0; word && i < n; i++)
        if ((int)strlen(word[i]) * CHAR > most) most = (int)strlen(word[i]) * CHAR;
    return most;
}

static double shortest(const ls_gantt *g)
{
    double least = g->end;
    for (int i = 0; i < g->n_row; i++) {
        const double d = g->row[i].end - g->row[i].begin;
        if (d > 0 && d < least) least = d;
    }
    return least > 0 ? least : 1;
}

static void add_bar(const ls_gantt *g, const ls_gantt_row *r, double left, double scale, ls_str *out)
{
    const double x = left + r->begin * scale, w = (r->end - r->begin) * scale, y = TOP + r->lane * LANE + 2;
    const int kind = r->kind % LS_GANTT_MAX_KIND, shade = r->shade % 4;
    ls_str_addf(out, "<g><rect class=\"k%d\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\"><title>", kind, x, y, w,
                BAR);
    ls_xml_text(out, g->kind[kind].words);
    ls_str_addc(out, ' ');
    ls_xml_text(out, r->label);
    ls_str_addf(out, ", %g to %g</title></rect>", r->begin, r->end);
    if (shade)
        ls_str_addf(out,
                    "<rect class=\"shade\" fill-opacity=\"%.2f\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\"/>",
                    0.1 * shade, x, y, w, BAR);
    ls_str_addf(out, "<rect class=\"edge\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\"/>", x, y, w, BAR);
    if (w >= (double)strlen(r->label) * CHAR + 2) add_text(out, x + w / 2, y + BAR / 2.0 + 4, "b", r->label);
    ls_str_add(out, "</g>\n");
}

static void add_axis(const ls_gantt *g, double left, double scale, ls_str *out)
{
    const double bottom = TOP + g->n_lane * LANE, step = ls_nice_step(0, 56 / scale, 1);
    for (int k = 0; k * step <= g->end * (1 + 1e-9); k++) {
        const double t = k * step;
        char number[32];
        snprintf(number, sizeof number, "%g", t);
        ls_str_addf(out, "<line class=\"grid\" x1=\"%.2f\" y1=\"%d\" x2=\"%.2f\" y2=\"%.1f\"/>\n", left + t * scale,
                    TOP - 4, left + t * scale, bottom + 6);
        add_text(out, left + t * scale, bottom + 20, "m s", number);
    }
    add_text(out, left, bottom + 38, "s", g->axis ? g->axis : "time");
}

static void add_legend(const ls_gantt *g, double left, ls_str *out)
{
    const double y = TOP + g->n_lane * LANE + 50;
    double x = left;
    for (int k = 0; k <= g->n_kind; k++) {
        const char *words = k < g->n_kind ? g->kind[k].words : "idle";
        bool used = k == g->n_kind;
        for (int i = 0; i < g->n_row && !used; i++) used = g->row[i].kind == k;
        if (!used) continue;
        for (int layer = k < g->n_kind; layer < 2; layer++) { /* idle is a hatch over its ground */
            char class[8];
            if (k < g->n_kind) snprintf(class, sizeof class, "k%d", k % LS_GANTT_MAX_KIND);
            else snprintf(class, sizeof class, "%s", layer ? "idle" : "back");
            ls_str_addf(out, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"14\" height=\"14\"/>\n", class, x, y);
        }
        add_text(out, x + 20, y + 11, "s", words);
        x += 36 + (double)strlen(words) * CHAR;
    }
}

void ls_gantt_svg(const ls_gantt *g, ls_str *out)
{
    const double left = widest(g->lane, g->n_lane, 56) + 16, end = g->end > 0 ? g->end : 1;
    double sum = 0, scale = 26 / shortest(g); /* pixels per unit of time: room for two digits in the shortest bar */
    for (int i = 0; i < g->n_row; i++) sum += g->row[i].end - g->row[i].begin;
    if (g->n_row && scale * sum > 60.0 * g->n_row)
        scale = 60 * g->n_row / sum; /* unless it is much shorter than most */
    if (scale * end > WIDEST) scale = WIDEST / end;
    if (scale * end < 480) scale = 480 / end;
    const double note = g->note ? widest(g->note, g->n_lane, 0) + 10 : 0, right = left + scale * end;
    double width = right + note + RIGHT;
    const char *const heads[] = {g->title, g->subtitle ? g->subtitle : ""};
    const double head = 1.25 * widest(heads, 2, 0) + 2 * RIGHT;
    width = width < head ? head : width;
    const double height = TOP + g->n_lane * LANE + BOTTOM;
    ls_str_addf(out,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
                "role=\"img\">\n<title>",
                width, height, width, height);
    ls_xml_text(out, g->title);
    ls_str_add(out, "</title>\n");
    ls_str_add(out, style);
    ls_str_add(out, "<defs><pattern id=\"hatch\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" "
                    "patternTransform=\"rotate(45)\"><line class=\"hatch\" x1=\"0\" y1=\"0\" x2=\"0\" y2=\"7\" "
                    "stroke-width=\"3\"/></pattern></defs>\n");
    ls_str_addf(out, "<rect class=\"paper\" width=\"%.0f\" height=\"%.0f\"/>\n", width, height);
    add_text(out, RIGHT, 26, "t", g->title);
    if (g->subtitle) add_text(out, RIGHT, 48, "s", g->subtitle);
    add_axis(g, left, scale, out);
    for (int l = 0; l < g->n_lane; l++) {
        char number[16];
        snprintf(number, sizeof number, "%d", l);
        const double y = TOP + l * LANE + 2;
        for (int k = 0; k < 2; k++)
            ls_str_addf(out, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\"/>\n",
                        k ? "idle" : "back", left, y, scale * end, BAR);
        add_text(out, left - 8, y + BAR / 2.0 + 4, "e", g->lane ? g->lane[l] : number);
        if (g->note) add_text(out, right + 8, y + BAR / 2.0 + 4, "s", g->note[l]);
    }
    for (int i = 0; i < g->n_row; i++) add_bar(g, &g->row[i], left, scale, out);
    add_legend(g, left, out);
    ls_str_add(out, "</svg>\n");
}

/* ---- text ---- */

static bool whole_steps(const ls_gantt *g, double step)
{
    for (int i = 0; i < g->n_row; i++) {
        const double a = g->row[i].begin / step, b = g->row[i].end / step;
        if (fabs(a - nearbyint(a)) > 1e-6 || fabs(b - nearbyint(b)) > 1e-6) return false;
    }
    return true;
}

bool ls_gantt_text(const ls_gantt *g, int width, ls_str *out)
{
    int cell = 2, lane = 1;
    for (int i = 0; i < g->n_row; i++) {
        const ls_gantt_row *r = &g->row[i];
        const int n = (int)(strlen(g->kind[r->kind % LS_GANTT_MAX_KIND].token) + strlen(r->label));
        cell = n > cell ? n : cell;
    }
    for (int l = 0; l < g->n_lane; l++) {
        const int n = g->lane ? (int)strlen(g->lane[l]) : snprintf(NULL, 0, "%d", l);
        lane = n > lane ? n : lane;
    }
    /* the step: the shortest bar, or a part of it of which the ends of all bars are multiples; else they are rounded */
    double step = shortest(g);
    int d = 1;
    while (d <= 4 && !whole_steps(g, step / d)) d++;
    const int room = (width - lane - 2) / (cell + 1);
    if (d <= 4) step /= d;
    else if (room > 0 && step < g->end / room) step = g->end / room;
    if (g->end / step > room + 0.5) return false;
    const size_t n_col = (size_t)nearbyint(g->end / step);
    int *grid = ls_alloc((n_col + 1) * sizeof *grid); /* row number + 1, negative in its later columns */
    if (!grid) return false;
    for (int l = 0; l < g->n_lane; l++) {
        memset(grid, 0, (n_col + 1) * sizeof *grid);
        for (int i = 0; i < g->n_row; i++) {
            if (g->row[i].lane != l) continue;
            const size_t a = (size_t)nearbyint(g->row[i].begin / step), b = (size_t)nearbyint(g->row[i].end / step);
            for (size_t c = a; c < b && c < n_col; c++) grid[c] = c == a ? i + 1 : -1;
        }
        if (g->lane) ls_str_addf(out, "%-*s ", lane, g->lane[l]);
        else ls_str_addf(out, "%*d ", lane, l);
        for (size_t c = 0; c < n_col; c++) {
            char word[40] = "..";
            if (grid[c] < 0) snprintf(word, sizeof word, "==");
            if (grid[c] > 0) {
                const ls_gantt_row *r = &g->row[grid[c] - 1];
                snprintf(word, sizeof word, "%s%s", g->kind[r->kind % LS_GANTT_MAX_KIND].token, r->label);
            }
            ls_str_addf(out, " %-*s", c + 1 < n_col ? cell : 0, word);
        }
        ls_str_addc(out, '\n');
    }
    if (d > 4) ls_str_add(out, "(rounded to columns; bars shorter than half a column are not shown)\n");
    ls_free(grid);
    return !out->failed;
}
