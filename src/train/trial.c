#include "train/trial.h"
#include "config/auto.h"
#include "core/clock.h"
#include "train/trainer.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 1000 /* steps */

typedef struct answer {
    ls_status st;
    double step_seconds;
    char words[512];
} answer;

/* The first step fills caches and is not measured. Then the time is measured in parts until two of them agree. */
static ls_status time_steps(ls_trainer *t, double limit, double *step_seconds)
{
    ls_step_result r;
    double part[LS_AUTO_TRIALS], begin = ls_now();
    int64_t left = t->cfg->steps_per_epoch < MOST ? t->cfg->steps_per_epoch - 1 : MOST;
    LS_TRY(ls_trainer_step(t, &r));
    LS_TRY(ls_compute_sync(&t->compute));
    *step_seconds = ls_now() - begin;
    for (int k = 0; k < LS_AUTO_TRIALS && left > 0;) {
        int64_t n = 0;
        for (begin = ls_now(); left > 0 && (!n || ls_now() - begin < limit / 2); n++, left--) {
            LS_TRY(ls_trainer_step(t, &r));
            LS_TRY(ls_compute_sync(&t->compute));
        }
        part[k++] = (ls_now() - begin) / (double)n;
        if (ls_auto_settled(part, k, step_seconds)) break;
    }
    return LS_OK;
}

static void child_main(int fd, ls_train_config *c, double limit)
{
    answer a = {0};
    ls_trainer *t = NULL;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    a.st = ls_trainer_create(&t, c, NULL, &(ls_train_io){0});
    if (a.st == LS_OK) a.st = time_steps(t, limit, &a.step_seconds);
    if (a.st != LS_OK) snprintf(a.words, sizeof a.words, "%s", ls_err_words());
    _exit(write(fd, &a, sizeof a) == (ssize_t)sizeof a ? 0 : 1); /* less than PIPE_BUF: all or nothing */
}

ls_status ls_train_trial(ls_train_config *c, double limit, double *step_seconds)
{
    answer a = {0};
    int fd[2], status = 0;
    ssize_t n;
    if (pipe2(fd, O_CLOEXEC)) return ls_fail(LS_E_IO, "a trial step: pipe: %s", strerror(errno));
    const pid_t pid = fork();
    if (pid == 0) child_main(fd[1], c, limit);
    close(fd[1]);
    do n = pid > 0 ? read(fd[0], &a, sizeof a) : -1;
    while (n < 0 && pid > 0 && errno == EINTR);
    close(fd[0]);
    if (pid < 0) return ls_fail(LS_E_IO, "a trial step: fork: %s", strerror(errno));
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    if (n != (ssize_t)sizeof a) {
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
            return ls_fail(LS_E_NOMEM, "a trial step was killed by SIGKILL, as the system does when memory runs out");
        return ls_fail(LS_E_IO, "the process of a trial step ended without a result");
    }
    if (a.st != LS_OK) return ls_fail(a.st, "%s", a.words);
    *step_seconds = a.step_seconds;
    return LS_OK;
}
