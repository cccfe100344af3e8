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

void ls_doc_section(ls_doc *d, const char *title)
{
    d->section = title;
}

ls_block *ls_doc_add(ls_doc *d, ls_block_kind kind, const char *fmt, ...)
{
    char *text = NULL;
    const char *section = d->section;
    d->section = NULL;
    if (section && kind != LS_BLOCK_SECTION) ls_doc_add(d, LS_BLOCK_SECTION, "%s", section);
    if (fmt) {
        va_list ap;
        va_start(ap, fmt);
        text = format(fmt, ap);
        va_end(ap);
    }
    if ((fmt && !text) || !ls_grow(&d->block, d->n, &d->cap, sizeof *d->block)) {
        d->failed = true;
        ls_free(text);
        return NULL;
    }
    d->block[d->n] = (ls_block){.kind = kind, .text = text};
    return &d->block[d->n++];
}

void ls_doc_take(ls_doc *d, ls_block_kind kind, ls_str *text)
{
    d->failed = d->failed || text->failed;
    if (text->len) ls_doc_add(d, kind, "%s", text->data);
    ls_str_fini(text);
}

void ls_doc_cell(ls_doc *d, ls_block *b, const char *fmt, ...)
{
    if (!b) return;
    va_list ap;
    va_start(ap, fmt);
    char *s = ls_grow(&b->cell, b->n_cell, &b->cap_cell, sizeof *b->cell) ? format(fmt, ap) : NULL;
    va_end(ap);
    if (s) b->cell[b->n_cell++] = s;
    else d->failed = true;
}

void ls_doc_cell_list(ls_doc *d, ls_block *b, const char *const *text, int n)
{
    for (int i = 0; i < n; i++) ls_doc_cell(d, b, "%s", text[i] ? text[i] : "\xe2\x80\x93"); /* an en dash */
}

ls_block *ls_doc_table_of(ls_doc *d, const char *title, const char *const *column, int n)
{
    ls_block *b = ls_doc_add(d, LS_BLOCK_TABLE, title ? "%s" : NULL, title);
    if (!b) return NULL;
    b->n_col = n;
    ls_doc_cell_list(d, b, column, n);
    return b;
}

char *ls_doc_text(char buf[96], const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(buf, 96, fmt, ap);
    va_end(ap);
    return buf;
}

void ls_doc_chart(ls_doc *d, ls_chart *chart, const char *words)
{
    char more[480] = "", rest[32] = "";
    const char *panels =
        ls_chart_panels(chart) ? " One panel per line, with equal axes and its last value; the others are grey." : "";
    if (chart->n_left_out > chart->n_named)
        snprintf(rest, sizeof rest, "%s%d more", chart->n_named ? " and " : "", chart->n_left_out - chart->n_named);
    if (chart->n_left_out)
        snprintf(more, sizeof more, " Not shown, to keep the chart readable: %s%s.", chart->left_out, rest);
    ls_block *b = ls_chart_empty(chart) ? NULL : ls_doc_add(d, LS_BLOCK_CHART, "%s%s%s", words, panels, more);
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
