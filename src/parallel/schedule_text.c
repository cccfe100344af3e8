/* schedule_text.c - a line reader with places, and its inverse. */
#include "parallel/schedule_text.h"

#include "core/fs.h"
#include "core/mem.h"
#include "parallel/schedule_check.h"

#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define WORDS_A_LINE 12

/* "F3", "ra3.1@0": an action as the file has it; buf is returned. */
static char *token_of(const ls_schedule *s, const ls_action *a, char buf[LS_TOKEN])
{
    char micro[16] = "", chunk[16] = "", peer[16] = "";
    if (a->kind == LS_PIPE_REDUCE) snprintf(micro, sizeof micro, "%d", a->chunk);
    else if (a->kind != LS_PIPE_STEP) snprintf(micro, sizeof micro, "%d", a->micro);
    if (s->n_chunk > 1 && a->kind < LS_PIPE_REDUCE) snprintf(chunk, sizeof chunk, ".%d", a->chunk);
    if (a->peer >= 0) snprintf(peer, sizeof peer, "@%d", a->peer);
    snprintf(buf, LS_TOKEN, "%s%s%s%s", ls_pipe_names[a->kind].token, micro, chunk, peer);
    return buf;
}

char *ls_action_where(const ls_schedule *s, int rank, int i, char buf[LS_WHERE])
{
    const ls_action *a = &s->rank[rank].action[i];
    char token[LS_TOKEN];
    if (a->line && s->added && ls_pipe_receives(a->kind)) a++; /* directly before the action that needs it */
    if (a->line && s->added && ls_pipe_sends(a->kind)) a--;
    if (a->line) snprintf(buf, LS_WHERE, "rank %d, line %d (%s)", rank, a->line, token_of(s, a, token));
    else snprintf(buf, LS_WHERE, "rank %d, action %d (%s)", rank, i, token_of(s, a, token));
    return buf;
}

void ls_schedule_write(const ls_schedule *s, ls_str *out)
{
    char token[LS_TOKEN];
    ls_str_addf(out, "lockstep-schedule 1\nname %s\nstages %d\nmicro %d\nchunks %d\nmessages listed\n", s->name,
                s->n_stage, s->n_micro, s->n_chunk);
    for (int r = 0; r < s->n_stage; r++) {
        const ls_rank_list *l = &s->rank[r];
        ls_str_addf(out, "rank %d\n", r);
        for (int i = 0; i < l->n_action; i++) {
            const bool end = i == l->n_action - 1 || i % WORDS_A_LINE == WORDS_A_LINE - 1;
            ls_str_addf(out, "%s%c", token_of(s, &l->action[i], token), end ? '\n' : ' ');
        }
    }
}

/* ---- reading ---- */

typedef struct reader {
    const char *what, *p, *end;
    const char *word; /* the one last read; n_word 0 at the end */
    size_t n_word;
    const char *counted, *line_begin; /* lines up to here are counted; where the last of them begins */
    int n_line;
} reader;

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* The next word, across lines; '#' begins a comment. */
static void next_word(reader *r)
{
    while (r->p < r->end && (*r->p == '#' || is_blank(*r->p))) {
        if (*r->p++ != '#') continue;
        while (r->p < r->end && *r->p != '\n') r->p++;
    }
    r->word = r->p;
    while (r->p < r->end && *r->p != '#' && !is_blank(*r->p)) r->p++;
    r->n_word = (size_t)(r->p - r->word);
}

static bool is_word(const reader *r, const char *w)
{
    return r->n_word == strlen(w) && !memcmp(r->word, w, r->n_word);
}

static bool next_is(reader *r, const char *w)
{
    next_word(r);
    return is_word(r, w);
}

/* The word for messages: printable, not too long. */
static char *shown(const reader *r, char buf[40])
{
    size_t n = r->n_word < 32 ? r->n_word : 32;
    if (!r->n_word) {
        snprintf(buf, 40, "the end");
        return buf;
    }
    char *o = buf;
    *o++ = '\'';
    for (size_t i = 0; i < n; i++) *o++ = isprint((unsigned char)r->word[i]) ? r->word[i] : '?';
    snprintf(o, 8, "%s'", n < r->n_word ? "..." : "");
    return buf;
}

/* The line of the word, and its column. */
static int line_of(reader *r, int *column)
{
    for (; r->counted < r->word; r->counted++) {
        if (*r->counted != '\n') continue;
        r->line_begin = r->counted + 1;
        r->n_line++;
    }
    *column = (int)(r->word - r->line_begin) + 1;
    return r->n_line + 1;
}

#define bad(r, ...) bad_at(r, ls_asprintf(__VA_ARGS__))
static ls_status bad_at(reader *r, char *why)
{
    char word[40];
    int column;
    const int number = line_of(r, &column);
    ls_status st = ls_fail(LS_E_FORMAT, "%s:%d:%d: %s; found %s", r->what, number, column, why ? why : "not a schedule",
                           shown(r, word));
    ls_free(why);
    return st;
}

/* Digits at *at (below the word's end) as a number up to most. */
static bool digits(const reader *r, size_t *at, int most, int *out)
{
    int64_t v = 0;
    const size_t first = *at;
    for (; *at < r->n_word && r->word[*at] >= '0' && r->word[*at] <= '9' && v <= most; ++*at)
        v = 10 * v + (r->word[*at] - '0');
    *out = (int)(v <= most ? v : 0);
    return *at > first && v <= most && !(r->word[first] == '0' && *at > first + 1);
}

static ls_status header_int(reader *r, const char *key, int most, int *out)
{
    if (!next_is(r, key)) return bad(r, "expected the line '%s N'", key);
    next_word(r);
    size_t at = 0;
    if (!digits(r, &at, most, out) || at != r->n_word || *out < 1)
        return bad(r, "%s needs a number from 1 to %d", key, most);
    return LS_OK;
}

static ls_status header_name(reader *r, char name[32])
{
    if (!next_is(r, "name")) return bad(r, "expected the line 'name WORD'");
    next_word(r);
    bool good = r->n_word > 0 && r->n_word < 32;
    for (size_t i = 0; good && i < r->n_word; i++)
        good = isalnum((unsigned char)r->word[i]) || strchr("._-", r->word[i]);
    good = good && !memchr(r->word, 0, r->n_word);
    if (!good) return bad(r, "a name has 1 to 31 letters, digits, '.', '_' or '-'");
    memcpy(name, r->word, r->n_word);
    name[r->n_word] = '\0';
    return LS_OK;
}

/* The kind of the word, and the length of its token; LS_N_PIPE when none. */
static ls_pipe_kind kind_of(const reader *r, size_t *n)
{
    for (int k = 0; k < LS_N_PIPE; k++) {
        *n = strlen(ls_pipe_names[k].token);
        if (r->n_word >= *n && !memcmp(r->word, ls_pipe_names[k].token, *n) &&
            (r->n_word == *n) == (k == LS_PIPE_STEP) && /* "step" stands alone, the others have numbers */
            (k == LS_PIPE_STEP || isdigit((unsigned char)r->word[*n])))
            return (ls_pipe_kind)k;
    }
    return LS_N_PIPE;
}

static ls_status read_action(reader *r, const ls_schedule *s, bool listed, ls_action *out)
{
    size_t at = 0;
    ls_action a = {.kind = kind_of(r, &at), .micro = -1, .chunk = -1, .peer = -1, .slot = -1, .grad_slot = -1};
    int column;
    a.line = line_of(r, &column);
    if (a.kind == LS_N_PIPE)
        return bad(r, "expected an action (F3, B3, I3, W3, ra3@0, sa3@1, rg3@1, sg3@0, R0, step), or 'rank N'");
    if (!listed && !ls_pipe_computes(a.kind)) return bad(r, "with 'messages auto' only F, B, I and W are listed");
    if (a.kind == LS_PIPE_REDUCE) {
        if (!digits(r, &at, s->n_chunk - 1, &a.chunk)) return bad(r, "chunks are 0 to %d", s->n_chunk - 1);
    } else if (a.kind != LS_PIPE_STEP) {
        if (!digits(r, &at, s->n_micro - 1, &a.micro)) return bad(r, "micro-batches are 0 to %d", s->n_micro - 1);
        a.chunk = 0;
        const bool dot = at < r->n_word && r->word[at] == '.';
        if (dot) at++;
        if (dot != (s->n_chunk > 1) || (dot && !digits(r, &at, s->n_chunk - 1, &a.chunk)))
            return s->n_chunk > 1 ? bad(r, "the chunk is missing or wrong: .0 to .%d", s->n_chunk - 1)
                                  : bad(r, "with one chunk, the chunk is not written");
    }
    const bool message = ls_pipe_sends(a.kind) || ls_pipe_receives(a.kind);
    if (message && (at >= r->n_word || r->word[at++] != '@' || !digits(r, &at, s->n_stage - 1, &a.peer)))
        return bad(r, "the peer is missing or wrong: @0 to @%d", s->n_stage - 1);
    if (at != r->n_word) return bad(r, "unexpected text after the action");
    *out = a;
    return LS_OK;
}

static ls_status read_lists(reader *r, ls_schedule *s, bool listed)
{
    next_word(r);
    for (int rank = 0; rank < s->n_stage; rank++) {
        int number = -1;
        size_t at = 0;
        if (!is_word(r, "rank")) return bad(r, "expected 'rank %d'", rank);
        next_word(r);
        if (!digits(r, &at, LS_PIPE_MAX_STAGE, &number) || at != r->n_word || number != rank)
            return bad(r, "rank %d is next (ranks 0 to %d in order)", rank, s->n_stage - 1);
        for (next_word(r); r->n_word && !is_word(r, "rank"); next_word(r)) {
            ls_action a;
            LS_TRY(read_action(r, s, listed, &a));
            ls_schedule_put(s, rank, a);
            if (s->failed) return ls_nomem(sizeof a, "a schedule");
        }
    }
    return r->n_word ? bad(r, "with %d stages, rank %d is the last", s->n_stage, s->n_stage - 1) : LS_OK;
}

ls_status ls_schedule_read(ls_schedule **out, const char *text, size_t n, const char *what)
{
    reader r = {.what = what, .p = text, .end = text + n, .counted = text, .line_begin = text};
    char name[32];
    int n_stage = 0, n_micro = 0, n_chunk = 0;
    if (!next_is(&r, "lockstep-schedule")) return bad(&r, "a schedule must begin with 'lockstep-schedule 1'");
    if (!next_is(&r, "1")) return bad(&r, "this version reads format 1");
    LS_TRY(header_name(&r, name));
    LS_TRY(header_int(&r, "stages", LS_PIPE_MAX_STAGE, &n_stage));
    LS_TRY(header_int(&r, "micro", LS_PIPE_MAX_CELL, &n_micro));
    LS_TRY(header_int(&r, "chunks", LS_PIPE_MAX_CHUNK, &n_chunk));
    if (!next_is(&r, "messages")) return bad(&r, "expected the line 'messages listed' or 'messages auto'");
    const bool listed = next_is(&r, "listed");
    if (!listed && !is_word(&r, "auto")) return bad(&r, "messages must be listed or auto");
    ls_schedule *s = NULL;
    LS_TRY(ls_schedule_empty(&s, name, n_stage, n_micro, n_chunk));
    ls_status st = read_lists(&r, s, listed);
    if (st == LS_OK) st = listed ? ls_schedule_slots(s, false) : ls_schedule_finish(s);
    if (st == LS_OK) st = ls_schedule_progress(s);
    if (st == LS_E_CONFIG) { /* with more memory the ranks may not wait for each other's buffers */
        ls_err_clear();
        st = ls_schedule_slots(s, true);
    }
    if (st == LS_OK) *out = s;
    else ls_schedule_destroy(&s);
    return st;
}

ls_status ls_schedule_load(ls_schedule **out, const char *path, int n_stage, int n_micro)
{
    char *text = NULL;
    size_t n = 0;
    ls_schedule *s = NULL;
    if (!ls_fs_exists(path)) return ls_schedule_unknown(path);
    LS_TRY(ls_fs_read_most(path, LS_FS_TEXT_MOST, &text, &n));
    ls_status st = ls_schedule_read(&s, text, n, path);
    ls_free(text);
    LS_TRY(st);
    if ((n_stage && n_stage != s->n_stage) || (n_micro && n_micro != s->n_micro))
        st = ls_fail(
            LS_E_CONFIG,
            "%s is for %d stages and %d micro-batches, but this run has %d and %d; use --pp %d --grad_accum_steps %d (of plan: --micro %d)",
            path, s->n_stage, s->n_micro, n_stage ? n_stage : s->n_stage, n_micro ? n_micro : s->n_micro, s->n_stage,
            s->n_micro, s->n_micro);
    if (st == LS_OK && (st = ls_schedule_check(s)) != LS_OK) {
        ls_err_kept why;
        ls_err_keep(&why);
        st = ls_fail(st, "%s: %s", path, why.words);
    }
    if (st == LS_OK) *out = s;
    else ls_schedule_destroy(&s);
    return st;
}
