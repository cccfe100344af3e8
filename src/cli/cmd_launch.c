/* cmd_launch.c - `lockstep launch`: a command on several hosts, over ssh or inside a Slurm job. */
#include "cli/commands.h"
#include "cli/launch_supervise.h"
#include "cli/supervise.h"
#include "comm/launch_hosts.h"
#include "core/fs.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define SSH "ssh -o BatchMode=yes -o ConnectTimeout=15 -o ServerAliveInterval=10 -o ServerAliveCountMax=3"
/* One task per node, which may use all that the job has there: workers find their cores and GPUs themselves. */
#define SRUN "srun --overlap --mpi=none --cpu-bind=none --nodes=1 --ntasks=1 --ntasks-per-node=1"

typedef struct options {
    const char *hosts, *hostfile, *rsh, *program, *address;
    int64_t n, port, max_restarts, hot_spare;
    const char *elastic;
    ls_opt_list env;
    bool slurm, no_prefix, agent;
} options;

static const ls_opt table[] = {
    CLI_STR("hosts", hosts, "HOST[:N],...", NULL, "hosts of the run; :N is the number of workers on a host", "Hosts"),
    CLI_STR("hostfile", hostfile, "FILE", NULL,
            "the same from a file: one host per line, with slots=N for its workers"),
    CLI_SWITCH(
        "slurm", slurm,
        "the nodes of this Slurm job, with srun as remote shell; without -n each has the tasks of --ntasks-per-node"),
    CLI_INT_IN(1, 4096, "n", n, "N", NULL, "number of workers on all hosts together, in equal parts (also -n N)"),
    CLI_STR(
        "master_addr", address, "ADDRESS", NULL,
        "address of the first host as the others reach it; where a restart begins with another host, its name is used [the name of the first host]"),
    CLI_INT_IN(1, 65000, "master_port", port, "PORT", "29500",
               "TCP port of the first host where workers meet; if it is taken, one of the next seven is used"),
    CLI_STR("rsh", rsh, "\"COMMAND\"", NULL,
            "remote shell, called like ssh: COMMAND HOST 'COMMAND LINE' [LOCKSTEP_RSH, else " SSH
            ", with --slurm srun]",
            "Starting"),
    CLI_STR("program", program, "PATH", NULL, "lockstep on the hosts [the path of this program]"),
    CLI_LIST("env", env, "NAME[=VALUE] ...",
             "environment variables for the workers; LS_*, LOCKSTEP_*, NCCL_* and DIST_DEBUG are always passed on"),
    CLI_SWITCH("no_prefix", no_prefix, "print the output of workers without [rank N] in front of each line"),
    CLI_INT_IN(
        0, 1000000, "max_restarts", max_restarts, "N", "0",
        "train: after a failure start the workers again from the newest whole checkpoint; give up after N restarts without a new one; without hosts: restarts the command of another launcher [0; 3 with --elastic or --hot_spare]",
        "Failures"),
    CLI_STR(
        "elastic", elastic, "MIN:MAX", NULL,
        "train: after a lost host continue with the workers of the others, at least MIN; when it answers again, with up to MAX; the result has the same bits [no]"),
    CLI_INT_IN(
        0, LS_LAUNCH_HOSTS, "hot_spare", hot_spare, "N", "0",
        "train: keep the last N hosts of the list free; they replace hosts that are lost (a Slurm job survives a lost node with sbatch --no-kill)"),
    CLI_SWITCH("agent", agent, NULL),
};

static const cli_page page = {
    table, CLI_COUNT(table),
    "launch --hosts a,b -n N [OPTIONS] -- COMMAND ...\n       lockstep launch --slurm [OPTIONS] -- COMMAND ...\n       lockstep launch --max_restarts N -- mpirun ... lockstep train ...",
    "Start N workers of a lockstep command on several hosts, without MPI. Workers of a host communicate through shared memory, hosts over TCP; the result has the same bits as on one host. "
    "Hosts must have the program, the data and the working folder under the same paths, reach each other over TCP, and allow ssh without a password. "
    "A token that launch makes for each run keeps other processes out.\n\n"
    "SIGTERM and SIGINT are passed on to all workers, which save a checkpoint. The exit code is that of the workers. If a worker, a host or this command dies, all workers on all hosts end.\n\n"
    "  lockstep launch --hosts a,b -n 8 -- train --data data --model gpt2 \\\n      --checkpoint_path run\n"
    "  lockstep launch --hosts gpu1:4,gpu2:4 -- verify\n"
    "  lockstep launch --hosts a,b,c -n 8 --hot_spare 1 -- train --data data \\\n      --checkpoint_path run\n"
    "  lockstep launch --slurm --hot_spare 1 -- train --data data \\\n      --checkpoint_path run\n"
    "  lockstep launch --max_restarts 3 -- mpirun -n 8 lockstep train --data data \\\n      --checkpoint_path run"};

/* Adds "host slots=N" lines to a list as --hosts has it. */
static ls_status read_hostfile(const char *path, ls_str *out)
{
    char *text = NULL;
    size_t n = 0;
    LS_TRY(ls_fs_read_most(path, LS_FS_TEXT_MOST, &text, &n));
    for (char *line = text, *next; line && *line; line = next) {
        char name[256] = "", slots[64] = "";
        next = strchr(line, '\n');
        if (next) *next++ = '\0';
        line[strcspn(line, "#")] = '\0';
        if (sscanf(line, "%255s %63s", name, slots) < 1) continue;
        if (*slots && strncmp(slots, "slots=", 6) != 0) {
            const ls_status st = ls_fail(LS_E_FORMAT, "%s: '%.80s' must be a host, or a host and slots=N", path, line);
            ls_free(text);
            return st;
        }
        ls_str_addf(out, "%s%s%s%s", out->len ? "," : "", name, *slots ? ":" : "", *slots ? slots + 6 : "");
    }
    ls_free(text);
    return out->failed ? ls_nomem(out->len, "hosts") : LS_OK;
}

/* The nodes of the Slurm job as --hosts has them. each: workers of a node; "": not given. */
static ls_status read_slurm(const char *each, ls_str *out)
{
    char name[256];
    const char *nodes = getenv("SLURM_JOB_NODELIST");
    if (!nodes || !*nodes)
        return ls_fail(LS_E_ARG, "--slurm: this is no Slurm job (SLURM_JOB_NODELIST is not set); "
                                 "use it in a script of sbatch or after salloc");
    FILE *f = popen("scontrol show hostnames", "r"); /* of SLURM_JOB_NODELIST */
    if (!f) return ls_fail(LS_E_COMM, "cannot run scontrol: %s", strerror(errno));
    while (fscanf(f, "%255s", name) == 1)
        ls_str_addf(out, "%s%s%s%s", out->len ? "," : "", name, *each ? ":" : "", each);
    const int rc = pclose(f);
    if (rc || !out->len)
        return ls_fail(LS_E_COMM, "--slurm: `scontrol show hostnames` lists no nodes of SLURM_JOB_NODELIST=%.200s",
                       nodes);
    return out->failed ? ls_nomem(out->len, "hosts") : LS_OK;
}

/* srun as remote shell. What the job asked for each task or for all nodes is not what one task for a node needs: srun does not get it; the
 * workers do. */
static ls_status use_srun(ls_launch_plan *l)
{
    static const char *const not_for_srun[] = {"SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_GPUS",
                                               "SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU"};
    const char *gpus = getenv("SLURM_GPUS_ON_NODE");
    for (size_t i = 0; i < CLI_COUNT(not_for_srun); i++) {
        const char *v = getenv(not_for_srun[i]);
        if (v) LS_TRY(ls_argv_addf(&l->env, "%s=%s", not_for_srun[i], v));
        unsetenv(not_for_srun[i]);
    }
    if (setenv("SLURM_EXIT_ERROR", "255", 1))
        return ls_nomem(0, "the environment"); /* as ssh ends if it fails itself */
    LS_TRY(ls_argv_split(&l->rsh, SRUN));
    if (gpus && strcmp(gpus, "0") != 0) LS_TRY(ls_argv_addf(&l->rsh, "--gres=gpu:%s", gpus));
    LS_TRY(ls_argv_add(&l->rsh, "--nodelist")); /* the node comes next */
    return ls_argv_split(&l->shell, "sh -c");
}

static bool always_passed(const char *text)
{
    static const char *const prefix[] = {"LS_", "LOCKSTEP_", "NCCL_", "DIST_DEBUG="};
    for (size_t i = 0; i < CLI_COUNT(prefix); i++)
        if (!strncmp(text, prefix[i], strlen(prefix[i])))
            return strncmp(text, "LOCKSTEP_TOKEN=", 15) && strncmp(text, "LOCKSTEP_HOST_ID=", 17);
    return false;
}

static ls_status choose_env(const options *o, ls_argv *out)
{
    for (char **e = environ; *e; e++)
        if (always_passed(*e)) LS_TRY(ls_argv_add(out, *e));
    for (int i = 0; i < o->env.n; i++) {
        const char *w = o->env.word[i], *v = strchr(w, '=') ? NULL : getenv(w);
        if (strchr(w, '=') == w) return ls_fail(LS_E_ARG, "--env %s: the name is missing", w);
        if (!strchr(w, '=') && !v)
            return ls_fail(LS_E_ARG, "--env %s: the variable is not set here; use %s=VALUE", w, w);
        LS_TRY(v ? ls_argv_addf(out, "%s=%s", w, v) : ls_argv_add(out, w));
    }
    return LS_OK;
}

/* Before hosts are connected: a mistake is printed once, not by every worker. */
static ls_status check_command(const char *word)
{
    const char *base = strrchr(word, '/') ? strrchr(word, '/') + 1 : word;
    if (*word == '-' || cli_is_command(word) || !strcmp(word, "help")) return LS_OK;
    if (!strcmp(base, "lockstep"))
        return ls_fail(LS_E_ARG, "after --, give a lockstep command without the word %s, such as: -- train --data data",
                       word);
    return ls_fail(
        LS_E_ARG,
        "'%s' is not a lockstep command, and launch starts no other programs; use, for example: -- train --data data",
        word);
}

static ls_status make_plan(const options *o, const ls_opt_list *rest, char *self, ls_launch_plan *l)
{
    ls_str hosts = {0};
    const char *rsh = o->rsh ? o->rsh : getenv("LOCKSTEP_RSH"), *each = o->n ? NULL : getenv("SLURM_NTASKS_PER_NODE");
    if (!!o->hosts + !!o->hostfile + o->slurm > 1)
        return ls_fail(LS_E_ARG, "--hosts, --hostfile and --slurm: give one of them");
    if (o->hosts) ls_str_add(&hosts, o->hosts);
    ls_status st = o->hostfile ? read_hostfile(o->hostfile, &hosts)
                   : o->slurm  ? read_slurm(each ? each : "", &hosts)
                               : LS_OK;
    l->n_spare = (int)o->hot_spare;
    if (st == LS_OK) st = ls_launch_hosts_parse(hosts.data ? hosts.data : "", (int)o->n, l);
    ls_str_fini(&hosts);
    LS_TRY(st);
    if (!rest->n)
        return ls_fail(LS_E_ARG,
                       "a command is missing, such as: lockstep launch --hosts a,b -n 8 -- train --data data");
    if (!o->program) LS_TRY(check_command(rest->word[0]));
    if (!strcmp(rest->word[0], "launch")) return ls_fail(LS_E_ARG, "launch cannot start itself");
    for (int i = 0; i < rest->n; i++) LS_TRY(ls_argv_add(&l->argv, rest->word[i]));
    if (o->slurm && (!rsh || !*rsh)) LS_TRY(use_srun(l));
    else LS_TRY(ls_argv_split(&l->rsh, rsh && *rsh ? rsh : SSH));
    if (!l->rsh.n) return ls_fail(LS_E_ARG, "--rsh: the command is empty");
    const ssize_t n = readlink("/proc/self/exe", self, 4095);
    if (!o->program && n <= 0)
        return ls_fail(LS_E_UNSUPPORTED, "the path of this program is not known (/proc is missing); use --program");
    if (n > 0) self[n] = '\0';
    l->program = o->program ? o->program : self;
    l->address = o->address;
    l->port = (int)o->port;
    l->no_prefix = o->no_prefix;
    return choose_env(o, &l->env);
}

/* Without hosts: the command of another launcher. */
static ls_status supervise_other(const options *o, const ls_opt_list *rest, const launch_limits *m)
{
    ls_argv command = {0};
    ls_status st = LS_OK;
    if (o->elastic || o->hot_spare)
        return ls_fail(LS_E_ARG, "--%s needs --hosts or --slurm: another launcher chooses its hosts itself",
                       o->elastic ? "elastic" : "hot_spare");
    for (int i = 0; i < rest->n && st == LS_OK; i++) st = ls_argv_add(&command, rest->word[i]);
    if (st == LS_OK) st = launch_supervise_command(&command, m);
    ls_argv_fini(&command);
    return st;
}

ls_status cmd_launch(int argc, char **argv)
{
    options o = {0};
    ls_opt_list rest = {0};
    char self[4096];
    unsigned char given[CLI_COUNT(table)] = {0};
    LS_TRY(cli_parse(&page, &o, argc, argv, &rest, given));
    if (o.agent) return ls_launch_agent();
    const launch_limits m = {.max_restarts = cli_given(&page, given, "max_restarts") ? (int)o.max_restarts : -1,
                             .elastic = o.elastic};
    LS_TRY(supervise_check_spares(o.hot_spare, m.max_restarts));
    const bool supervised = o.max_restarts > 0 || o.hot_spare || o.elastic;
    if (supervised && !o.hosts && !o.hostfile && !o.slurm) return supervise_other(&o, &rest, &m);
    ls_launch_plan *l = ls_alloc(sizeof *l);
    if (!l) return ls_nomem(sizeof *l, "the hosts");
    ls_status st = make_plan(&o, &rest, self, l);
    if (st == LS_OK) st = supervised ? launch_supervise_hosts(l, &m) : ls_launch_hosts(l);
    ls_argv_fini(&l->rsh);
    ls_argv_fini(&l->shell);
    ls_argv_fini(&l->argv);
    ls_argv_fini(&l->env);
    ls_free(l);
    return st;
}
