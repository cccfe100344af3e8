/* jsonl.h - JSON lines: the one reader of metrics.jsonl, events.jsonl and ranks.jsonl, of a text or of a file that grows.
 *
 *   ls_jsonl l = {.text = text, .n = n};                  a text; .at = n to read it backwards with ls_jsonl_back
 *   LS_TRY(ls_jsonl_open(&l, path, LS_JSONL_ALL));            or a whole file
 *   LS_TRY(ls_follow_look(&f, path, most, &l));           or what the file has got since the last look
 *   while (ls_jsonl_next(&l)) use(l.row, l.number);
 *   ls_jsonl_fini(&l);  or  ls_follow_end(&f, &l);
 *
 * Empty lines are passed over. Lines end with LF or CR LF. A last line without its end is given too, with whole == false; not by a look, which
 * reads it again next time. */
#ifndef LS_RUN_JSONL_H
#define LS_RUN_JSONL_H

#include "core/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

#define LS_JSONL_ALL (SIZE_MAX / 4) /* for `most`: no limit */

typedef struct ls_jsonl {
    const char *text;
    size_t n, at;   /* the next line begins at `at` */
    size_t begin;   /* of this line                 */
    int64_t number; /* of this line, from 1; not backwards */
    json_t *row;    /* of this line, until the next call; NULL: it is no JSON object */
    bool whole;
    bool grows; /* of a look */
    char *own;  /* the text, if it is freed with this */
} ls_jsonl;

ls_status ls_jsonl_open(ls_jsonl *l, const char *path, size_t most); /* fails as ls_fs_read_most */
bool ls_jsonl_next(ls_jsonl *l);
bool ls_jsonl_back(ls_jsonl *l); /* the line before `at` */
void ls_jsonl_fini(ls_jsonl *l);

/* A file that is appended to; zeroed: nothing is read. One that was replaced (another inode) or became shorter is read from its beginning. */
typedef struct ls_follow {
    off_t at, size;
    off_t seen; /* to where it was looked at: after `at`, if a line has no end yet */
    ino_t inode;
    bool again;     /* the last look found another file, or a shorter one   */
    bool link;      /* it is a link, and is not followed (core/fs.h)        */
    bool more;      /* the last look read `most` bytes: there may be more   */
    int64_t n_long; /* lines of more than `most` bytes, which are passed over */
} ls_follow;

/* At most `most` bytes from f->at on. A file that is missing, or is no regular file, has no lines. LS_E_NOMEM. */
ls_status ls_follow_look(ls_follow *f, const char *path, size_t most, ls_jsonl *l);
/* The lines that were read are not read again. */
void ls_follow_end(ls_follow *f, ls_jsonl *l);

#endif
