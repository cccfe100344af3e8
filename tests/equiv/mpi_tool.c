/* The checks of comm_checks.h as one process of a job over MPI or TCP (tests/equiv/mpi.sh, tcp.sh). Exit codes: 0, 4 when a collective fails, 1 when
 * a check does. `mpi_tool late`: the last rank sleeps, the others must name it. */
#include "comm/start.h"
#include "comm_checks.h"
#include "core/stack.h"

#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    static wrong w;
    ls_comm *c = NULL;
    ls_start_env e = {0};
    if (ls_start_env_read(&e) != LS_OK ||
        (e.by == LS_STARTED_TORCH ? ls_comm_meet(&e, 60, &c) : ls_comm_mpi(&c)) != LS_OK) {
        fprintf(stderr, "mpi_tool: %s\n%s", ls_err_words(), ls_err_trail());
        return 4;
    }
    const int rank = ls_comm_rank(c), W = ls_comm_size(c);
    const ls_comm_place p = ls_comm_where(c);
    char label[32];
    snprintf(label, sizeof label, "rank %d", rank);
    ls_stack_install(label);
    if (argc > 1 && !strcmp(argv[1], "late")) {
        if (ls_barrier(c, LS_SITE) != LS_OK) return 4; /* all ranks have started */
        ls_comm_set_limit(c, 2);                       /* on a busy machine a worker may be late by a part of it */
        for (unsigned left = rank == W - 1 ? 30 : 0; left;)
            left = sleep(left); /* until mpirun ends it; signals interrupt sleep */
        if (rank < W - 1 && ls_barrier(c, LS_SITE) != LS_OK) snprintf(w.words, sizeof w.words, "%s", ls_err_words());
        fprintf(stderr, "mpi_tool: rank %d: %s\n", rank, w.words);
        fflush(NULL);
        sleep(2); /* mpirun ends the others when the first has ended: their stacks are printed before */
        _exit(4);
    }
    ls_comm_set_limit(c, 60);
    const int64_t largest = argc > 1 ? atoll(argv[1]) : 50000;
    checks_every_kind(&w, c, largest);
    checks_overlap(&w, c, largest);
    for (int k = 0; k < 30; k++) checks_splits(&w, c, k == 0 ? largest : 1500); /* more than there are control blocks */
    bool teams =
        W % p.n_host == 0; /* contiguous ranks per host, a power of two of them; otherwise every rank is a team */
    const int L = W / p.n_host;
    for (int r = 0; r < W; r++) {
        int local_rank;
        (void)ls_comm_host(c, r, &local_rank);
        teams = teams && local_rank == r % L && (L & (L - 1)) == 0;
    }
    if (p.n_host == 1) checks_counts(&w, c, 1, W);
    else checks_counts(&w, c, teams ? p.n_host : W, teams ? L : 1);
    if (w.words[0]) {
        fprintf(stderr, "mpi_tool: rank %d of %d: %s\n", rank, W, w.words);
        ls_comm_abort(c, w.words);
        ls_comm_destroy(&c);
        return 1;
    }
    if (!rank) printf("mpi_tool: %d ranks on %d hosts agree\n", W, p.n_host);
    ls_comm_destroy(&c);
    return 0;
}
