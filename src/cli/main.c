/* main.c - the command table; the only place that prints a failure's trail and chooses an exit code. */
#include "cli/commands.h"
#include "core/deadline.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/stop.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_TIME 10.0 /* seconds from the end of main to the end of the process */

typedef struct command {
    const char *name, *help;
    ls_status (*run)(int argc, char **argv);
} command;

static const command commands[] = {
    {"prepare", "text or jsonl to token files and a tokenizer", cmd_prepare},
    {"train", "trains a GPT-2", cmd_train},
    {"eval", "validation loss and perplexity of a checkpoint", cmd_eval},
    {"generate", "text from a prompt", cmd_generate},
    {"export", "a checkpoint as a plain Hugging Face folder", cmd_export},
    {"import", "a Hugging Face folder as a checkpoint to start from", cmd_import},
    {"verify", "holds every strategy against one worker, bit by bit", cmd_verify},
    {"bench", "scaling, strategies, A/B, collectives, matmul: measured with intervals", cmd_bench},
    {"plan", "which layouts fit and which is fastest; a pipeline schedule, drawn", cmd_plan},
    {"report", "run folders to one page, tables and charts", cmd_report},
    {"profile", "trains with a trace of every worker; what nsys printed, to a summary", cmd_profile},
    {"doctor", "what this machine can do, and why a part does not work", cmd_doctor},
};
#define N_COMMAND (sizeof commands / sizeof commands[0])

void cli_help(const char *usage, const char *text, const ls_opt *table, size_t n)
{
    ls_str s = {0};
    ls_opt_help(table, n, &s);
    printf("usage: lockstep %s\n\n%s\n\n%s", usage, text, s.data ? s.data : "");
    ls_str_fini(&s);
}

void cli_say_device(const ls_device_choice *d)
{
    if (d->automatic) fprintf(stderr, "device: %s\n", d->words);
}

static void overview(FILE *f)
{
    fprintf(f, "usage: lockstep COMMAND [OPTIONS]\n\n"
               "Trains GPT-2 and shows the evidence. Commands (each has --help):\n\n");
    for (size_t i = 0; i < N_COMMAND; i++) fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].help);
    fprintf(
        f, "\nA first run:\n\n"
           "  lockstep prepare --input book.txt --out data --tokenizer train --vocab-size 2048\n"
           "  lockstep train --data data --model tiny --max-steps 200 --checkpoint_path run\n"
           "  lockstep generate --checkpoint run --prompt \"Once upon a time\"\n\n"
           "Exit codes: 0 done, 1 a loss or gradient is not a number, 2 bad usage or configuration, 3 bad input data,\n"
           "4 a worker, a collective or a device failed, 5 out of memory by plan,\n"
           "143 stopped by SIGTERM with a checkpoint saved (a second SIGTERM: at once, without saving).\n"
           "LS_DEVICE=cpu (or cuda) is the --device of commands that are not given one.\n"
           "LS_LOG=debug (or subsystem=level) prints more on stderr.\n");
}

static ls_status dispatch(int argc, char **argv)
{
    const char *name = argv[1], *names[N_COMMAND];
    for (size_t i = 0; i < N_COMMAND; i++) {
        if (!strcmp(name, commands[i].name)) return commands[i].run(argc - 2, argv + 2);
        names[i] = commands[i].name;
    }
    const char *near = ls_nearest_word(name, names, N_COMMAND);
    return ls_fail(LS_E_ARG, "there is no command '%s'%s%s%s (lockstep --help lists them)", name,
                   near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

ls_status cli_flush(void)
{
    if (!fflush(stdout) && !ferror(stdout)) return LS_OK;
    return ls_fail(LS_E_IO, "stdout did not take everything that was written: a full disk, or a closed pipe");
}

const char *cli_status_words(ls_status st)
{
    return st == LS_E_STOPPED && ls_stop_signal() == SIGINT ? "stopped by SIGINT (Ctrl-C)" : ls_status_words(st);
}

static ls_status obey(int argc, char **argv)
{
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        overview(stdout);
        return LS_OK;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("lockstep %s\n", LS_VERSION);
        return LS_OK;
    }
    return dispatch(argc, argv);
}

int main(int argc, char **argv)
{
    ls_log_init(0);
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is a write error, not a silent end */
    if (argc < 2) {
        overview(stderr);
        return 2;
    }
    ls_status st = obey(argc, argv);
    if (st == LS_OK) st = cli_flush();
    if (st != LS_OK && *ls_err_words()) /* empty: a worker has said it already */
        fprintf(stderr, "lockstep: %s: %s\n%s", cli_status_words(st), ls_err_words(), ls_err_trail());
    const int code = st == LS_E_STOPPED && ls_stop_at_once() ? 128 + ls_stop_signal() : ls_status_exit_code(st);
    (void)ls_deadline_arm(EXIT_TIME, code, "leaving the program (exit handlers of libraries)");
    return code;
}
