#include "core/table.h"
#include "core/mem.h"
#include "core/progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { GAP = 2, NAME = 40 };

void ls_table_cell(ls_table *t, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    char *copy = ls_strdup(text);
    t->failed = t->failed || !copy || !ls_grow(&t->cell, t->n, &t->cap, sizeof *t->cell);
    if (t->failed) ls_free(copy);
    else t->cell[t->n++] = copy;
}

/* Characters of a text in UTF-8. */
static int width_of(const char *text)
{
    int n = 0;
    for (; *text; text++) n += (*text & 0xc0) != 0x80;
    return n;
}

static int column_width(const ls_table *t, int column)
{
    int wide = 0;
    for (int i = column; i < t->n; i += t->n_col) wide = width_of(t->cell[i]) > wide ? width_of(t->cell[i]) : wide;
    return column || wide < NAME ? wide : NAME;
}

/* The columns from `from` to before `to`; a long name goes on in the next rows. */
static void print_columns(const ls_table *t, int from, int to, ls_str *out)
{
    const int wide = column_width(t, 0);
    for (int row = 0; row < t->n; row += t->n_col) {
        const char *rest = t->cell[row];
        ls_str_add_piece(out, &rest, wide);
        for (int k = from; k < to; k++)
            ls_str_addf(out, "%*s%s", GAP + column_width(t, k) - width_of(t->cell[row + k]), "", t->cell[row + k]);
        ls_str_addc(out, '\n');
        for (; *rest; rest += strspn(rest, " ")) {
            const size_t n = ls_line_of(rest, wide - GAP, NULL);
            ls_str_addf(out, "  %.*s\n", (int)n, rest);
            rest += n;
        }
    }
}

void ls_table_print(ls_table *t, ls_str *out)
{
    const int terminal = ls_terminal_columns(STDOUT_FILENO), columns = terminal ? terminal : 80;
    for (int from = 1, to; from < t->n_col && !t->failed; from = to) {
        int room = columns - column_width(t, 0);
        for (to = from; to < t->n_col && (to == from || room >= GAP + column_width(t, to)); to++)
            room -= GAP + column_width(t, to);
        if (from > 1) ls_str_addc(out, '\n');
        print_columns(t, from, to, out);
    }
    out->failed = out->failed || t->failed;
    for (int i = 0; i < t->n; i++) ls_free(t->cell[i]);
    ls_free(t->cell);
    *t = (ls_table){0};
}
