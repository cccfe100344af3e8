/* table.h - a table for people: columns as wide as their texts, the first on the left, the others on the right. Columns that do not fit into
 * the terminal (80 columns if stdout is none) go on below, after the first column again. */
#ifndef LS_CORE_TABLE_H
#define LS_CORE_TABLE_H

#include "core/str.h"

typedef struct ls_table {
    char **cell; /* row by row, the head first */
    int n, cap, n_col;
    bool failed;
} ls_table; /* set n_col, the rest zeroed */

void ls_table_cell(ls_table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void ls_table_print(ls_table *t, ls_str *out); /* and frees it */

#endif
