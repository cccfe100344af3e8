#include "report/page/doc.h"
#include "core/mem.h"

#include <stdarg.h>
#include <stdio.h>

static char *format(const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    char *s = n < 0 ? NULL : ls_alloc((size_t)n + 1);
    if (s) vsnprintf(s, (size_t)n + 1, fmt, again);
    va_end(again);
    return s;
}

ls_block *ls_doc_add(ls_doc *d, ls_block_kind kind, const char *fmt, ...)
{
    if (d->n == d->cap) {
        int cap = d->cap ? 2 * d->cap : 32;
        ls_block *p = ls_realloc(d->block, (size_t)cap * sizeof *p);
        if (!p) {
            d->failed = true;
            return NULL;
        }
        d->block = p;
        d->cap = cap;
    }
    ls_block *b = &d->block[d->n];
    *b = (ls_block){.kind = kind};
    if (fmt) {
        va_list ap;
        va_start(ap, fmt);
        b->text = format(fmt, ap);
        va_end(ap);
        if (!b->text) {
            d->failed = true;
            return NULL;
        }
    }
    d->n++;
    return b;
}

void ls_doc_cell(ls_doc *d, ls_block *b, const char *fmt, ...)
{
    if (!b) return;
    if (b->n_cell == b->cap_cell) {
        int cap = b->cap_cell ? 2 * b->cap_cell : 16;
        char **p = ls_realloc(b->cell, (size_t)cap * sizeof *p);
        if (!p) {
            d->failed = true;
            return;
        }
        b->cell = p;
        b->cap_cell = cap;
    }
    va_list ap;
    va_start(ap, fmt);
    char *s = format(fmt, ap);
    va_end(ap);
    if (s) b->cell[b->n_cell++] = s;
    else d->failed = true;
}

void ls_doc_chart(ls_doc *d, ls_chart *chart, const char *words)
{
    char more[480] = "", rest[32] = "";
    if (chart->n_left_out > chart->n_named)
        snprintf(rest, sizeof rest, "%s%d more", chart->n_named ? " and " : "", chart->n_left_out - chart->n_named);
    if (chart->n_left_out)
        snprintf(more, sizeof more, " Not shown, to keep the chart readable: %s%s.", chart->left_out, rest);
    ls_block *b = ls_chart_empty(chart) ? NULL : ls_doc_add(d, LS_BLOCK_CHART, "%s%s", words, more);
    d->failed = d->failed || chart->failed;
    if (b) b->chart = *chart;
    else ls_chart_fini(chart);
    *chart = (ls_chart){0};
}

void ls_doc_fini(ls_doc *d)
{
    for (int i = 0; i < d->n; i++) {
        ls_block *b = &d->block[i];
        ls_free(b->text);
        for (int k = 0; k < b->n_cell; k++) ls_free(b->cell[k]);
        ls_free(b->cell);
        ls_chart_fini(&b->chart);
    }
    ls_free(d->block);
    *d = (ls_doc){0};
}
