/* common.c - what the commands share: options and help pages, output, workers of a launcher. */
#include "cli/commands.h"
#include "config/preset.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/stop.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- commands and options ---- */

ls_status cli_dispatch(const cli_command *table, size_t n, const char *what, const char *list, int argc, char **argv)
{
    const char *names[24];
    LS_ASSERT(n <= CLI_COUNT(names));
    for (size_t i = 0; i < n; i++) {
        if (!strcmp(argv[0], table[i].name)) return table[i].run(argc - 1, argv + 1);
        names[i] = table[i].name;
    }
    const char *near = ls_nearest_word(argv[0], names, n);
    return ls_fail(LS_E_ARG, "unknown %s '%s'%s%s%s (%s)", what, argv[0], near ? "; did you mean " : "",
                   near ? near : "", near ? "?" : "", list);
}

bool cli_is_help(const char *word)
{
    return ls_opt_asks_page(word, NULL);
}

ls_status cli_print_group(const cli_group *g)
{
    cli_json j;
    ls_jsonw *w = cli_json_begin(&j);
    ls_jsonw_put_str(w, "usage", g->usage);
    ls_jsonw_put_open(w, "commands", '[');
    for (size_t i = 0; i < g->n; i++) {
        ls_jsonw_open(w, '{');
        ls_jsonw_members(w, LS_KV("name", g->table[i].name), LS_KV("help", g->table[i].help));
        ls_jsonw_close(w);
    }
    ls_jsonw_close(w);
    ls_jsonw_put_open(w, "forms", '[');
    for (const char *const *f = g->forms; f && *f; f++) ls_jsonw_str(w, *f);
    ls_jsonw_close(w);
    return cli_json_end(&j);
}

ls_status cli_run_group(const cli_group *g, int argc, char **argv)
{
    char list[256] = "";
    for (size_t i = 0, at = 0; i < g->n && at < sizeof list; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", i ? ", " : "", g->table[i].name);
    if (!argc)
        return ls_fail(LS_E_ARG, "%.*s needs one of: %s (each has --help)", (int)strcspn(g->usage, " "), g->usage,
                       list);
    if (!strcmp(argv[0], "--help=json")) return cli_print_group(g);
    if (!cli_is_help(argv[0])) return cli_dispatch(g->table, g->n, g->what, list, argc, argv);
    printf("usage: lockstep %s\n\n%s\n\n", g->usage, g->text);
    for (size_t i = 0; i < g->n; i++) printf("  %-11s %s\n", g->table[i].name, g->table[i].help);
    return LS_OK;
}

ls_status cli_print_options(const ls_opt *table, size_t n, const char *usage)
{
    cli_json j;
    ls_jsonw *w = cli_json_begin(&j);
    ls_jsonw_put_str(w, "usage", usage);
    ls_jsonw_put_open(w, "options", '[');
    ls_opt_json(table, n, w);
    ls_jsonw_close(w);
    return cli_json_end(&j);
}

static ls_status print_page(const cli_page *p, ls_opt_page page)
{
    ls_str s = {0};
    if (page == LS_OPT_JSON) return cli_print_options(p->table, p->n, p->usage);
    ls_str_addf(&s, "usage: lockstep %s\n\n", p->usage);
    ls_opt_text(p->text, &s);
    ls_opt_help(p->table, p->n, page, &s);
    return cli_print(&s);
}

ls_status cli_parse(const cli_page *p, void *options, int argc, char **argv, ls_opt_list *rest, unsigned char *given)
{
    ls_opt_page page = LS_OPT_NO_PAGE;
    LS_TRY(ls_opt_defaults(p->table, p->n, options));
    LS_TRY(ls_opt_parse(p->table, p->n, options, given, argc, argv, rest, &page));
    if (page == LS_OPT_NO_PAGE) return LS_OK;
    LS_TRY(print_page(p, page));
    return LS_E_HELP;
}

ls_status cli_take_words(const ls_opt_list *rest, const char *takes, const char **first, const char **second)
{
    int i = 0;
    if (i < rest->n && !*first) *first = rest->word[i++];
    if (i < rest->n && second && !*second) *second = rest->word[i++];
    return i == rest->n ? LS_OK : ls_fail(LS_E_ARG, "unexpected argument '%s': %s", rest->word[i], takes);
}

ls_status cli_copy_file(const char *from_dir, const char *to_dir, const char *file, bool replace)
{
    char *data = NULL, *old = NULL;
    size_t n = 0, n_old = 0;
    const ls_path from = ls_path_of(from_dir, file), to = ls_path_of(to_dir, file);
    LS_TRY(ls_fs_read(from.text, &data, &n));
    ls_status st = ls_fs_exists(to.text) ? ls_fs_read(to.text, &old, &n_old) : LS_OK;
    const bool differs = st == LS_OK && (!old || n != n_old || memcmp(data, old, n));
    if (differs && old && !replace)
        st = ls_fail(LS_E_ARG, "%s exists and differs from %s; choose another folder or add --force", to.text,
                     from.text);
    else if (differs) st = ls_fs_write(to.text, data, n);
    ls_free(data);
    ls_free(old);
    return st;
}

bool cli_given(const cli_page *p, const unsigned char *given, const char *name)
{
    const size_t i = ls_opt_row(p->table, p->n, name);
    LS_ASSERT(i < p->n);
    return given[i];
}

ls_status cli_parse_workers(const char *flag, const char *text, int most, int *out, int cap, int *n, int *largest)
{
    for (const char *p = text; *p;) {
        char word[16];
        const size_t len = strcspn(p, ",");
        int64_t v;
        snprintf(word, sizeof word, "%.*s", (int)(len < 15 ? len : 15), p);
        if (!ls_parse_i64(word, &v) || v < 1 || v > most || *n == cap)
            return ls_fail(LS_E_ARG, "%s %s: must be up to %d numbers from 1 to %d, such as 1,2,4", flag, text, cap,
                           most);
        out[(*n)++] = (int)v;
        *largest = v > *largest ? (int)v : *largest;
        p += len + (p[len] == ',');
    }
    return *n ? LS_OK : ls_fail(LS_E_ARG, "%s needs at least one number of workers", flag);
}

/* ---- output ---- */

ls_status cli_print(ls_str *s)
{
    const ls_status st = s->failed ? ls_nomem(s->len, "the text to print") : LS_OK;
    if (st == LS_OK && s->data) fputs(s->data, stdout);
    ls_str_fini(s);
    return st;
}

ls_jsonw *cli_json_begin(cli_json *j)
{
    j->text = (ls_str){0};
    ls_jsonw_init(&j->w, &j->text, 2);
    ls_jsonw_open(&j->w, '{');
    return &j->w;
}

ls_status cli_json_end(cli_json *j)
{
    ls_jsonw_close(&j->w);
    ls_str_addc(&j->text, '\n');
    return cli_print(&j->text);
}

bool cli_reader_is_gone(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return ferror(stdout) && poll(&out, 1, 0) > 0 && out.revents & POLLERR;
}

ls_status cli_flush(void)
{
    if (!fflush(stdout) && !ferror(stdout)) return LS_OK;
    return ls_fail(LS_E_IO, "cannot write to stdout: the disk is full or the pipe is closed");
}

void cli_say(FILE *to, ls_colour colour, const char *text)
{
    ls_str s = {0};
    ls_str_add(&s, text);
    ls_str_printable(&s);
    if (s.data && !s.failed) ls_progress_print(to, colour, s.data);
    ls_str_fini(&s);
}

void cli_print_error(int rank, const char *host, ls_status st)
{
    char from[128] = "";
    if (rank >= 0) snprintf(from, sizeof from, "rank %d%s%.80s: ", rank, host ? " on " : "", host ? host : "");
    const bool ctrl_c = st == LS_E_STOPPED && ls_stop_signal() == SIGINT;
    ls_str s = {0};
    ls_str_addf(&s, "lockstep: %s%s: %s\n%s", from, ctrl_c ? "stopped by SIGINT (Ctrl-C)" : ls_status_words(st),
                ls_err_words(), ls_log_on(LS_LOG_DEBUG, "error") ? ls_err_trail() : "");
    ls_progress_end(true);
    if (s.failed) fprintf(stderr, "lockstep: %s%s\n", from, ls_status_words(st));
    else cli_say(stderr, st == LS_E_STOPPED ? LS_COLOUR_WARNING : LS_COLOUR_ERROR, s.data);
    ls_str_fini(&s);
}

void cli_print_device(const ls_device_choice *d, bool trains)
{
    const bool plain = !d->cuda && *d->why && !d->expected; /* no GPU in this machine: `doctor` has the reason */
    if (d->automatic && !(plain && !trains)) ls_progress_say("device: %s\n", plain ? "CPU" : d->words);
}

void cli_print_session(const ls_device_choice *d, const ls_session_opts *how)
{
    cli_print_device(d, false);
    if (d->cuda || how->dtype != LS_BF16 || ls_compute_cpu_bf16().native) return;
    if (ls_compute_cpu_check(LS_BF16) == LS_OK) /* else the session is refused */
        ls_progress_say("bf16 is emulated: this CPU has no bf16 instructions, and --precision fp32 is faster\n");
    ls_err_clear();
}

ls_status cli_negative(void)
{
    ls_err_clear();
    return LS_E_NUMERIC;
}

/* ---- devices, workers, programs ---- */

ls_status cli_choose_device(const cli_device *on, const char *cpu_only, ls_session_opts *how, ls_device_choice *device)
{
    const bool reference = on->compute && strcmp(on->compute, "cpu");
    how->threads = (int)on->threads;
    if (!cpu_only && on->weights && !strcmp(on->weights, "int8")) cpu_only = "--weights";
    LS_TRY(ls_device_choose(on->device, reference ? "--compute" : cpu_only, 1, 0, device));
    return ls_session_where(how, device, on->precision, on->compute ? on->compute : "cpu", on->tf32, on->weights);
}

const char *cli_precision_word(const ls_session_opts *how)
{
    return how->tf32 ? "tf32" : how->dtype == LS_BF16 ? "bf16" : how->dtype == LS_F16 ? "fp16" : "fp32";
}

void cli_session_json(const ls_session *s, const ls_session_opts *how, ls_jsonw *w)
{
    int64_t nbytes;
    const char *weights = ls_session_weights(s, &nbytes);
    ls_jsonw_members(w, LS_KV("weights", weights), LS_KV("precision", cli_precision_word(how)),
                     LS_KV("weight_bytes", nbytes));
}

ls_status cli_check_launcher(const ls_start_env *e)
{
    const char *address = getenv("MASTER_ADDR");
    if (e->by != LS_STARTED_SRUN || (address && *address)) return LS_OK;
    return ls_fail(
        LS_E_CONFIG,
        "srun started %d tasks without PMIx, which cannot connect to each other; use srun --mpi=pmix (with Open MPI), mpirun inside the allocation, or set MASTER_ADDR to the first host of the job (TCP)",
        e->size);
}

ls_status cli_check_comm(const ls_start_env *e, const char *asked)
{
    const bool launched = e->size > 1, mpi = launched && e->by == LS_STARTED_MPI,
               tcp = launched && !mpi && ls_start_several_hosts(e);
    if (!strcmp(asked, "mpi") && !mpi)
        return ls_fail(
            LS_E_CONFIG, "--comm mpi: %s%s; start the workers with mpirun or srun --mpi=pmix and leave -n out",
            launched ? "the workers were started with " : "-n does not start MPI workers", launched ? e->words : "");
    if (!strcmp(asked, "tcp") && !tcp)
        return ls_fail(
            LS_E_CONFIG,
            "--comm tcp: the workers are not on several hosts that meet over TCP; start them with lockstep launch, torchrun, or RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
    if (!strcmp(asked, "local") && (mpi || tcp))
        return ls_fail(
            LS_E_CONFIG,
            "--comm local: not supported under %s; leave it out (workers on one host use shared memory anyway)",
            mpi ? e->words : "several hosts");
    return LS_OK;
}

ls_status cli_join(const ls_start_env *e, double limit, ls_comm **out)
{
    LS_TRY(cli_check_launcher(e));
    if (e->by != LS_STARTED_MPI) return ls_comm_meet(e, limit, out);
    LS_TRY(ls_comm_mpi(out));
    const int size = ls_comm_size(*out);
    if (size == e->size) return LS_OK;
    ls_comm_destroy(out);
    return ls_fail(
        LS_E_CONFIG,
        "%s started %d workers, but MPI connected %d: the launcher belongs to another MPI than the plugin; use the mpirun of the MPI that `lockstep doctor` names",
        e->words, e->size, size);
}

bool cli_find_program(const char *name, char path[4096])
{
    snprintf(path, 4096, "%s", name);
    if (strchr(name, '/')) return access(path, X_OK) == 0;
    const char *p = getenv("PATH");
    if (!p) p = "/usr/bin:/bin";
    while (*p) {
        const size_t n = strcspn(p, ":");
        const int len = snprintf(path, 4096, "%.*s/%s", (int)n, p, name);
        if (n && len > 0 && len < 4096 && access(path, X_OK) == 0) return true;
        p += n + (p[n] == ':');
    }
    return false;
}

bool cli_task_is(int argc, char **argv, const char *task)
{
    bool is = false;
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (!strcmp(argv[i], "--task")) is = i + 1 < argc && !strcmp(argv[i + 1], task);
        else if (!strncmp(argv[i], "--task=", 7)) is = !strcmp(argv[i] + 7, task);
    }
    return is;
}

ls_status cli_preset_words(int argc, char **argv, bool bench, ls_argv *words, ls_train_preset *p)
{
    ls_str notes = {0};
    ls_train_preset ignored;
    const ls_status st = ls_train_preset_words(argc, argv, bench, words, p ? p : &ignored, &notes);
    if (st == LS_OK && notes.data) fputs(notes.data, stderr);
    ls_str_fini(&notes);
    return st;
}
