#include "parallel/mesh.h"

#include <stdint.h>
#include <stdio.h>

#define MOST (1 << 20) /* of each axis, so that a product stays below 2^63 */

ls_status ls_mesh_build(ls_mesh *out, int world, int dp, int pp, int tp)
{
    if (world < 1 || dp < 0 || pp < 1 || tp < 1 || dp > MOST || pp > MOST || tp > MOST)
        return ls_fail(LS_E_CONFIG, "a mesh of dp=%d x pp=%d x tp=%d over %d workers: every number must be 1 to %d", dp,
                       pp, tp, world, MOST);
    const int64_t inner = (int64_t)pp * tp;
    if (dp == 0) {
        if (world % inner)
            return ls_fail(
                LS_E_CONFIG,
                "--pp %d x --tp %d needs a multiple of %lld workers, but this run has %d; use %lld or %lld workers", pp,
                tp, (long long)inner, world, (long long)(world < inner ? inner : world / inner * inner),
                (long long)((world / inner + 1 + (world < inner)) * inner));
        dp = (int)(world / inner);
    }
    if (dp * inner != world)
        return ls_fail(LS_E_CONFIG, "dp=%d x pp=%d x tp=%d = %lld, but this run has %d workers", dp, pp, tp,
                       (long long)(dp * inner), world);
    *out = (ls_mesh){.n = {dp, pp, tp}, .world = world};
    return LS_OK;
}

int ls_mesh_rank(const ls_mesh *m, ls_coord c)
{
    return (c.at[LS_AXIS_DP] * m->n[LS_AXIS_PP] + c.at[LS_AXIS_PP]) * m->n[LS_AXIS_TP] + c.at[LS_AXIS_TP];
}

ls_coord ls_mesh_coord(const ls_mesh *m, int rank)
{
    const int pp = m->n[LS_AXIS_PP], tp = m->n[LS_AXIS_TP];
    return (ls_coord){{rank / tp / pp, rank / tp % pp, rank % tp}};
}

void ls_mesh_split(const ls_mesh *m, ls_axis a, int rank, int *color, int *key)
{
    ls_coord c = ls_mesh_coord(m, rank);
    *key = c.at[a];
    *color = 0; /* the other two coordinates, as digits */
    for (int x = 0; x < LS_N_AXIS; x++)
        if (x != (int)a) *color = *color * m->n[x] + c.at[x];
}

void ls_mesh_print(const ls_mesh *m, ls_str *out)
{
    const int dp = m->n[LS_AXIS_DP], pp = m->n[LS_AXIS_PP], tp = m->n[LS_AXIS_TP];
    const int digits = snprintf(NULL, 0, "%d", m->world - 1), label = snprintf(NULL, 0, "replica %d", dp - 1);
    int cell = tp * (digits + 1) - 1;
    const int head = snprintf(NULL, 0, "stage %d", pp - 1);
    cell = cell < head ? head : cell;
    ls_str_addf(out, "dp %d x pp %d x tp %d = %d workers\n%*s", dp, pp, tp, m->world, label, "");
    for (int p = 0; p < pp; p++) {
        char word[32];
        snprintf(word, sizeof word, "stage %d", p);
        ls_str_addf(out, "   %-*s", p < pp - 1 ? cell : 0, word);
    }
    for (int d = 0; d < dp; d++) {
        char word[32];
        snprintf(word, sizeof word, "replica %d", d);
        ls_str_addf(out, "\n%-*s", label, word);
        for (int p = 0; p < pp; p++) {
            ls_str_add(out, "   ");
            for (int t = 0; t < tp; t++)
                ls_str_addf(out, "%*d%s", digits, ls_mesh_rank(m, (ls_coord){{d, p, t}}), t < tp - 1 ? " " : "");
            if (p < pp - 1) ls_str_addf(out, "%*s", cell - tp * (digits + 1) + 1, "");
        }
    }
    ls_str_addc(out, '\n');
}
