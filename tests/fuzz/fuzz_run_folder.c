/* Files of run folders, separated by lines "=== NAME" (metrics, steps, launcher, complete, pipeline, profile, nsys, nccl, topo,
 * ibstat, topology, events; "run" begins another run). For any content the page is complete, no text becomes markup, and nothing leaks. */
#include "fuzz.h"
#include "core/mem.h"
#include "report/compat/profile_summary.h"
#include "report_fixture.h"

#include <string.h>

/* The text of the file that a separator line names; NULL: not a file of a run. */
static ls_text *text_of(ls_run_texts *t, const char *name, size_t n)
{
    static const char *const word[LS_N_RUN_FILE] = {"metrics", "steps",  "launcher", "complete", "pipeline", "profile",
                                                    "topo",    "ibstat", "topology", "nccl",     "events"};
    for (int i = 0; i < LS_N_RUN_FILE; i++)
        if (strlen(word[i]) == n && !memcmp(name, word[i], n)) return &t->file[i];
    return NULL;
}

static void parse_nsys(const char *text, size_t n)
{
    ls_nsys_rows rows = {0};
    must(ls_nsys_parse(text, n, "NVTX Range Summary", &rows) == LS_OK);
    ls_nsys_rank(&rows);
    for (int i = 1; i < rows.n; i++) must(rows.row[i - 1].percent >= rows.row[i].percent);
    ls_nsys_rows_fini(&rows);
}

static void take(ls_run_set *s, ls_run_texts *t)
{
    if (s->n == s->cap) return;
    must(ls_run_read_texts(t, "r<u>n", &s->notes, &s->run[s->n]) == LS_OK);
    s->n++;
    *t = (ls_run_texts){0};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t live = ls_mem_live();
    char *text = ls_alloc(size + 1); /* as when a file is read: with a NUL after it */
    ls_run_set s = {.run = ls_alloc(4 * sizeof(ls_run)), .cap = 4};
    ls_run_texts t = {0};
    if (size) memcpy(text, data, size);
    for (size_t at = 0; at < size;) {
        char *nl = memchr(text + at, '\n', size - at);
        size_t len = nl ? (size_t)(nl - (text + at)) : size - at;
        bool head = len > 4 && !memcmp(text + at, "=== ", 4);
        const char *name = text + at + 4;
        size_t body = at + len + (nl != NULL), end = body;
        at = body;
        if (!head) continue;
        while (end < size && !(size - end > 4 && !memcmp(text + end, "=== ", 4))) {
            char *next = memchr(text + end, '\n', size - end);
            end = next ? (size_t)(next - text) + 1 : size;
        }
        ls_text *file = text_of(&t, name, len - 4);
        if (file) *file = (ls_text){text + body, end - body};
        else if (len == 8 && !memcmp(name, "nsys", 4)) parse_nsys(text + body, end - body);
        else if (len == 7 && !memcmp(name, "run", 3)) take(&s, &t);
        at = end;
    }
    take(&s, &t);
    ls_run_set_sort(&s);
    for (int allow = 0; allow < 2; allow++) {
        ls_analysis a;
        ls_str html = {0}, md = {0}, scaling = {0};
        must(ls_analyse(&s, &(ls_compare_opts){.allow_mismatch = allow}, &a) == LS_OK);
        report_page(&a, &html, &md);
        ls_scaling_text(&a, NULL, NULL, NULL, &scaling);
        must(!html.failed && html.len > 16 && !strcmp(html.data + html.len - 8, "</html>\n"));
        must(!strstr(html.data, "<u>") && !strstr(html.data, "<script") && !strstr(html.data, "=\"nan") &&
             !strstr(html.data, "=\"inf"));
        json_t *root = NULL;
        must(ls_json_parse(scaling.data, scaling.len, "scaling", &root) == LS_OK);
        json_decref(root);
        ls_str_fini(&html);
        ls_str_fini(&md);
        ls_str_fini(&scaling);
        ls_analysis_fini(&a);
    }
    ls_run_set_fini(&s);
    ls_free(text);
    ls_err_clear();
    must(ls_mem_live() == live);
    return 0;
}
