/* commands.h - the commands, one file each, and what they share, including the headers that nearly all of them need. argv has the
 * arguments after the command's name. */
#ifndef LS_CLI_COMMANDS_H
#define LS_CLI_COMMANDS_H

#include "core/argv.h"
#include "core/err.h"
#include "core/json.h"
#include "core/mem.h"
#include "core/opt.h"
#include "core/progress.h"
#include "comm/start.h"
#include "config/options.h"
#include "infer/session.h"
#include "train/profile.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define CLI_COUNT(array) (sizeof array / sizeof array[0])

extern const char cli_built_commit[]; /* that the program was built from (cmake/BuiltCommit.cmake); "unknown" */

typedef ls_status cli_main(int argc, char **argv);
cli_main cmd_prepare, cmd_train, cmd_eval, cmd_generate, cmd_export, cmd_import, cmd_verify, cmd_bench, cmd_plan,
    cmd_report, cmd_profile, cmd_doctor, cmd_launch, cmd_data, cmd_serve, cmd_watch, cmd_drill, cmd_resize;
cli_main cli_plan_schedule;  /* plan --schedule           */
cli_main cli_generate_pairs; /* generate --task translate */
/* prepare --task translate; command: the whole command line, for meta.json */
ls_status cli_prepare_pairs(int argc, char **argv, const char *command);
/* Whether argv has --task with this value. The tasks of a command can have option tables of their own. */
bool cli_task_is(int argc, char **argv, const char *task);

/* ls_train_preset_words; prints its notes. p: NULL where sources are not printed. */
ls_status cli_preset_words(int argc, char **argv, bool bench, ls_argv *words, ls_train_preset *p);

typedef struct cli_command {
    const char *name, *help;
    cli_main *run;
} cli_command;

/* Runs the command that argv[0] names. If there is none: LS_E_ARG "unknown <what> 'name'; did you mean x? (<list>)". */
ls_status cli_dispatch(const cli_command *table, size_t n, const char *what, const char *list, int argc, char **argv);

bool cli_is_command(const char *name); /* of lockstep */

bool cli_is_help(const char *word); /* --help, one of its forms, or -h */

/* A command whose first argument is one of its own commands, as `bench scaling`. */
typedef struct cli_group {
    const char *usage; /* "bench NAME [OPTIONS]", begins with the command's name */
    const char *what;  /* one of the group, in errors: "benchmark" */
    const char *text;
    const cli_command *table;
    size_t n;
    const char *const *forms; /* NULL, or up to NULL: other command lines with a help page of their own */
} cli_group;
/* Runs the one that argv[0] names; --help lists all, --help=json as cli_print_group. */
ls_status cli_run_group(const cli_group *g, int argc, char **argv);
/* {"usage": ..., "commands": [{"name": ..., "help": ...}], "forms": [...]}, from which man pages and completions are made. */
ls_status cli_print_group(const cli_group *g);

/* Rows of an option table whose target is the type `options` of the file. The last arguments are the help and, in the first row of
 * a section, its heading. CLI_INT_IN, CLI_REAL_IN: a number from lo to hi (INT32_MAX: at least lo). */
/* clang-format off */
#define CLI_ROW(kind_, lo_, hi_, name_, field, arg_, def_, ...)                                                  \
    {.name = name_, .kind = LS_OPT_##kind_, .offset = offsetof(options, field), .lo = lo_, .hi = hi_, .arg = arg_, \
     .def = def_, .help = __VA_ARGS__}
#define CLI_SWITCH(name, field, ...)                     CLI_ROW(SWITCH, 0, 0, name, field, NULL, NULL, __VA_ARGS__)
#define CLI_INT_IN(lo, hi, name, field, arg, def, ...)   CLI_ROW(INT, lo, hi, name, field, arg, def, __VA_ARGS__)
#define CLI_POSITIVE(...)                                CLI_INT_IN(1, INT32_MAX, __VA_ARGS__)
#define CLI_REAL_IN(lo, hi, name, field, arg, def, ...)  CLI_ROW(REAL, lo, hi, name, field, arg, def, __VA_ARGS__)
#define CLI_STR(name, field, arg, def, ...)              CLI_ROW(STR, 0, 0, name, field, arg, def, __VA_ARGS__)
#define CLI_CHOICE(name, field, arg, def, ...)           CLI_ROW(CHOICE, 0, 0, name, field, arg, def, __VA_ARGS__)
#define CLI_LIST(name, field, arg, ...)                  CLI_ROW(LIST, 0, 0, name, field, arg, NULL, __VA_ARGS__)
#define CLI_COMMON                                       .common = true /* last in a row: on the first help page */
#define CLI_REFUSES(word_, why)                          .refused = word_, .reason = why /* last in a row of CLI_CHOICE */
#define CLI_ALIAS(name_, of_)                            {.name = name_, .of = of_} /* another name of a row */
/* clang-format on */

/* The options of a command and the rest of its help page. */
typedef struct cli_page {
    const ls_opt *table;
    size_t n;
    const char *usage, *text;
} cli_page;

/* Sets the defaults and parses argv; rest and given: as ls_opt_parse. --help and its forms print the page and return LS_E_HELP, which
 * ends the program with exit code 0. */
ls_status cli_parse(const cli_page *p, void *options, int argc, char **argv, ls_opt_list *rest, unsigned char *given);
/* --help=json: {"usage": ..., "options": [...]} with the rows of ls_opt_json. */
ls_status cli_print_options(const ls_opt *table, size_t n, const char *usage);
/* Writes only what differs; LS_E_ARG if a file that is not to be replaced does. */
ls_status cli_copy_file(const char *from_dir, const char *to_dir, const char *file, bool replace);
/* The words that are no options give what options have not given; second may be NULL. LS_E_ARG, with what the command takes, if any is left. */
ls_status cli_take_words(const ls_opt_list *rest, const char *takes, const char **first, const char **second);
/* Whether the row of this name was on the command line. */
bool cli_given(const cli_page *p, const unsigned char *given, const char *name);

/* Parses "1,2,4" of `flag` ("-n") to at most `cap` numbers from 1 to `most`; *largest may be set before. LS_E_ARG. */
ls_status cli_parse_workers(const char *flag, const char *text, int most, int *out, int cap, int *n, int *largest);

/* The options of commands that compute in this process, in a structure `on` of the options. */
typedef struct cli_device {
    const char *device, *precision, *compute, *weights;
    int64_t threads;
    bool tf32;
} cli_device;
#define CLI_DEVICE_ROWS                                                                                       \
    CLI_DEVICE_ROWS_OF("number format; auto: bf16 on a GPU or a CPU with bf16 instructions, else fp32; fp16 " \
                       "needs a GPU [fp32 on the CPU, bf16 on a GPU, fp16 on one without bf16]")
#define CLI_DEVICE_ROWS_OF(precision_help)                                                                          \
    CLI_STR("device", on.device, "auto|cpu|cuda[:N]", NULL,                                                         \
            "compute device; auto: cuda if a GPU is available, else cpu [LS_DEVICE, else auto]"),                   \
        CLI_CHOICE("precision", on.precision, "fp32|bf16|fp16|auto", NULL, precision_help,                          \
                   CLI_REFUSES("fp8",                                                                               \
                               "only train and verify compute in fp8; use --precision bf16, also for a model that " \
                               "was trained in fp8")),                                                              \
        CLI_SWITCH("tf32", on.tf32, "use TF32 for matrix products (fp32 on a GPU)")
#define CLI_COMPUTE_ROW                                     \
    CLI_CHOICE("compute", on.compute, "cpu|cpu-ref", "cpu", \
               "CPU kernels: optimized (cpu) or plain reference loops (cpu-ref)")
#define CLI_WEIGHTS_ROW                                \
    CLI_CHOICE(                                        \
        "weights", on.weights, "fp32|bf16|int8", NULL, \
        "number format of the matrices: bf16 and int8 read a half and a quarter of the bytes and change results slightly. CPU: bf16 is multiplied in fp32 (with --precision bf16, which needs AMX then, in bf16), int8 by inputs that are rounded to 8 bits. GPU: a copy that is faster with few texts, in bf16 with --precision bf16, or in int8 (with --device cuda; auto is the CPU then) [CPU: fp32, or bf16 with --precision bf16 and AMX; GPU: that of --precision, without a copy]")

/* Chooses the device and sets it in `how`. cpu_only: an option that only the CPU supports, if given; NULL: none. */
ls_status cli_choose_device(const cli_device *on, const char *cpu_only, ls_session_opts *how, ls_device_choice *device);
/* Of matrix products: "fp32", "tf32", "bf16", "fp16". */
const char *cli_precision_word(const ls_session_opts *how);
/* What the session computes with, as members of an open JSON object: weights, precision, weight_bytes. */
void cli_session_json(const ls_session *s, const ls_session_opts *how, ls_jsonw *w);

/* Prints the text to stdout and frees it. LS_E_NOMEM if it is incomplete. */
ls_status cli_print(ls_str *s);

/* A JSON object for stdout: cli_json_begin opens it, cli_json_end closes, prints and frees it. */
typedef struct cli_json {
    ls_jsonw w;
    ls_str text;
} cli_json;
ls_jsonw *cli_json_begin(cli_json *j);
ls_status cli_json_end(cli_json *j);

/* Connects this process with the other workers that mpirun, srun, torchrun or `lockstep launch` started. LS_E_CONFIG if the launcher cannot
 * be used. limit: as in ls_comm_meet. */
ls_status cli_check_launcher(const ls_start_env *e); /* without connecting */
ls_status cli_join(const ls_start_env *e, double limit, ls_comm **out);
/* Whether --comm is possible with workers that were started like this. */
ls_status cli_check_comm(const ls_start_env *e, const char *asked);

/* Finds a program: a path, or a name in PATH. */
bool cli_find_program(const char *name, char path[4096]);

/* Writes what is left in the buffer of stdout. LS_E_IO if anything that this process printed was lost; main calls it after every
 * command. */
ls_status cli_flush(void);
/* Whether something that this process printed was lost because the other end of the pipe is closed, as by `head`. */
bool cli_reader_is_gone(void);
/* Prints "lockstep: [rank N[ on HOST]: ]<kind>: <message>" of this thread's last failure to stderr, without the rank if it is negative,
 * without the host if it is NULL. The call trace follows only if LS_LOG sets the level of the subsystem "error" to debug or trace. */
void cli_print_error(int rank, const char *host, ls_status st);
/* Prints a text that may have names of files and folders in it (ls_str_printable). */
void cli_say(FILE *to, ls_colour colour, const char *text);
/* Prints the device that --device auto chose to stderr, and why; nothing if the user chose it. Where there is no GPU, only a command that
 * trains prints "device: CPU". */
void cli_print_device(const ls_device_choice *d, bool trains);
/* The same, and a note where bf16 is emulated. */
void cli_print_session(const ls_device_choice *d, const ls_session_opts *how);

/* train --serve: a process that shows the run folder. begin: checks the options, opens the port, prints the address to stderr; *pid 0: not
 * asked for. end: gives a page that is open time to read the last values, a few seconds at most. */
ls_status cli_serve_begin(const ls_train_options *o, const char *run_dir, int *pid);
void cli_serve_end(int pid);

/* Writes the trace of a run that ended with status `run` and, on rank 0, its summary, and prints where they are to stderr. Returns
 * `run`, or the failure of writing if the run succeeded. Collective if the run succeeded or was stopped. */
ls_status cli_profile_end(ls_profile **p, ls_comm *comm, const char *run_dir, ls_status run);

/* Exit code 1 for a negative result that has been printed already. */
ls_status cli_negative(void);

#endif
