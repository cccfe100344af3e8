/* kernel_source.h - when a device ran which kernel: a table that a plugin may offer next to its operations (symbol LS_KERNEL_SYMBOL).
 *
 * A place names the origin of queued work: pass, unit and operation in one number (ls_kernel_place). Whoever queues work tells the
 * source where it is (`at`, a thread's own); what was recorded (a graph) keeps the places of its recording. */
#ifndef LS_COMPUTE_KERNEL_SOURCE_H
#define LS_COMPUTE_KERNEL_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LS_KERNEL_SYMBOL "ls_kernel_source_plugin"

typedef enum ls_kernel_kind {
    LS_KERNEL_RUN,   /* a kernel                                              */
    LS_KERNEL_COPY,  /* bytes moved                                           */
    LS_KERNEL_FILL,  /* bytes set                                             */
    LS_KERNEL_GRAPH, /* a whole graph, where its kernels are not seen singly  */
    LS_KERNEL_UNIT,  /* all that was queued for a unit, between two marks     */
} ls_kernel_kind;

typedef struct ls_kernel_record {
    const char *name;   /* as the source has it; borrowed for the call */
    int64_t begin, end; /* nanoseconds, CLOCK_MONOTONIC                */
    int64_t bytes;
    uint32_t place; /* 0: unknown                                      */
    uint32_t stream, graph;
    uint8_t kind;
} ls_kernel_record;

typedef struct ls_kernel_facts {
    int64_t seen, dropped; /* records; those that were too many, oldest first       */
    int64_t lost;          /* that the library itself could not keep                */
    int64_t offset[2];     /* ns from its clock to CLOCK_MONOTONIC, at begin and end */
    int64_t error;         /* of the two, at most                                    */
    bool whole_graphs;     /* graphs are seen as one                                 */
} ls_kernel_facts;

typedef void ls_kernel_sink(void *ctx, const ls_kernel_record *r);

typedef struct ls_kernel_source {
    const char *name; /* "CUPTI" */
    /* Room for n_record records, of which the newest are kept. On false, `words` has the reason. */
    bool (*begin)(int64_t n_record, char *words, size_t room);
    /* What this thread queues from now on is for `place`; the place before. */
    uint32_t (*at)(uint32_t place);
    /* After all work is done: every record, in no order. */
    void (*end)(ls_kernel_sink *sink, void *ctx, ls_kernel_facts *facts);
} ls_kernel_source;

typedef const ls_kernel_source *(*ls_kernel_source_fn)(void);

/* unit: the id of core/trace.h's ls_trace_unit (0: none); op from 1 on, 0: none. */
static inline uint32_t ls_kernel_place(uint32_t unit, uint32_t op)
{
    return unit << 8 | op;
}

#endif
