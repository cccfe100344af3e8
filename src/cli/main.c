/* main.c - the command table; prints the error of a failed command and chooses the exit code. */
#include "cli/commands.h"
#include "core/deadline.h"
#include "core/inject.h"
#include "core/log.h"
#include "core/stop.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#define STACK_LEAST (1 << 20) /* bytes; threads and libraries take theirs from the same limit */
#define EXIT_TIME   10.0      /* seconds from the end of main to the end of the process */

static const cli_command commands[] = {
    {"prepare", "convert text or JSON lines to token files and a tokenizer", cmd_prepare},
    {"data", "write a small English text; list and download data sets", cmd_data},
    {"train", "train a GPT-2 model", cmd_train},
    {"launch", "run a command on several hosts over ssh, without MPI", cmd_launch},
    {"resize", "change the number of workers of a run that trains", cmd_resize},
    {"eval", "compute validation loss and perplexity of a checkpoint", cmd_eval},
    {"generate", "generate text from a prompt", cmd_generate},
    {"export", "export a checkpoint to Hugging Face, GGUF or llm.c files", cmd_export},
    {"import", "import Hugging Face or llm.c files as a checkpoint", cmd_import},
    {"verify", "check every strategy against a single worker, bit by bit", cmd_verify},
    {"drill", "inject faults into small runs and check that they recover", cmd_drill},
    {"bench", "measure scaling, strategies, A/B pairs, collectives, matmul", cmd_bench},
    {"plan", "rank layouts by speed and memory; draw pipeline schedules", cmd_plan},
    {"watch", "show a run in the terminal while it trains", cmd_watch},
    {"serve", "show runs on a web page while they train, and compare them", cmd_serve},
    {"report", "turn run folders into a report page, tables and charts", cmd_report},
    {"profile", "train with a trace of every worker; summarize nsys output", cmd_profile},
    {"doctor", "check what this machine supports and what is missing", cmd_doctor},
};

bool cli_is_command(const char *name)
{
    for (size_t i = 0; i < CLI_COUNT(commands); i++)
        if (!strcmp(commands[i].name, name)) return true;
    return false;
}

/* Commands, and what other programs call them. */
static const char *const elsewhere[][2] = {
    {"prepare", "tokenize|preprocess|tok_train"},
    {"train", "finetune|pretrain|fit|run|base_train"},
    {"launch", "torchrun|deepspeed|accelerate|mpirun|srun"},
    {"eval", "evaluate|test|perplexity"},
    {"generate", "sample|inference|infer|chat|complete"},
    {"export", "convert"},
    {"doctor", "info|check|env"},
};

/* Words that select another option table of a command. */
static const char *const forms[] = {"prepare --task translate",
                                    "generate --task translate",
                                    "plan --schedule 1f1b",
                                    "report table",
                                    "report charts",
                                    "report verify",
                                    NULL};

static void overview(FILE *f)
{
    fprintf(f, "usage: lockstep COMMAND [OPTIONS]\n\n"
               "Train GPT-2 under data, tensor and pipeline parallelism on CPUs and GPUs.\n"
               "`lockstep help COMMAND` or `lockstep COMMAND --help` lists the common options of\n"
               "a command, --help_all every option. In names of options, - and _ are equal.\n\n"
               "Commands:\n");
    for (size_t i = 0; i < CLI_COUNT(commands); i++) fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].help);
    fprintf(f, "\nFirst run:\n"
               "  lockstep train book.txt             train on a text for 4 minutes (--minutes)\n"
               "  lockstep generate --checkpoint RUN --prompt \"Once upon a time\"\n"
               "  lockstep train --resume RUN         continue; train prints the folder RUN\n"
               "\nExit codes:\n"
               "  0    success\n"
               "  1    the loss or a gradient is not finite, or a comparison failed\n"
               "  2    invalid option or configuration\n"
               "  3    invalid input data, or a file cannot be read or written\n"
               "  4    failure of a worker, a collective or a device, or an internal error\n"
               "  5    not enough memory for the run\n"
               "  130  stopped by Ctrl-C without saving: before the first step, or by a second\n"
               "       Ctrl-C\n"
               "  143  stopped by SIGTERM or Ctrl-C after saving a checkpoint; also by SIGTERM\n"
               "       without saving: before the first step, or by a second SIGTERM\n"
               "\nEnvironment:\n"
               "  LS_DEVICE=auto|cpu|cuda    default of --device\n"
               "  LS_LOG=info|debug|trace    print log lines on stderr (docs/LOGGING.md);\n"
               "                             by subsystem: LS_LOG=info,comm=debug\n");
}

static ls_status run_command(int argc, char **argv)
{
    const bool help = cli_is_help(argv[1]) || !strcmp(argv[1], "help");
    if (argc == 2 && !strcmp(argv[1], "--help=json")) {
        const cli_group all = {
            .usage = "COMMAND [OPTIONS]", .table = commands, .n = CLI_COUNT(commands), .forms = forms};
        return cli_print_group(&all);
    }
    if (help && argc == 2) {
        overview(stdout);
        return LS_OK;
    }
    if (help) { /* help COMMAND: COMMAND --help; --help_all COMMAND: COMMAND --help_all */
        static char option[] = "--help";
        char *asked = argv[1][1] == '-' ? argv[1] : option;
        for (int i = 1; i + 1 < argc; i++) argv[i] = argv[i + 1];
        argv[argc - 1] = asked;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("lockstep %s\n", LS_VERSION);
        return LS_OK;
    }
    for (size_t i = 0; i < CLI_COUNT(elsewhere); i++)
        if (ls_one_of(elsewhere[i][1], argv[1], false))
            return ls_fail(LS_E_ARG, "unknown command '%s'; use `lockstep %s` (lockstep --help lists the commands)",
                           argv[1], elsewhere[i][0]);
    return cli_dispatch(commands, CLI_COUNT(commands), "command", "lockstep --help lists the commands", argc - 1,
                        argv + 1);
}

/* As programs end whose output goes to `head`: without a message, and the shell reports exit code 141. */
static void end_by_sigpipe(void)
{
    signal(SIGPIPE, SIG_DFL);
    raise(SIGPIPE);
}

/* A standard stream that is closed would give its number to the next file that is opened, and log lines would land there. Output to
 * a closed stdout stays an error; stderr goes nowhere. */
static void open_standard_streams(void)
{
    static const int mode[3] = {O_RDONLY, O_RDONLY, O_WRONLY};
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", mode[fd]) != fd) abort();
}

int main(int argc, char **argv)
{
    open_standard_streams();
    ls_log_init(0);
    if (argc < 2) {
        overview(stderr);
        return 2;
    }
    /* Commands write their files also if nobody reads their output. The output of generate is all that it makes. */
    signal(SIGPIPE, !strcmp(argv[1], "generate") ? SIG_DFL : SIG_IGN);
    const bool trains = !strcmp(argv[1], "train");
    struct rlimit stack;
    ls_status st = LS_OK;
    if (!getrlimit(RLIMIT_STACK, &stack) && stack.rlim_cur < STACK_LEAST)
        st = ls_fail(LS_E_CONFIG, "the stack may have %lld KiB, and %d are needed; use ulimit -s 8192",
                     (long long)stack.rlim_cur / 1024, STACK_LEAST / 1024);
    if (st == LS_OK) st = ls_inject_open(getenv("LOCKSTEP_FAULT"));
    if (st == LS_OK && !trains) st = ls_inject_worker(0); /* train: its workers have ranks */
    if (st == LS_OK) st = run_command(argc, argv);
    const bool help = st == LS_E_HELP;
    if (st == LS_OK || help) st = cli_flush();
    if (st == LS_E_IO && (help || !trains) && cli_reader_is_gone()) end_by_sigpipe();
    if (st != LS_OK && *ls_err_words()) /* empty: a worker has printed it already */
        cli_print_error(-1, NULL, st);
    const int code = st == LS_E_STOPPED ? ls_stop_exit_code() : ls_status_exit_code(st);
    (void)ls_deadline_arm(EXIT_TIME, code, "leaving the program (exit handlers of libraries)");
    return code;
}
