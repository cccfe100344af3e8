/* html.c - a report as one self-contained page with style and charts: no script, no network. The page contains every chart twice,
 * wide and narrow; the width of the window selects one. */
#include "report/page/doc.h"

#include <string.h>

enum { WIDE = 840, NARROW = 360 };

static const char style[] =
    ":root{--shade:#0003;--page:#f6f7f9;--card:#fff;--ink:#1c2430;--soft:#5a6675;--line:#dde2e8;--accent:#0072b2;--warn-bg:#fff4e5;"
    "--warn:#8a4b00;color-scheme:light dark}\n"
    "@media (prefers-color-scheme:dark){:root{--shade:#fff4;--page:#0e1217;--card:#151a20;--ink:#e8ecf1;--soft:#a3adba;"
    "--line:#2b333d;--accent:#4da3e0;--warn-bg:#33240f;--warn:#ffc27a}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0;background:var(--page);color:var(--ink);font:16px/1.55 system-ui,-apple-system,'Segoe "
    "UI',Roboto,'DejaVu Sans',sans-serif;-webkit-text-size-adjust:100%}\n"
    "main{max-width:960px;margin:0 auto;padding:28px 20px 64px}\n"
    "h1{font-size:1.75rem;line-height:1.2;margin:0 0 4px;letter-spacing:-.01em}\n"
    ".made{color:var(--soft);font-size:.85rem;margin:0 0 20px}\n"
    "section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:20px 22px;margin:0 0 18px}"
    "\n"
    "h2{font-size:1.15rem;margin:0 0 10px;line-height:1.3}\n"
    "h3{font-size:.95rem;margin:22px 0 2px}\n"
    "p{margin:0 0 12px;max-width:68ch}\n"
    ".lead{font-size:1.2rem;line-height:1.45;font-weight:600;max-width:60ch}\n"
    ".see{color:var(--soft);font-size:.88rem;margin:0 0 8px}\n"
    ".warn{background:var(--warn-bg);color:var(--warn);border-left:4px solid currentColor;border-radius:4px;"
    "padding:8px 12px;max-width:none}\n"
    "ul{margin:0 0 12px;padding-left:1.2em}li{margin:2px 0;overflow-wrap:anywhere}\n"
    ".cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(135px,1fr));gap:12px;margin:4px 0 16px;"
    "padding:0}\n"
    ".cards div{border:1px solid var(--line);border-radius:8px;padding:10px 12px}\n"
    ".cards dt{color:var(--soft);font-size:.8rem}\n"
    ".cards dd{margin:0;font-size:1.35rem;font-weight:650;line-height:1.25;font-variant-numeric:tabular-nums;"
    "overflow-wrap:anywhere}\n"
    ".cards dd+dd{font-size:.8rem;font-weight:400;color:var(--soft);line-height:1.35}\n"
    ".scroll{overflow-x:auto;margin:0 0 14px;-webkit-overflow-scrolling:touch;background:linear-gradient(to "
    "left,var(--card) 40%,transparent) right/40px 100% no-repeat local,linear-gradient(to left,var(--shade),transparent) "
    "right/22px 100% no-repeat scroll;scrollbar-width:thin}\n"
    "table{border-collapse:collapse;font-size:.88rem;width:100%;font-variant-numeric:tabular-nums}\n"
    "th,td{padding:6px 9px;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap;vertical-align:top}"
    "\n"
    "th{color:var(--soft);font-weight:600;font-size:.8rem;white-space:normal;vertical-align:bottom;line-height:1.25}\n"
    "th:first-child,td:first-child{text-align:left;padding-left:0;position:sticky;left:0;background:var(--card)}\n"
    "td:first-child{font-weight:600;white-space:normal}.long{white-space:normal;min-width:9em}"
    "td.long:first-child{min-width:min(13em,36vw)}.words td{text-align:left}.words th{text-align:left}\n"
    "figure{margin:0 0 16px}figcaption{font-weight:600;font-size:.95rem;margin:14px 0 0}\n"
    ".wide svg,.narrow svg{width:100%;height:auto}.narrow{display:none}\n"
    "details{margin:0 0 12px;font-size:.88rem}summary{cursor:pointer;color:var(--accent)}\n"
    "pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--page);border:1px solid var(--line);"
    "border-radius:6px;padding:8px 10px;margin:2px 0 10px;font:12.5px/1.5 ui-monospace,'DejaVu Sans Mono',monospace}\n"
    "p a{color:var(--accent)}nav{font-size:.85rem;margin:0 0 18px;display:flex;flex-wrap:wrap;gap:4px 14px}nav a{color:var(--accent);"
    "text-decoration:none}nav a:hover{text-decoration:underline}\n"
    "@media (max-width:600px){main{padding:18px 10px 40px}section{padding:14px 12px;border-radius:8px}"
    "h1{font-size:1.4rem}.lead{font-size:1.08rem}.wide{display:none}.narrow{display:block}}\n"
    "@media print{:root{--page:#fff;--card:#fff;--ink:#000;--soft:#444;--line:#ccc;--accent:#000;--warn-bg:#fff;"
    "--warn:#000}body{font-size:11pt}main{max-width:none;padding:0}section{border:0;padding:0;margin:0 0 14pt}"
    "nav{display:none}figure,tr,.cards{break-inside:avoid}h2,h3,figcaption{break-after:avoid}.wide{display:block}"
    ".narrow{display:none}details::details-content{content-visibility:visible;display:block}.scroll{overflow:visible}"
    "th,td{white-space:normal;padding:3px 6px}}\n";

static void element(ls_str *out, const char *open, const char *text, const char *close)
{
    ls_str_add(out, open);
    ls_xml_text(out, text ? text : "");
    ls_str_add(out, close);
}

/* A column of text, not of numbers: aligned to the left. */
static bool wordy(const ls_block *b, int col)
{
    int words = 0, all = 0;
    for (int i = b->n_col + col; i < b->n_cell; i += b->n_col, all++)
        words += b->cell[i][0] && !strchr("0123456789-+.<", b->cell[i][0]) && strcmp(b->cell[i], "\xe2\x80\x93");
    return 2 * words > all;
}

enum { LONG = 30 }; /* bytes of a cell that may be wrapped */

static void table(const ls_block *b, ls_str *out)
{
    if (b->text) element(out, "<h3>", b->text, "</h3>\n");
    ls_str_add(out, "<div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr>");
    for (int i = 0; i < b->n_cell; i++) {
        int col = i % b->n_col;
        bool head = i < b->n_col, left = col && wordy(b, col);
        if (i == b->n_col) ls_str_add(out, "</tr></thead>\n<tbody>");
        if (!head && !col) ls_str_add(out, "<tr>");
        ls_str_add(out, head ? "<th scope=\"col\"" : "<td");
        if (!head && strlen(b->cell[i]) > LONG) ls_str_add(out, " class=\"long\"");
        ls_str_add(out, left ? " style=\"text-align:left\">" : ">");
        ls_xml_text(out, b->cell[i]);
        ls_str_add(out, head ? "</th>" : "</td>");
        if (!head && col == b->n_col - 1) ls_str_add(out, "</tr>\n");
    }
    ls_str_add(out, b->n_cell > b->n_col ? "</tbody></table></div>\n" : "</tr></thead></table></div>\n");
}

static void figure(const ls_block *b, ls_str *out)
{
    element(out, "<figure><figcaption>", b->chart.title, "</figcaption>\n");
    if (b->text && *b->text) element(out, "<p class=\"see\">", b->text, "</p>\n");
    ls_str_add(out, "<div class=\"wide\">");
    ls_svg_draw(&b->chart, WIDE, LS_SVG_PAGE, out);
    ls_str_add(out, "</div><div class=\"narrow\">");
    ls_svg_draw(&b->chart, NARROW, LS_SVG_PAGE, out);
    ls_str_add(out, "</div></figure>\n");
}

static void block(const ls_block *b, ls_str *out)
{
    switch (b->kind) {
    case LS_BLOCK_SECTION: break;
    case LS_BLOCK_TEXT: element(out, "<p>", b->text, "</p>\n"); break;
    case LS_BLOCK_LEAD: element(out, "<p class=\"lead\">", b->text, "</p>\n"); break;
    case LS_BLOCK_WARN: element(out, "<p class=\"warn\">", b->text, "</p>\n"); break;
    case LS_BLOCK_LIST:
        ls_str_add(out, "<ul>\n");
        for (int i = 0; i < b->n_cell; i++) element(out, "<li>", b->cell[i], "</li>\n");
        ls_str_add(out, "</ul>\n");
        break;
    case LS_BLOCK_CARDS:
        ls_str_add(out, "<dl class=\"cards\">\n");
        for (int i = 0; i + 2 < b->n_cell; i += 3) {
            element(out, "<div><dt>", b->cell[i], "</dt>");
            element(out, "<dd>", b->cell[i + 1], "</dd>");
            element(out, "<dd>", b->cell[i + 2], "</dd></div>\n");
        }
        ls_str_add(out, "</dl>\n");
        break;
    case LS_BLOCK_TABLE: table(b, out); break;
    case LS_BLOCK_CODE:
        element(out, "<details><summary>", b->text, "</summary>\n");
        for (int i = 0; i + 1 < b->n_cell; i += 2) {
            element(out, "<div>", b->cell[i], "</div>");
            element(out, "<pre>", b->cell[i + 1], "</pre>\n");
        }
        ls_str_add(out, "</details>\n");
        break;
    case LS_BLOCK_CHART: figure(b, out); break;
    case LS_BLOCK_LINK:
        element(out, "<p><a href=\"", b->n_cell ? b->cell[0] : "", "\">");
        element(out, "", b->text, "</a></p>\n");
        break;
    }
}

void ls_doc_html(const ls_doc *d, ls_str *out)
{
    bool open = false;
    ls_str_add(out, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                    "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
                    "<meta name=\"color-scheme\" content=\"light dark\">\n");
    element(out, "<title>", d->title, "</title>\n");
    ls_str_addf(out, "<style>\n%s%s</style>\n</head>\n<body>\n<main>\n", style, ls_svg_style());
    element(out, "<h1>", d->title, "</h1>\n");
    for (int i = 0; i < d->n && d->block[i].kind != LS_BLOCK_SECTION; i++)
        element(out, "<p class=\"made\">", d->block[i].text, "</p>\n");
    ls_str_add(out, "<nav>");
    for (int i = 0, n = 0; i < d->n; i++) {
        if (d->block[i].kind != LS_BLOCK_SECTION) continue;
        ls_str_addf(out, "<a href=\"#s%d\">", n++);
        element(out, "", d->block[i].text, "</a>\n");
    }
    ls_str_add(out, "</nav>\n");
    for (int i = 0, n = 0; i < d->n; i++) {
        const ls_block *b = &d->block[i];
        if (b->kind == LS_BLOCK_SECTION) {
            if (open) ls_str_add(out, "</section>\n");
            ls_str_addf(out, "<section id=\"s%d\">\n", n++);
            element(out, "<h2>", b->text, "</h2>\n");
            open = true;
        } else if (open) {
            block(b, out);
        }
    }
    if (open) ls_str_add(out, "</section>\n");
    ls_str_add(out, "</main>\n</body>\n</html>\n");
}
