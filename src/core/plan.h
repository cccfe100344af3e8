/* plan.h - memory, planned before it is taken.
 *
 * Every large buffer is a row: what part it belongs to, its bytes, and the first and last moment of a step at which it is
 * alive. Layout gives rows whose lives overlap different places, and lets the others share. The arena is then one
 * allocation, and the printed plan is the list of what was allocated: the two cannot differ.
 *
 * With a device the arena is its memory, and rows that the host touches (inputs, losses, sums) lie in a second one, of the host's
 * memory that the device reaches. Without one there is no difference between them.
 *
 *   moment   0 … U-1 forward of unit 0 … U-1,  U … 2U-1 backward of unit U-1 … 0,  2U the optimizer step
 *
 *   ls_plan_add(&p, LS_PART_ACT, "h.0 qkv", n, fwd(1), bwd(1))   ->  row number
 *   ls_plan_layout(&p); ls_plan_alloc(&p); ls_plan_at(&p, row)   ->  address
 */
#ifndef LS_CORE_PLAN_H
#define LS_CORE_PLAN_H

#include "core/device.h"
#include "core/err.h"
#include "core/str.h"

#include <stdint.h>

/* clang-format off */
#define LS_PART_LIST(X)                \
    X(LS_PART_PARAM, "parameters")     \
    X(LS_PART_GRAD,  "gradients")      \
    X(LS_PART_OPT,   "optimizer")      \
    X(LS_PART_ACT,   "activations")    \
    X(LS_PART_BUCKET, "buckets")       \
    X(LS_PART_WORK,  "workspace")
/* clang-format on */

typedef enum ls_part {
#define X(part, word) part,
    LS_PART_LIST(X)
#undef X
        LS_N_PART
} ls_part;

const char *ls_part_word(ls_part part);

typedef struct ls_plan_row {
    ls_part part;
    char name[48];
    int64_t nbytes;
    int first, last; /* moments, both included   */
    int64_t offset;  /* in the arena, by layout  */
    bool host;       /* the host touches it      */
} ls_plan_row;

typedef struct ls_plan {
    ls_plan_row *row;
    int n_row, cap;
    int64_t total;           /* bytes of the arena       */
    const ls_device *device; /* whose memory the arena is; NULL: the host's. Set before layout */
    int64_t host_total;      /* bytes of the rows of the host, with a device                   */
    char *host_arena;
    bool host_borrowed;
    int n_copy; /* workers on this machine that hold such an arena; 0 = 1 */
    char *arena;
    bool borrowed; /* the arena is somebody else's memory */
} ls_plan;

#define LS_PLAN_ALWAYS 0, INT32_MAX /* first, last of a buffer that lives through */

/* Returns the row number, or -1 when memory is out (layout then fails). nbytes is rounded up to 64. */
int ls_plan_add(ls_plan *p, ls_part part, int64_t nbytes, int first, int last, const char *name, ...)
    __attribute__((format(printf, 6, 7)));

/* A row that the host touches: it lives always. */
int ls_plan_add_host(ls_plan *p, ls_part part, int64_t nbytes, const char *name);

/* Gives every row its offset: the rows of the fullest moment first, each at the lowest place that no living neighbour holds. */
ls_status ls_plan_layout(ls_plan *p);

/* One allocation of `total` bytes. LS_E_NOMEM says what the plan needs, what the machine has, and the largest parts; with
 * check_only nothing is taken. */
ls_status ls_plan_alloc(ls_plan *p, int check_only);
/* Uses memory of the host that somebody else owns (shared between workers), of ls_plan_host_bytes zeroed bytes, in place of an
 * allocation; a device's memory is allocated. */
int64_t ls_plan_host_bytes(const ls_plan *p);
ls_status ls_plan_take(ls_plan *p, void *memory);
void *ls_plan_at(const ls_plan *p, int row);
void ls_plan_fini(ls_plan *p);

int64_t ls_plan_part_bytes(const ls_plan *p, ls_part part); /* sum over its rows, shared or not */
/* The table that is printed before step 1. */
void ls_plan_print(const ls_plan *p, ls_str *out);

#endif
