/* jsonl.h - extracts the text of one JSON line without building a tree. */
#ifndef LS_DATA_JSONL_H
#define LS_DATA_JSONL_H

#include "core/err.h"
#include "core/str.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum ls_jsonl_result {
    LS_JSONL_OK,
    LS_JSONL_BAD,      /* not one JSON object                                */
    LS_JSONL_NO_KEY,   /* an object without the key                          */
    LS_JSONL_NOT_TEXT, /* the key's value is not a string                    */
    LS_JSONL_LONE,     /* the string has a lone surrogate (\ud800 and alike); `out` has it as three bytes */
    LS_JSONL_NOMEM,
} ls_jsonl_result;

/* Checks that line[0, n) is one JSON object, with optional blanks around it, and stores the string of the top-level key (the last
 * one if repeated) in *out. Bytes above 127 are copied unchanged; the caller checks UTF-8. On failure *at is the position
 * and *why what was expected there. Nesting deeper than 200 is LS_JSONL_BAD. */
ls_jsonl_result ls_jsonl_text(const char *line, size_t n, const char *key, ls_str *out, size_t *at, const char **why);

/* Whether the line is one JSON object whose value of the key is an object; *value is that one, a part of the line. work: its content is
 * lost. */
bool ls_jsonl_object(const char *line, size_t n, const char *key, ls_str *work, ls_substr *value);

#endif
