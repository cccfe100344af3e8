/* cmd_resize.c - `lockstep resize`: asks the supervisor of a run for another number of workers. */
#include "cli/commands.h"
#include "cli/supervise.h"
#include "core/clock.h"
#include "core/fs.h"
#include "core/lock.h"

#include <time.h>
#include <unistd.h>

#define ANSWER_TIME 10.0 /* seconds */

typedef struct options {
    char unused;
} options;

static const cli_page page = {
    NULL, 0, "resize RUN N",
    "Continue a run that trains with `train -n ... --elastic MIN:MAX` on N workers, from MIN to MAX. The workers finish their step and save a checkpoint, "
    "and N workers continue from it. The batch stays the same, and the result has the same bits. Runs of `lockstep launch` follow their hosts "
    "and cannot be resized by this command.\n\n"
    "  lockstep resize runs/2026-11-16-shakespeare 4"};

/* Waits for the supervisor. */
static ls_status wait_for_answer(const char *ask, const char *path, const char *run, char **text)
{
    size_t n;
    for (const double until = ls_now() + ANSWER_TIME; ls_now() < until;) {
        if (ls_fs_is_file(path)) {
            LS_TRY(ls_fs_read(path, text, &n));
            (void)ls_fs_unlink(path, false);
            return LS_OK;
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
    (void)ls_fs_unlink(ask, false);
    if (ls_lock_is_held(ls_path_of(run, LS_RUN_LOCK).text))
        return ls_fail(
            LS_E_CONFIG,
            "%s: the run has not answered for %g s: it starts, waits before a restart, or was started without "
            "--elastic MIN:MAX; try again",
            run, ANSWER_TIME);
    return ls_fail(LS_E_CONFIG,
                   "%s: no run that trains there can change its number of workers; start it with train -n N --elastic "
                   "MIN:MAX",
                   run);
}

/* `lockstep launch` uses the hosts that answer, and follows no requests. */
static ls_status refuse_launched(const char *run)
{
    if (!ls_lock_is_held(ls_path_of(run, LS_SUPERVISE_LOCK).text)) return LS_OK;
    return ls_fail(LS_E_CONFIG,
                   "%s is a run of lockstep launch: with --elastic its number of workers follows its hosts; only runs "
                   "of train -n N --elastic can be resized",
                   run);
}

static ls_status ask_run(const char *run, int64_t n)
{
    char number[24], *text = NULL;
    const ls_path ask = ls_path_of(run, SUPERVISE_ASK), answer = ls_path_of(run, SUPERVISE_ANSWER);
    (void)ls_fs_unlink(answer.text, false);
    const int len = snprintf(number, sizeof number, "%lld\n", (long long)n);
    LS_TRY(ls_fs_write(ask.text, number, (size_t)len));
    LS_TRY(wait_for_answer(ask.text, answer.text, run, &text));
    ls_status st = LS_OK;
    if (!strcmp(text, SUPERVISE_SAME_NUMBER))
        printf("%s has %lld worker%s already\n", run, (long long)n, n == 1 ? "" : "s");
    else if (strcmp(text, "ok") != 0) st = ls_fail(LS_E_CONFIG, "%s refuses: %s", run, text);
    else printf("%s continues with %lld worker%s after its next step\n", run, (long long)n, n == 1 ? "" : "s");
    ls_free(text);
    return st;
}

ls_status cmd_resize(int argc, char **argv)
{
    options o;
    ls_opt_list rest = {0};
    int64_t n = 0;
    ls_lock one = {0};
    LS_TRY(cli_parse(&page, &o, argc, argv, &rest, NULL));
    if (rest.n != 2 || !ls_parse_i64(rest.word[1], &n) || n < 1 || n > 65536)
        return ls_fail(LS_E_ARG, "give a run folder and a number of workers: lockstep resize RUN N");
    const char *run = rest.word[0];
    if (!ls_fs_is_dir(run)) return ls_fail(LS_E_IO, "%s: no such run folder", run);
    LS_TRY(ls_fs_no_links(run));
    LS_TRY(refuse_launched(run));
    LS_TRY(ls_lock_take(&one, ls_path_of(run, "resize.lock").text, ANSWER_TIME, "one request is answered at a time"));
    const ls_status st = ask_run(run, n);
    ls_lock_release(&one);
    return st;
}
