/* json.h - reading through jansson, writing in the one format of the artifacts.
 *
 * The writer's format is that of run files (docs/FORMATS.md): UTF-8 in, ASCII out (\uXXXX), keys in the order they are written,
 * indent of two blanks or none, no trailing newline; floats in the shortest form that reads back the same, integral ones
 * with ".0", exponent form below 1e-4 and from 1e16 on. Not-a-number and infinities are written as null. */
#ifndef LS_CORE_JSON_H
#define LS_CORE_JSON_H

#include "core/err.h"
#include "core/str.h"

#include <jansson.h>
#include <stdint.h>

/* Parses strict JSON (duplicate keys are errors). The message names the file, line, column and reason. LS_E_IO, LS_E_FORMAT.
 * The caller owns one reference (json_decref). */
ls_status ls_json_load(const char *path, json_t **out);
ls_status ls_json_parse(const char *text, size_t n, const char *what, json_t **out);

/* The text (n bytes) without what JSON does not have but hjson, which DeepSpeed reads its files with: comments (//, #, slash-star) and commas before
 * a closing bracket become blanks, so that lines and columns stay. NULL: no memory; free with ls_free. */
char *ls_json_plain(const char *text, size_t n);

/* The line of a key in such a text, by its dotted path; of its last block that the text has; 0: not even the first one. */
int ls_json_line(const char *text, const char *path);

/* The value at a dotted path ("lockstep.memory.per_rank"); NULL if there is none. */
const json_t *ls_json_at(const json_t *root, const char *path);

/* The value of a key where the file may lack it: NaN, -1 or "" if it is null, of another type, not whole from 0, or not there. */
double ls_json_real_at(const json_t *object, const char *key);
int64_t ls_json_int_at(const json_t *object, const char *key);
const char *ls_json_text_at(const json_t *object, const char *key); /* borrowed */

/* Zero-initialise with the string to append to; indent 0 writes one line. Misuse (a key outside an object) asserts. */
#define LS_JSON_DEPTH 2049 /* one more than jansson reads, so that any parsed value can be written */
typedef struct ls_jsonw {
    ls_str *out;
    int indent;
    int depth;
    unsigned char in_array[LS_JSON_DEPTH + 1], has_item[LS_JSON_DEPTH + 1];
    unsigned char after_key;
} ls_jsonw;

void ls_jsonw_init(ls_jsonw *w, ls_str *out, int indent);
void ls_jsonw_open(ls_jsonw *w, char bracket); /* '{' or '[' */
void ls_jsonw_close(ls_jsonw *w);
void ls_jsonw_key(ls_jsonw *w, const char *key);
void ls_jsonw_str(ls_jsonw *w, const char *value); /* NULL -> null; invalid UTF-8 bytes become U+FFFD */
void ls_jsonw_text(ls_jsonw *w, ls_substr value);  /* may contain zero bytes */
void ls_jsonw_int(ls_jsonw *w, int64_t value);
void ls_jsonw_real(ls_jsonw *w, double value);
void ls_jsonw_bool(ls_jsonw *w, int value);
void ls_jsonw_null(ls_jsonw *w);
void ls_jsonw_raw(ls_jsonw *w, const char *text); /* a number or word that is JSON already */
/* A member: key and value. */
void ls_jsonw_put_str(ls_jsonw *w, const char *key, const char *value);
void ls_jsonw_put_text(ls_jsonw *w, const char *key, ls_substr value);
void ls_jsonw_put_int(ls_jsonw *w, const char *key, int64_t value);
void ls_jsonw_put_count(ls_jsonw *w, const char *key, int64_t value); /* below 0: not known, null */
void ls_jsonw_put_real(ls_jsonw *w, const char *key, double value);
void ls_jsonw_put_bool(ls_jsonw *w, const char *key, int value);
void ls_jsonw_put_open(ls_jsonw *w, const char *key, char bracket);
void ls_jsonw_put_value(ls_jsonw *w, const char *key, const json_t *value);
/* Several members: ls_jsonw_members(w, LS_KV("loss", loss), LS_KV("tokens", n)). The type of a value chooses the function.
 * Comparisons and the literals true and false have the type int in C; cast them: LS_KV("ok", (bool)(n == 0)). */
#define ls_jsonw_members(w, ...)     \
    do {                             \
        ls_jsonw *const kv_w_ = (w); \
        __VA_ARGS__;                 \
    } while (0)
/* clang-format off */
#define LS_KV_COUNT(key, value)  ls_jsonw_put_count(kv_w_, key, value)
#define LS_KV_IF(condition, ...) ((condition) ? (__VA_ARGS__) : (void)0) /* members that not all objects have */
#define LS_KV(key, value)                                                                                    \
    _Generic((value), char *: ls_jsonw_put_str, const char *: ls_jsonw_put_str, ls_substr: ls_jsonw_put_text, \
             bool: ls_jsonw_put_bool, float: ls_jsonw_put_real, double: ls_jsonw_put_real, default: ls_jsonw_put_int)(kv_w_, key, value)
/* clang-format on */
void ls_jsonw_value(ls_jsonw *w, const json_t *value); /* any jansson value, as it is */

/* The float format above, alone: for RUN_COMPLETE.txt and tables. */
char *ls_json_real(char buf[32], double value);

#endif
