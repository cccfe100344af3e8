/* mesh.h - the position of each rank: dp replicas x pp stages x tp shards.
 *
 *   rank = (d * pp + p) * tp + t
 *
 *              stage 0   stage 1   stage 2          dp 2 x pp 3 x tp 2
 *   replica 0   0  1      2  3      4  5
 *   replica 1   6  7      8  9     10 11
 *
 * tp communicates in every layer, so its ranks are neighbours; pp communicates once per micro-batch, between ranks tp apart; dp
 * communicates once per step and is outermost, so it crosses hosts first.
 *
 * The group of a rank along an axis consists of the ranks that differ from it in that coordinate only, ordered by it.
 * Colors and keys are for ls_comm_split over all workers. */
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

/* LS_E_CONFIG, with the arithmetic, if dp * pp * tp != world. dp = 0 means world / (pp * tp). */
ls_status ls_mesh_build(ls_mesh *out, int world, int dp, int pp, int tp);

int ls_mesh_rank(const ls_mesh *m, ls_coord c);
ls_coord ls_mesh_coord(const ls_mesh *m, int rank);

/* The group of `rank` along an axis: the color of the group, and the key of this rank in it. */
void ls_mesh_split(const ls_mesh *m, ls_axis a, int rank, int *color, int *key);

/* Appends the table above. */
void ls_mesh_print(const ls_mesh *m, ls_str *out);

#endif
