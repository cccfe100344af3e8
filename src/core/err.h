/* err.h - status codes, the error message, and the trail of calls that failed.
 *
 * A function that can fail returns ls_status. The function where the failure happens sets a message (ls_fail), and every frame
 * above adds itself to the trail (LS_TRY). The trail belongs to the thread. src/cli prints the message, and at log level debug the
 * trail (cli_print_error); main turns the status into the exit code.
 *
 *   if (!f) return ls_fail(LS_E_IO, "open %s: %s", path, strerror(errno));
 *   LS_TRY(ls_mesh_build(&mesh, cfg));
 *   LS_TRY_GOTO(st, done, read_header(f, &hdr));
 */
#ifndef LS_CORE_ERR_H
#define LS_CORE_ERR_H

#include <stdbool.h>
#include <stddef.h>

/* clang-format off */
/*        code          message                              exit code of the program */
#define LS_STATUS_LIST(X)                                    \
    X(LS_OK,            "done",                           0) \
    X(LS_E_ARG,         "bad usage",                      2) \
    X(LS_E_CONFIG,      "invalid configuration",          2) \
    X(LS_E_NOMEM,       "out of memory",                  5) \
    X(LS_E_IO,          "I/O error",                      3) \
    X(LS_E_FORMAT,      "bad input data",                 3) \
    X(LS_E_COMM,        "a worker or a collective failed", 4) \
    X(LS_E_DEVICE,      "device failed",                  4) \
    X(LS_E_NUMERIC,     "numerical failure",              1) \
    X(LS_E_CORRUPT,     "silent data corruption",         4) \
    X(LS_E_UNSUPPORTED, "not supported here",             2) \
    X(LS_E_STOPPED,     "stopped by SIGTERM",           143) \
    X(LS_E_HELP,        "the help was printed",           0) \
    X(LS_E_INTERNAL,    "internal error (please report it)", 4)
/* clang-format on */

typedef enum ls_status {
#define X(code, words, exit_code) code,
    LS_STATUS_LIST(X)
#undef X
} ls_status;

/* Starts a new trail with the message and this place; returns `code`. Messages are cut at 2000 bytes. */
#define ls_fail(code, ...) ls_fail_code((code), ls_fail_at((code), __FILE__, __LINE__, __VA_ARGS__))
ls_status ls_fail_at(ls_status code, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* The code itself, so that compilers and analyzers see that a failure is one. */
static inline ls_status ls_fail_code(ls_status code, ls_status same)
{
    (void)same;
    return code;
}

/* Adds one frame to this thread's trail; returns `st`. */
ls_status ls_fail_via(ls_status st, const char *file, int line, const char *expr);

#define LS_TRY(expr)                                            \
    do {                                                        \
        ls_status ls_try_st_ = (expr);                          \
        if (ls_try_st_ != LS_OK) {                              \
            ls_fail_via(ls_try_st_, __FILE__, __LINE__, #expr); \
            return ls_try_st_;                                  \
        }                                                       \
    } while (0)

#define LS_TRY_GOTO(st, label, expr)                      \
    do {                                                  \
        (st) = (expr);                                    \
        if ((st) != LS_OK) {                              \
            ls_fail_via((st), __FILE__, __LINE__, #expr); \
            goto label;                                   \
        }                                                 \
    } while (0)

const char *ls_status_words(ls_status st);
int ls_status_exit_code(ls_status st);

/* The message and the frames of this thread's last failure; empty strings when there was none. Borrowed until the next
 * ls_fail of the thread. The trail has one "  at f:l" line and "  via f:l  expr" lines. */
const char *ls_err_words(void);
const char *ls_err_trail(void);
void ls_err_clear(void);

/* The failure of this thread is that of another worker, which reports it. Until the next ls_fail or ls_err_clear. */
void ls_err_set_peers(void);
bool ls_err_is_peers(void);

/* Keeps this thread's failure: while something else is tried that may fail too, or to report it on another thread. */
enum { LS_ERR_WORDS = 2048, LS_ERR_TRAIL = 4096 };
typedef struct ls_err_kept {
    char words[LS_ERR_WORDS], trail[LS_ERR_TRAIL];
    bool of_peer;
} ls_err_kept;
void ls_err_keep(ls_err_kept *k);
void ls_err_restore(const ls_err_kept *k); /* makes it the failure of the calling thread */

/* "…/src/train/loop.c" -> "train/loop.c": points into `file`. */
const char *ls_short_path(const char *file);

/* For our own bugs only, never for a file, a flag or a peer: prints and aborts. */
#define LS_ASSERT(cond) ((cond) ? (void)0 : ls_assert_failed(#cond, __FILE__, __LINE__))
void ls_assert_failed(const char *cond, const char *file, int line) __attribute__((noreturn));
/* Called before that is printed; NULL: nothing. Set by the status line (progress.h), which is erased first. */
extern void (*ls_before_internal_error)(void);

#endif
