/* decide.c - the operation `decide` of the CPU backends. */
#include "compute/cpu/cpu_impl.h"
#include "compute/decide.h"

static bool all_finite(const ls_decide *a)
{
    for (int i = 0; i < a->n_loss; i++)
        if (!isfinite(a->loss[2 * i])) return false;
    for (int i = 0; i < a->n_amax; i++)
        if (!isfinite(a->amax[i])) return false;
    return true;
}

ls_status cpu_decide(const ls_decide *a)
{
    const double *x = a->block_sum;
    double squares = 0;
    for (int u = 0; u < a->n_unit; x += a->n_block[u++]) {
        double turn[LS_NORM_TURNS] = {0};
        ls_norm_add(turn, 0, x, a->n_block[u]);
        squares += ls_norm_unit(turn);
    }
    const double norm = ls_norm_of(squares, a->unscale);
    *a->out = (ls_decision){.squares = squares,
                            .factor = ls_grad_factor(norm, a->clip, a->unscale),
                            .update = isfinite(norm) && all_finite(a)};
    if (a->host != a->out) *a->host = *a->out;
    return LS_OK;
}
