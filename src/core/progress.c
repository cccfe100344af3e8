#include "core/progress.h"

#include "core/err.h"

#include "core/clock.h"

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define EVERY     0.1 /* seconds between drawings */
#define BURST     5.0 /* drawings after lines that came at once */
#define LEAST     10.0
#define MOST      60.0 /* seconds between plain lines */
#define SPARE     3
#define ERASE     "\r\033[K"
#define LINE_ROOM (LS_PROGRESS_FIELDS * 68)

/* A terminal belongs to the process, so this is process-wide state. `shown` is also read by signal handlers. */
static pthread_mutex_t lock;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static enum { PLAIN, TERMINAL, WORKER } mode;
static bool colours;
static int paused;
static _Atomic int shown;
static ls_progress_line current; /* n 0: nothing to draw */
static double began, last;       /* of the first and the newest line; 0: none */
static double allowed = BURST, allowed_at;

static void make_lock(void)
{
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_settype(&a, PTHREAD_MUTEX_RECURSIVE); /* a log line while the same thread prints */
    pthread_mutex_init(&lock, &a);
    pthread_mutexattr_destroy(&a);
}

void ls_progress_open(void)
{
    const char *term = getenv("TERM"), *no = getenv("NO_COLOR");
    pthread_once(&once, make_lock);
    ls_before_internal_error = ls_progress_erase_now;
    if (mode == PLAIN && term && *term && strcmp(term, "dumb") != 0 && isatty(STDERR_FILENO)) mode = TERMINAL;
    colours = mode == TERMINAL && !(no && *no);
}

bool ls_progress_live(void)
{
    return mode != PLAIN;
}

void ls_progress_become_worker(void)
{
    if (mode != TERMINAL) return;
    make_lock(); /* a thread of the parent may have held it */
    mode = WORKER;
    paused = 0;
    atomic_store(&shown, 0);
}

/* ---- layout ---- */

void ls_progress_add(ls_progress_line *l, int drop, const char *fmt, ...)
{
    va_list ap;
    if (l->n == LS_PROGRESS_FIELDS) return;
    l->field[l->n].drop = drop;
    va_start(ap, fmt);
    vsnprintf(l->field[l->n].text, sizeof l->field[l->n].text, fmt, ap);
    va_end(ap);
    l->n++;
}

static size_t length_below(const ls_progress_line *l, int drop)
{
    size_t n = 0;
    for (int i = 0; i < l->n; i++)
        if (l->field[i].drop < drop) n += strlen(l->field[i].text) + (n ? 2 : 0);
    return n;
}

/* Bytes count as columns: no character of a terminal has more columns than bytes. */
size_t ls_progress_layout(const ls_progress_line *l, int columns, char *out, size_t room)
{
    size_t n = 0;
    int below = 1;
    for (int i = 0; i < l->n; i++)
        if (l->field[i].drop >= below) below = l->field[i].drop + 1;
    while (below > 1 && length_below(l, below) > (size_t)columns) below--;
    out[0] = '\0';
    for (int i = 0; i < l->n; i++)
        if (l->field[i].drop < below && n < room)
            n += (size_t)snprintf(out + n, room - n, "%s%s", n ? "  " : "", l->field[i].text);
    if (n >= room) n = room - 1;
    if (n > (size_t)columns) n = (size_t)columns;
    while (n && (out[n] & 0xc0) == 0x80) n--; /* not inside a character */
    out[n] = '\0';
    return n;
}

/* Columns of n bytes without the sequences that set colours. */
static double columns_of(const char *text, size_t n)
{
    int columns = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\033') {
            while (i < n && text[i] != 'm') i++;
            continue;
        }
        columns += (text[i] & 0xc0) != 0x80;
    }
    return columns;
}

void ls_progress_wrap(const char *text, int columns, ls_str *out)
{
    while (*text) {
        const size_t n = strcspn(text, "\n");
        char row[1024];
        bool first = true;
        if (n >= sizeof row || columns < 8) { /* longer than any line of ours */
            ls_str_addn(out, text, n);
        } else {
            memcpy(row, text, n);
            row[n] = '\0';
            for (const char *p = row; *p || first; first = false) {
                const size_t k = ls_line_of(p, columns - (first ? 0 : 2), columns_of);
                ls_str_addf(out, "%s%.*s", first ? "" : "\n  ", (int)k, p);
                p += k;
                p += strspn(p, " ");
            }
        }
        text += n;
        if (*text == '\n') ls_str_addc(out, *text++);
    }
}

/* ---- the line ---- */

int ls_terminal_columns(int fd)
{
    struct winsize w = {0};
    return ioctl(fd, TIOCGWINSZ, &w) ? 0 : w.ws_col ? w.ws_col : 80;
}

static int terminal_columns(void)
{
    const int columns = ls_terminal_columns(STDERR_FILENO);
    return columns ? columns : 80;
}

static void put(const char *text, size_t n)
{
    while (n) {
        const ssize_t k = write(STDERR_FILENO, text, n);
        if (k <= 0) return; /* a terminal that is gone */
        text += k;
        n -= (size_t)k;
    }
}

static bool in_background(void)
{
    const pid_t front = tcgetpgrp(STDERR_FILENO);
    return front > 0 && front != getpgrp();
}

static void erase(void)
{
    if (atomic_exchange(&shown, 0)) put(ERASE, strlen(ERASE));
}

/* With the lock. The last columns stay empty: some terminals wrap when the last one is written, and Ctrl-C prints "^C" after the line. */
static void draw(void)
{
    const double now = ls_now();
    char text[LINE_ROOM], out[LINE_ROOM + 32];
    allowed = fmin(BURST, allowed + (now - allowed_at) / EVERY);
    allowed_at = now;
    if (!current.n || allowed < 1 || in_background()) return;
    allowed -= 1;
    const size_t n = ls_progress_layout(&current, terminal_columns() - SPARE, text, sizeof text);
    size_t bold = strlen(current.field[0].text);
    bold = bold < n ? bold : n;
    const int len = colours ? snprintf(out, sizeof out, "\r\033[1m%.*s\033[0m%s\033[K", (int)bold, text, text + bold)
                            : snprintf(out, sizeof out, "\r%s\033[K", text);
    put(out, (size_t)len);
    atomic_store(&shown, 1);
}

/* 1, 2, 5, 10, 20, 50 ... */
static bool is_round(int64_t step)
{
    while (step >= 10 && step % 10 == 0) step /= 10;
    return step == 1 || step == 2 || step == 5;
}

bool ls_progress_due(int64_t step)
{
    const double now = ls_now();
    if (mode != PLAIN) return now - last >= EVERY;
    if (began == 0) { /* work without steps begins with a wait */
        began = now;
        if (!step) last = now;
    }
    return last == 0 || is_round(step) || now - last >= fmin(MOST, fmax(LEAST, 0.02 * (now - began)));
}

/* "<mark><drop><text>\037<drop><text>...\n" */
static void send(const ls_progress_line *l)
{
    char out[LINE_ROOM + 32];
    size_t n = 0;
    out[n++] = LS_PROGRESS_MARK;
    for (int i = 0; i < l->n; i++)
        n += (size_t)snprintf(out + n, sizeof out - n, "%s%c%s", i ? "\037" : "", 'a' + l->field[i].drop,
                              l->field[i].text);
    out[n++] = '\n';
    put(out, n);
}

bool ls_progress_take(const char *line, size_t n)
{
    ls_progress_line l = {0};
    if (!n || line[0] != LS_PROGRESS_MARK) return false;
    const char *p = line + 1, *end = line + n;
    if (end[-1] == '\n') end--;
    while (p < end) {
        const char *stop = memchr(p, '\037', (size_t)(end - p));
        if (!stop) stop = end;
        if (stop > p) ls_progress_add(&l, p[0] - 'a', "%.*s", (int)(stop - p - 1), p + 1);
        p = stop < end ? stop + 1 : end;
    }
    ls_progress_show(&l);
    return true;
}

void ls_progress_show(const ls_progress_line *l)
{
    char text[LINE_ROOM];
    last = ls_now();
    if (mode == WORKER) {
        send(l);
    } else if (mode == PLAIN) {
        ls_progress_layout(l, LINE_ROOM, text, sizeof text - 1);
        (void)fprintf(stderr, "%s\n", text);
    } else {
        pthread_mutex_lock(&lock);
        current = *l;
        if (!paused) draw();
        pthread_mutex_unlock(&lock);
    }
}

void ls_progress_end(bool keep)
{
    began = last = 0;
    if (mode != TERMINAL) return;
    pthread_mutex_lock(&lock);
    if (keep && current.n && !paused) {
        allowed = BURST; /* the newest state */
        draw();
        if (atomic_exchange(&shown, 0)) put("\n", 1);
    } else {
        erase();
    }
    current.n = 0;
    pthread_mutex_unlock(&lock);
}

/* ---- above the line ---- */

void ls_progress_pause(void)
{
    if (mode != TERMINAL) return;
    pthread_mutex_lock(&lock);
    if (!paused++) erase();
}

void ls_progress_resume(void)
{
    if (mode != TERMINAL) return;
    if (!--paused) draw();
    pthread_mutex_unlock(&lock);
}

void ls_progress_erase_now(void)
{
    erase();
}

void ls_progress_print(FILE *to, ls_colour colour, const char *text)
{
    static const char *const code[] = {"", "\033[36m", "\033[33m", "\033[31m"};
    ls_str s = {0};
    if (mode == PLAIN || (to != stderr && mode == WORKER)) {
        fputs(text, to);
        fflush(to);
        return;
    }
    const size_t n = strlen(text);
    const bool coloured = colours && colour != LS_COLOUR_NONE && to == stderr, ends = n && text[n - 1] == '\n';
    if (coloured) ls_str_addf(&s, "%s%.*s\033[0m%s", code[colour], (int)(n - ends), text, ends ? "\n" : "");
    const char *lines = s.data ? s.data : text;
    ls_str wrapped = {0};
    if (mode == TERMINAL && to == stderr) ls_progress_wrap(lines, terminal_columns(), &wrapped);
    ls_progress_pause();
    fputs(wrapped.data && !wrapped.failed ? wrapped.data : lines, to);
    fflush(to);
    ls_progress_resume();
    ls_str_fini(&wrapped);
    ls_str_fini(&s);
}

void ls_progress_say(const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    ls_progress_print(stderr, LS_COLOUR_NONE, text);
}
