/* mesh.h - who is where: dp replicas x pp stages x tp slices over one world.
 *
 *   rank = (d * pp + p) * tp + t
 *
 *              stage 0   stage 1   stage 2          dp 2 x pp 3 x tp 2
 *   replica 0   0  1      2  3      4  5
 *   replica 1   6  7      8  9     10 11
 *
 * tp talks in every layer, so its ranks are neighbours; pp talks once a micro-batch, between ranks tp apart; dp talks
 * once a step and is outermost, so it is what crosses hosts first.
 *
 * An axis' group of a rank holds the ranks that differ from it along that axis alone, in the order of that
 * coordinate. Colors and keys are for ls_comm_split over the world. */
#ifndef LS_PARALLEL_MESH_H
#define LS_PARALLEL_MESH_H

#include "core/err.h"
#include "core/str.h"

typedef enum ls_axis { LS_AXIS_DP, LS_AXIS_PP, LS_AXIS_TP, LS_N_AXIS } ls_axis;

typedef struct ls_mesh {
    int n[LS_N_AXIS]; /* dp, pp, tp */
    int world;
} ls_mesh;

typedef struct ls_coord {
    int at[LS_N_AXIS];
} ls_coord;

const char *ls_axis_word(ls_axis a); /* "dp", "pp", "tp" */

/* LS_E_CONFIG with the arithmetic when dp * pp * tp is not world. dp = 0 takes what pp and tp leave over. */
ls_status ls_mesh_build(ls_mesh *out, int world, int dp, int pp, int tp);

int ls_mesh_rank(const ls_mesh *m, ls_coord c);
ls_coord ls_mesh_coord(const ls_mesh *m, int rank);

/* The group of `rank` along an axis: its color among all such groups, this rank's key in it. */
void ls_mesh_split(const ls_mesh *m, ls_axis a, int rank, int *color, int *key);
/* Its ranks; rank[] has room for m->n[a]. */
void ls_mesh_group(const ls_mesh *m, ls_axis a, int rank, int *ranks);

/* The picture above. */
void ls_mesh_print(const ls_mesh *m, ls_str *out);

#endif
