/* str.h - a growing string, and the few text helpers that several folders need. */
#ifndef LS_CORE_STR_H
#define LS_CORE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero-initialise; ls_str_fini when done. After an allocation failure `failed` is set, later appends do nothing, and the
 * caller checks once at the end. data is NUL-terminated once something was appended. */
typedef struct ls_str {
    char *data;
    size_t len, cap;
    bool failed;
} ls_str;

void ls_str_add(ls_str *s, const char *text);
void ls_str_addn(ls_str *s, const void *bytes, size_t n);
void ls_str_addc(ls_str *s, char c);
void ls_str_addf(ls_str *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void ls_str_fini(ls_str *s);
/* Bytes that are not UTF-8, and control characters other than line ends and tabs, become "?": names of files and folders, and generated text, must not
 * control a terminal. */
void ls_str_printable(ls_str *s);

/* A text that belongs to someone else. */
typedef struct ls_substr {
    const char *data;
    size_t n;
} ls_substr;

/* Appends the next piece of *text, padded to `width` columns, and moves *text past it: it ends at a blank, and a word is broken only if it is
 * longer than a line. For the cells of a table: a long name goes on in the next rows. */
void ls_str_add_piece(ls_str *s, const char **text, int width);
/* Bytes of the first line of `text` if a line has room for `width` columns; `columns` measures n bytes (NULL: one column per character). */
size_t ls_line_of(const char *text, double width, double (*columns)(const char *text, size_t n));

bool ls_ends_in(const char *text, const char *end); /* and is longer */
/* Whether `word` is one of "a|b|c". */
bool ls_one_of(const char *choices, const char *word, bool any_case);

/* Whole-string numbers: false when the text is empty, has trailing bytes or is out of range. Integers also take forms
 * like 5e8 when they are whole. */
bool ls_parse_i64(const char *text, int64_t *out);
bool ls_parse_f64(const char *text, double *out);

/* Insertions, deletions, replacements and swaps of neighbours that make b of a; SIZE_MAX if one has 64 bytes or more. */
size_t ls_edit_distance(const char *a, const char *b);
/* The nearest of the n words to `word` (edit distance, at most a third of its length plus one), or NULL. */
const char *ls_nearest_word(const char *word, const char *const *words, size_t n);

/* 1234567 -> "1.2 MiB" and 86399 -> "23h59m"; buf is returned. */
char *ls_human_bytes(char buf[32], double nbytes);
char *ls_human_time(char buf[32], double seconds);
/* 12345.678 -> "12,346"; small numbers keep `decimals`. */
char *ls_number_text(char buf[40], double x, int decimals);

#endif
