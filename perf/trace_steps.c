/* trace_steps.c - runs training steps and switches tracing on and off between them; prints one line per step for trace_overhead.py.
 * ls-bench: by name
 *
 *   trace_steps WORKERS PAIRS SEGMENT OPTIONS_OF_TRAIN...
 *
 * A pair is two segments of SEGMENT steps, one traced and one not, in random order, equal on all workers. Both use the
 * same processes and memory and have the same disturbances. Prints "pair traced place seconds cpu_seconds" of rank 0. */
#include "comm/launch.h"
#include "core/rng.h"
#include "train/profile.h"

#include <stdio.h>
#include <stdlib.h>

enum { WARM_UP = 20 };

typedef struct task {
    int workers, pairs, segment, argc;
    char **argv;
} task;

static ls_status go(const task *k, ls_trainer *t, ls_profile **out)
{
    ls_step_result r;
    const int64_t need = (WARM_UP + 2LL * k->pairs * k->segment) * t->cfg->global_batch;
    if (need > t->train.n_seq) /* steps go on within one epoch */
        return ls_fail(LS_E_CONFIG, "%lld sequences are needed, the data has %lld", (long long)need,
                       (long long)t->train.n_seq);
    ls_status st = ls_profile_begin(out, t);
    ls_profile *p = *out;
    for (int i = 0; i < WARM_UP && st == LS_OK; i++) st = ls_trainer_step(t, &r);
    for (int pair = 0; pair < k->pairs && st == LS_OK; pair++)
        for (int half = 0; half < 2 && st == LS_OK; half++) {
            const bool traced = (ls_rng_u64(5, (uint64_t)pair) & 1) == (uint64_t)half;
            st = ls_profile_pause(p, t, !traced);
            for (int i = 0; i < k->segment && st == LS_OK; i++) {
                st = ls_trainer_step(t, &r);
                if (st == LS_OK && ls_comm_rank(t->comm) == 0)
                    printf("%d %d %d %.9f %.9f\n", pair, traced, i, r.t_total, r.cpu * r.t_total * t->compute.n_thread);
            }
        }
    return st;
}

static ls_status worker(void *ctx, ls_comm *comm, int n_core)
{
    const task *k = ctx;
    ls_train_options o;
    ls_train_paths paths = {0};
    ls_train_config c = {0};
    ls_trainer *t = NULL;
    LS_TRY(ls_train_options_parse(k->argc, k->argv, &o));
    LS_TRY(ls_train_find_paths(&o, &paths));
    LS_TRY(ls_train_resolve(&o, NULL, &paths, &(ls_train_facts){.world_size = k->workers, .data_eos_id = -1}, &c));
    if (!c.threads) c.threads = n_core;
    LS_TRY(ls_trainer_create(&t, &c, comm, &(ls_train_io){0}));
    ls_profile *p = NULL;
    ls_status st = go(k, t, &p);
    ls_trainer_destroy(&t);
    ls_profile_drop(&p, comm);
    ls_train_config_fini(&c);
    ls_train_paths_fini(&paths);
    fflush(stdout);
    return st;
}

static void report(void *ctx, int rank, ls_status st)
{
    (void)ctx;
    if (st != LS_OK) fprintf(stderr, "trace_steps: rank %d: %s\n", rank, ls_err_words());
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "trace_steps WORKERS PAIRS SEGMENT OPTIONS_OF_TRAIN...\n");
        return 2;
    }
    task k = {atoi(argv[1]), atoi(argv[2]), atoi(argv[3]), argc - 4, argv + 4};
    const ls_launch l = {.n = k.workers, .arena_nbytes = (size_t)1 << 30, .body = worker, .report = report, .ctx = &k};
    return ls_launch_local(&l) == LS_OK ? 0 : 1;
}
