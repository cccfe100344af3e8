/* cmd_watch.c - `lockstep watch`: a run in the terminal while it trains. */
#include "cli/commands.h"

#include "core/clock.h"
#include "core/fs.h"
#include "core/stop.h"
#include "serve/live_set.h"
#include "serve/screen.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

typedef struct options {
    bool once;
    double interval;
} options;

static const ls_opt opts[] = {
    CLI_SWITCH("once", once, "print once and exit; also if the output is not a terminal"),
    CLI_REAL_IN(0.1, 1e6, "interval", interval, "SECONDS", "1", "time between two updates"),
};

static const cli_page page = {
    opts, CLI_COUNT(opts), "watch [RUN] [OPTIONS]",
    "Show a run in the terminal: state, last values, the curve of the loss, and one line per rank. RUN is a run folder, or a folder of run "
    "folders, of which the newest run is shown. It ends with the run, or with q or Ctrl-C; the run is not affected. Without RUN: the newest run below the folder runs.\n\n"};

static ls_screen screen_size(bool tty)
{
    struct winsize w;
    ls_screen s = {.columns = 80, .blocks = ls_screen_unicode()};
    if (tty && !ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) && w.ws_col >= 20) {
        s.columns = w.ws_col;
        s.rows = w.ws_row > 12 ? w.ws_row - 1 : 12;
    }
    return s;
}

/* Reads all that is written until now. */
static ls_status read_run(ls_live_set *set, ls_live_run **r)
{
    bool more = true;
    LS_TRY(ls_live_set_look(set));
    *r = ls_live_set_newest(set);
    if (!*r)
        return ls_fail(LS_E_IO, "%s: no run in it; RUN is a folder with metrics.jsonl, or a folder of such folders",
                       set->root[0]);
    while (more) LS_TRY(ls_live_run_update(*r, &more));
    return LS_OK;
}

static int lines_of(const ls_str *s)
{
    int n = 0;
    for (size_t i = 0; i < s->len; i++) n += s->data[i] == '\n';
    return n;
}

static void draw(const ls_live_run *r, bool tty, int *drawn)
{
    ls_str s = {0};
    const ls_screen size = screen_size(tty);
    if (tty && *drawn) ls_str_addf(&s, "\x1b[%dA\r\x1b[J", *drawn); /* over the last one */
    ls_screen_draw(r, &size, &s);
    *drawn = lines_of(&s);
    if (s.data) fwrite(s.data, 1, s.len, stdout);
    fflush(stdout);
    ls_str_fini(&s);
}

/* Waits; true: q, the end of the input, or a signal. */
static bool wants_out(double seconds, bool keys)
{
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    const double end = ls_now() + seconds;
    while (ls_now() < end) {
        char key;
        if (ls_stop_requested()) return true;
        if (poll(&in, keys, 100) > 0 && (read(STDIN_FILENO, &key, 1) <= 0 || key == 'q' || key == 'Q')) return true;
    }
    return false;
}

static bool has_ended(const ls_live_run *r)
{
    return r->state == LS_LIVE_FINISHED || r->state == LS_LIVE_STOPPED || r->state == LS_LIVE_FAILED;
}

static ls_status follow(ls_live_set *set, double interval)
{
    struct termios was, now;
    ls_live_run *r;
    int drawn = 0;
    ls_status st;
    const bool keys = isatty(STDIN_FILENO) && !tcgetattr(STDIN_FILENO, &was);
    ls_stop_install(); /* the terminal is set back before the end */
    if (keys) {
        now = was;
        now.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &now);
    }
    do {
        st = read_run(set, &r);
        if (st == LS_OK) draw(r, true, &drawn);
    } while (st == LS_OK && !has_ended(r) && !wants_out(interval, keys));
    if (keys) (void)tcsetattr(STDIN_FILENO, TCSANOW, &was);
    return st;
}

ls_status cmd_watch(int argc, char **argv)
{
    options o = {0};
    ls_opt_list paths;
    ls_live_set set = {0};
    ls_live_run *r;
    int drawn = 0;
    LS_TRY(cli_parse(&page, &o, argc, argv, &paths, NULL));
    if (paths.n > 1) return ls_fail(LS_E_ARG, "watch shows one run; `lockstep serve` compares several");
    const char *dir = paths.n ? paths.word[0] : "runs";
    if (!ls_fs_is_dir(dir)) return ls_fail(LS_E_IO, "%s: no such folder%s", dir, paths.n ? "" : "; give a run folder");
    LS_TRY(ls_live_set_add(&set, dir));
    const bool tty = isatty(STDOUT_FILENO);
    ls_status st = LS_OK;
    if (tty && !o.once) st = follow(&set, o.interval);
    else if ((st = read_run(&set, &r)) == LS_OK) draw(r, tty, &drawn);
    ls_live_set_fini(&set);
    return st;
}
