/* plan.h - plans all large buffers before they are allocated.
 *
 * Every large buffer is a row: its category (part), its size, and the first and last time of a step at which it is in use. The
 * layout places rows whose lifetimes overlap at different offsets and lets the others share memory. The arena is one allocation,
 * and the printed plan is the list of what was allocated, so the two cannot differ.
 *
 * With a device the arena is device memory, and rows that the host accesses (inputs, losses, sums) are in a second arena of pinned
 * host memory. Without a device there is one arena.
 *
 *   time     0 … U-1 forward of unit 0 … U-1,  U … 2U-1 backward of unit U-1 … 0,  2U the optimizer step
 *
 *   ls_plan_add(&p, LS_PART_ACT, n, 1, 2 * U - 2, "unit %d qkv", 1)   ->  row number
 *   ls_plan_layout(&p); ls_plan_alloc(&p, 0); ls_plan_at(&p, row)  ->  address
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
    int first, last; /* times, both inclusive    */
    int64_t offset;  /* in the arena, by layout  */
    bool host;       /* the host accesses it     */
} ls_plan_row;

typedef struct ls_plan {
    ls_plan_row *row;
    int n_row;
    size_t cap;
    int64_t total;           /* bytes of the arena       */
    const ls_device *device; /* owner of the arena's memory; NULL: the host. Set before layout */
    int64_t host_total;      /* bytes of the host rows, with a device                          */
    char *host_arena;
    bool host_borrowed, host_mapped; /* not owned by the plan; owned, and pinned by it */
    int64_t beside; /* bytes of the device that others will allocate: with the arena they must be free */
    int n_copy;     /* workers on this machine that allocate such an arena; 0 = 1 */
    int n_param;    /* so many of them have parameters in it, which the others use; 0: all */
    int64_t whole;  /* parameters, gradients and optimizer state of the model if they are not sharded; 0: unknown */
    /* advice if the state alone, or all, is too large, and if the host's memory is, beside a device: "use ..."; "": a smaller model */
    char less_state[128], less_act[128], less_host[128];
    char *arena;
    bool borrowed; /* the arena is not owned by the plan */
} ls_plan;

#define LS_PLAN_ALWAYS 0, INT32_MAX /* first, last of a buffer that is always in use */

/* Returns the row number, or -1 if out of memory (layout then fails). nbytes is rounded up to 64. */
int ls_plan_add(ls_plan *p, ls_part part, int64_t nbytes, int first, int last, const char *name, ...)
    __attribute__((format(printf, 6, 7)));

/* A row that the host accesses. It is always in use. */
int ls_plan_add_host(ls_plan *p, ls_part part, int64_t nbytes, const char *name);

/* Bytes of host memory that this process may still take: the machine's available memory, or what the limit of its container leaves. */
int64_t ls_plan_available(void);

/* Assigns the offset of every row: rows of the time of peak use first, each at the lowest offset that is free during its lifetime. */
ls_status ls_plan_layout(ls_plan *p);

/* Allocates `total` bytes at once. LS_E_NOMEM reports the needed and the available memory, the largest parts and what to do. With check_only
 * nothing is allocated. */
ls_status ls_plan_alloc(ls_plan *p, int check_only);
/* Uses host memory of the caller (shared between workers), ls_plan_host_bytes zeroed bytes, instead of an allocation; device memory
 * is allocated. */
int64_t ls_plan_host_bytes(const ls_plan *p);
ls_status ls_plan_take(ls_plan *p, void *memory);
void *ls_plan_at(const ls_plan *p, int row);
void ls_plan_fini(ls_plan *p);

int64_t ls_plan_part_bytes(const ls_plan *p,
                           ls_part part); /* sum over its rows, shared or not; with a device, of its memory */
/* The same at the moment of a step at which most is in use; with the gaps of that moment the parts add up to `total`. */
int64_t ls_plan_part_at_most(const ls_plan *p, ls_part part);
/* Appends the table of train --verbose. */
void ls_plan_print(const ls_plan *p, ls_str *out);
/* The same as one line, in which the communicators' buffers are `sums` bytes. */
void ls_plan_print_line(const ls_plan *p, int64_t sums, ls_str *out);

#endif
