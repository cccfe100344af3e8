/* gantt.c - boxes in lanes as text, and how wide a drawing of them is. */
#include "core/mem.h"
#include "report/chart/chart.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The boxes of all series but the idle ones; NULL after the last. s and k begin at 0. */
static const ls_point *next_box(const ls_chart *c, int *s, int *k)
{
    for (; *s < c->n_series; ++*s, *k = 0)
        if (!c->series[*s].idle && *k < c->series[*s].n) return &c->series[*s].point[(*k)++];
    return NULL;
}

static double shortest(const ls_chart *c)
{
    const ls_point *p;
    double least = c->end;
    for (int s = 0, k = 0; (p = next_box(c, &s, &k));)
        if (p->y > p->x) least = fmin(least, p->y - p->x);
    return least > 0 ? least : 1;
}

int ls_gantt_width(const ls_chart *c)
{
    enum { TWO_DIGITS = 26, WIDE = 60, LEAST = 720, MOST = 14000 };
    const ls_point *p;
    double sum = 0, scale = TWO_DIGITS / shortest(c); /* units of length per unit of time */
    int n = 0;
    for (int s = 0, k = 0; (p = next_box(c, &s, &k)); n++) sum += p->y - p->x;
    if (n && scale * sum > WIDE * n) scale = WIDE * n / sum; /* a box is much shorter than most */
    return (int)fmin(fmax(scale * c->end + 240, LEAST), MOST);
}

static bool whole_steps(const ls_chart *c, double step)
{
    const ls_point *p;
    for (int s = 0, k = 0; (p = next_box(c, &s, &k));) {
        const double a = p->x / step, b = p->y / step;
        if (fabs(a - nearbyint(a)) > 1e-6 || fabs(b - nearbyint(b)) > 1e-6) return false;
    }
    return true;
}

bool ls_gantt_text(const ls_chart *c, int width, ls_str *out)
{
    const ls_point *p;
    int cell = 2, lane = 1;
    for (int s = 0, k = 0; (p = next_box(c, &s, &k));)
        cell = (int)fmax(cell, (double)(strlen(c->series[s].token) + strlen(p->label)));
    for (int l = 0; l < c->n_category; l++) lane = (int)fmax(lane, (double)strlen(c->category[l]));
    /* the step: the shortest box, or a part of it of which the ends of all boxes are multiples; else they are rounded */
    double step = shortest(c);
    int d = 1;
    while (d <= 4 && !whole_steps(c, step / d)) d++;
    const int room = (width - lane - 2) / (cell + 1);
    if (d <= 4) step /= d;
    else if (room > 0 && step < c->end / room) step = c->end / room;
    if (c->end / step > room + 0.5) return false;
    const size_t n_col = (size_t)nearbyint(c->end / step);
    char(*word)[40] = ls_alloc((n_col + 1) * sizeof *word);
    if (!word) return false;
    for (int l = 0; l < c->n_category; l++) {
        for (size_t i = 0; i < n_col; i++) snprintf(word[i], sizeof *word, "..");
        for (int s = 0, k = 0; (p = next_box(c, &s, &k));) {
            const size_t a = (size_t)nearbyint(p->x / step), b = (size_t)nearbyint(p->y / step);
            for (size_t i = a; p->lane == l && i < b && i < n_col; i++)
                snprintf(word[i], sizeof *word, "%s%s", i == a ? c->series[s].token : "==", i == a ? p->label : "");
        }
        ls_str_addf(out, "%-*s ", lane, c->category[l]);
        for (size_t i = 0; i < n_col; i++) ls_str_addf(out, " %-*s", i + 1 < n_col ? cell : 0, word[i]);
        ls_str_addc(out, '\n');
    }
    if (d > 4) ls_str_add(out, "(rounded to columns; bars shorter than half a column are not shown)\n");
    ls_free(word);
    return !out->failed;
}
