/* checkpoint_team.c - workers that write or read one folder: all report the failure of one. */
#include "ckpt/checkpoint_impl.h"

#include <stdio.h>
#include <string.h>

#define RANKS (1 << 16)
#define WORDS LS_ERR_WORDS /* a small message (LS_COMM_SMALL) */

ls_comm *ckpt_team(ls_comm *comm)
{
    return comm && ls_comm_size(comm) > 1 ? comm : NULL;
}

int ckpt_rank(const ls_comm *comm)
{
    return comm ? ls_comm_rank(comm) : 0;
}

int ckpt_size(const ls_comm *comm)
{
    return comm ? ls_comm_size(comm) : 1;
}

ls_status ckpt_agree(ls_comm *comm, ls_status mine, const char *site)
{
    if (!comm) return mine;
    ls_err_kept own; /* a failed message would overwrite it */
    char theirs[WORDS];
    const int rank = ls_comm_rank(comm);
    int worst = 0;
    ls_err_keep(&own);
    /* the worst status, and the lowest rank that has it */
    ls_status st = ls_agree(comm, mine == LS_OK ? 0 : (int)mine * RANKS + RANKS - 1 - rank, site, &worst);
    if (st == LS_OK && !worst) return LS_OK;
    const int who = RANKS - 1 - worst % RANKS;
    if (st == LS_OK) {
        memset(theirs, 0, sizeof theirs);
        if (who == rank) memcpy(theirs, own.words, sizeof theirs);
        st = ls_broadcast(comm, (ls_view){theirs, WORDS, LS_U8}, who, site, NULL);
    }
    if (st != LS_OK && mine != LS_OK) /* if a peer died, rank 0 removes the folder while others still write */
        return ls_fail(st, "%s; first error of this worker: %s", ls_err_words(), own.words);
    if (mine != LS_OK) {
        ls_err_restore(&own); /* keep the message of this worker */
        if (who != rank) ls_err_set_peers();
        return mine;
    }
    LS_TRY(st);
    theirs[WORDS - 1] = '\0';
    st = ls_fail((ls_status)(worst / RANKS), "worker %d: %s", who, theirs);
    ls_err_set_peers();
    return st;
}

ls_status ckpt_follow(ls_comm *comm, ls_status st, const char *site)
{
    if (!comm) return st;
    char first[WORDS] = {(char)st};
    const bool first_rank = ls_comm_rank(comm) == 0;
    if (first_rank) snprintf(first + 1, sizeof first - 1, "%s", ls_err_words());
    ls_status sent = ls_broadcast(comm, (ls_view){first, WORDS, LS_U8}, 0, site, NULL);
    if (sent != LS_OK || first_rank) return st;
    return ls_fail((ls_status)first[0], "%s", first + 1);
}

ls_status ckpt_add(ls_comm *comm, ls_view x, const char *site)
{
    if (!comm) return LS_OK;
    LS_TRY(ls_reduce(comm, x, 0, site, NULL));
    return ls_broadcast(comm, x, 0, site, NULL);
}
