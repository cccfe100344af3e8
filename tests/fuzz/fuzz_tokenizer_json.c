/* Any bytes as a tokenizer.json: refused with a message, or a tokenizer that decodes what it encodes and can be saved and loaded. */
#include "fuzz.h"
#include "core/mem.h"
#include "data/tokenizer.h"

#include <string.h>

static void check(const ls_tokenizer *t, const uint8_t *data, size_t n)
{
    ls_ids ids = {0};
    ls_str text = {0}, json = {0}, again = {0};
    ls_tokenizer *u = NULL;
    if (n > 2000) n = 2000; /* the file itself is the text */
    must(ls_tokenizer_encode(t, data, n, &ids) == LS_OK);
    must(ls_tokenizer_decode(t, ids.id, ids.n, &text) == LS_OK);
    must(text.len == n && (!n || !memcmp(text.data, data, n)));
    must(ls_tokenizer_to_json(t, &json) == LS_OK);
    must(ls_tokenizer_from_json(json.data, json.len, "saved", &u) == LS_OK);
    must(ls_tokenizer_to_json(u, &again) == LS_OK);
    must(json.len == again.len && !memcmp(json.data, again.data, json.len));
    ls_tokenizer_destroy(&u);
    ls_ids_fini(&ids);
    ls_str_fini(&text);
    ls_str_fini(&json);
    ls_str_fini(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    int64_t live = ls_mem_live();
    ls_tokenizer *t = NULL;
    ls_err_clear();
    if (ls_tokenizer_from_json((const char *)data, n, "input", &t) == LS_OK) check(t, data, n);
    else must(!t && ls_err_words()[0]);
    ls_tokenizer_destroy(&t);
    must(ls_mem_live() == live);
    return 0;
}
