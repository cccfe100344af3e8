/* doc.h - a report as a list of blocks, written as HTML (html.c) and as Markdown (markdown.c) from the same content. */
#ifndef LS_REPORT_DOC_H
#define LS_REPORT_DOC_H

#include "report/chart/chart.h"

typedef enum ls_block_kind {
    LS_BLOCK_SECTION, /* heading; text: title                               */
    LS_BLOCK_TEXT,    /* a paragraph                                        */
    LS_BLOCK_LEAD,    /* the sentence that matters, larger                  */
    LS_BLOCK_WARN,    /* a paragraph with a mark                            */
    LS_BLOCK_LIST,    /* cells: one item each                               */
    LS_BLOCK_CARDS,   /* cells: label, value, words, ...                    */
    LS_BLOCK_TABLE,   /* cells: header row first; n_col columns             */
    LS_BLOCK_CODE,    /* cells: label, text, ...; folded away on the page   */
    LS_BLOCK_CHART,   /* chart; text: what to see in it                     */
    LS_BLOCK_LINK,    /* text: of the link; cell: where it leads            */
} ls_block_kind;

typedef struct ls_block {
    ls_block_kind kind;
    char *text;
    char **cell;
    int n_cell, cap_cell, n_col;
    ls_chart chart;
    const char *folder; /* CHART: has charts/ with its files; NULL: the folder of the page. Borrowed */
} ls_block;

typedef struct ls_doc {
    char title[128];
    ls_block *block;
    int n, cap;
    const char *section; /* begins with the next block; NULL: none waits */
    bool failed;         /* memory ran out */
} ls_doc;

/* NULL when memory is out. text may be NULL. Borrowed until the next block is added. */
ls_block *ls_doc_add(ls_doc *d, ls_block_kind kind, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void ls_doc_section(ls_doc *d, const char *title); /* a section that is left out when no block follows */
void ls_doc_cell(ls_doc *d, ls_block *b, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* A block with this text, which is freed; nothing is added for an empty one. */
void ls_doc_take(ls_doc *d, ls_block_kind kind, ls_str *text);
/* Several cells, each a text; NULL is a dash. */
#define ls_doc_cells(d, b, ...)                                    \
    ls_doc_cell_list((d), (b), (const char *const[]){__VA_ARGS__}, \
                     (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)))
void ls_doc_cell_list(ls_doc *d, ls_block *b, const char *const *text, int n);
/* A table with these columns; title may be NULL. */
#define ls_doc_table(d, title, ...)                                   \
    ls_doc_table_of((d), (title), (const char *const[]){__VA_ARGS__}, \
                    (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)))
ls_block *ls_doc_table_of(ls_doc *d, const char *title, const char *const *column, int n);
/* Texts for the cells of one statement: a number as on the page, a list of values as printf writes it (up to 95 bytes). */
#define LS_NUM(x, decimals) ls_number_text((char[40]){0}, (x), (decimals))
#define LS_TEXT(...)        ls_doc_text((char[96]){0}, __VA_ARGS__)
char *ls_doc_text(char buf[96], const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Takes the chart over; an empty one is dropped. */
void ls_doc_chart(ls_doc *d, ls_chart *chart, const char *words);
void ls_doc_fini(ls_doc *d);

void ls_doc_html(const ls_doc *d, ls_str *out);
/* charts are linked as <charts>/<file>.svg */
void ls_doc_markdown(const ls_doc *d, const char *charts, ls_str *out);

#endif
