/* markdown.c - the same report as Markdown, for a terminal, a review or a repository. */
#include "report/page/doc.h"

/* Text with Markdown's special characters escaped; a bar would end a cell, and a newline would end a row. */
static void plain(ls_str *out, const char *text, bool cell)
{
    char code[16];
    const char *shown;
    for (const char *p = text ? text : ""; *p;) {
        const int n = ls_char_shown(p, code, &shown);
        if (*p == '\n' || *p == '\r') ls_str_addc(out, ' ');
        else if (shown) ls_str_add(out, shown);
        else if (*p == '<') ls_str_add(out, "&lt;");
        else if ((cell && *p == '|') || *p == '*' || *p == '`' || *p == '[' || *p == '\\') ls_str_addf(out, "\\%c", *p);
        else ls_str_addn(out, p, (size_t)n);
        p += n;
    }
}

static void table(const ls_block *b, ls_str *out)
{
    if (b->text) {
        ls_str_add(out, "**");
        plain(out, b->text, false);
        ls_str_add(out, "**\n\n");
    }
    for (int i = 0; i < b->n_cell; i++) {
        ls_str_add(out, i % b->n_col ? " " : "| ");
        plain(out, b->cell[i], true);
        ls_str_add(out, i % b->n_col == b->n_col - 1 ? " |\n" : " |");
        if (i != b->n_col - 1) continue;
        for (int k = 0; k < b->n_col; k++) ls_str_add(out, k ? " --- |" : "| --- |");
        ls_str_addc(out, '\n');
    }
    ls_str_addc(out, '\n');
}

static void paragraph(ls_str *out, const char *before, const char *text, const char *after)
{
    ls_str_add(out, before);
    plain(out, text, false);
    ls_str_add(out, after);
}

static void block(const ls_block *b, const char *charts, ls_str *out)
{
    switch (b->kind) {
    case LS_BLOCK_SECTION: paragraph(out, "## ", b->text, "\n\n"); break;
    case LS_BLOCK_TEXT: paragraph(out, "", b->text, "\n\n"); break;
    case LS_BLOCK_LEAD: paragraph(out, "**", b->text, "**\n\n"); break;
    case LS_BLOCK_WARN: paragraph(out, "> **Note.** ", b->text, "\n\n"); break;
    case LS_BLOCK_LIST:
        for (int i = 0; i < b->n_cell; i++) paragraph(out, "- ", b->cell[i], "\n");
        ls_str_addc(out, '\n');
        break;
    case LS_BLOCK_CARDS:
        for (int i = 0; i + 2 < b->n_cell; i += 3) {
            paragraph(out, "- ", b->cell[i], ": **");
            plain(out, b->cell[i + 1], false);
            paragraph(out, "** ", b->cell[i + 2], "\n");
        }
        ls_str_addc(out, '\n');
        break;
    case LS_BLOCK_TABLE: table(b, out); break;
    case LS_BLOCK_CODE:
        for (int i = 0; i + 1 < b->n_cell; i += 2) {
            paragraph(out, "- ", b->cell[i], ": ");
            paragraph(out, "", b->cell[i + 1], "\n");
        }
        ls_str_addc(out, '\n');
        break;
    case LS_BLOCK_CHART:
        paragraph(out, "![", b->chart.title, "](");
        ls_str_addf(out, "%s%s%s/%s.svg)\n\n", b->folder ? b->folder : "", b->folder ? "/" : "", charts, b->chart.file);
        if (b->text && *b->text) paragraph(out, "", b->text, "\n\n");
        break;
    case LS_BLOCK_LINK:
        paragraph(out, "[", b->text, "](");
        ls_str_addf(out, "%s)\n\n", b->n_cell ? b->cell[0] : "");
        break;
    }
}

void ls_doc_markdown(const ls_doc *d, const char *charts, ls_str *out)
{
    paragraph(out, "# ", d->title, "\n\n");
    for (int i = 0; i < d->n; i++) block(&d->block[i], charts, out);
    while (out->len > 1 && out->data[out->len - 1] == '\n' && out->data[out->len - 2] == '\n')
        out->data[--out->len] = '\0';
}
