/* Any bytes as a line of JSON: a line that jansson accepts gives the same text here, and other lines do no harm. */
#include "fuzz.h"
#include "core/mem.h"
#include "core/str.h"
#include "data/jsonl.h"

#include <jansson.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    int64_t live = ls_mem_live();
    ls_str out = {0};
    size_t at = 0;
    const char *why = NULL;
    const char *line = (const char *)data;
    ls_jsonl_result r = ls_jsonl_text(line, n, "text", &out, &at, &why);
    must(at <= n && r != LS_JSONL_NOMEM);
    must(r != LS_JSONL_BAD || why);
    /* The last of equal keys wins in both. A NUL byte is not valid JSON, but jansson accepts some: not compared. */
    json_t *j = n && memchr(line, '\0', n) ? NULL : json_loadb(line, n, JSON_ALLOW_NUL, NULL);
    if (j && json_is_object(j)) {
        const json_t *text = json_object_get(j, "text");
        if (r == LS_JSONL_BAD) must(why && !strcmp(why, "less nesting"));
        else if (!text) must(r == LS_JSONL_NO_KEY);
        else if (!json_is_string(text)) must(r == LS_JSONL_NOT_TEXT);
        else {
            must(r == LS_JSONL_OK && out.len == json_string_length(text));
            must(!out.len || !memcmp(out.data, json_string_value(text), out.len));
        }
    } else if (j) {
        must(r == LS_JSONL_BAD);
    }
    json_decref(j);
    ls_str_fini(&out);
    must(ls_mem_live() == live);
    return 0;
}
