/* nccl_plugin.h - messages and sums between GPUs, as the plugin `nccl` offers them: plain C, no symbol of ours is needed to build it.
 *
 * Everything but join, end and close queues and returns. A call of one group is made by one thread at a time (the caller's lock); only
 * `poll` is asked while a call takes long: true makes it give up. Results are 0 or NCCL's number; words() describes it. */
#ifndef LS_COMM_NCCL_PLUGIN_H
#define LS_COMM_NCCL_PLUGIN_H

#include "core/buf.h"
#include "core/plugin.h"

#define LS_NCCL_ABI     1
#define LS_NCCL_SYMBOL  "ls_nccl_plugin" /* const ls_plugin_head *ls_nccl_plugin(void) */
#define LS_NCCL_GAVE_UP (-1)

typedef struct ls_nccl_id {
    char bytes[128];
} ls_nccl_id;

typedef struct ls_nccl_poll {
    bool (*give_up)(void *ctx);
    void *ctx;
} ls_nccl_poll;

typedef struct ls_nccl {
    ls_plugin_head head;
    int (*gpu)(int device, char *text, size_t room); /* what tells this GPU from the others of its host */
    int (*id)(ls_nccl_id *out);                      /* of a group to be; made by one member, which tells the others */
    /* max_blocks: of the GPU that the group's kernels may take; 0: NCCL's choice. Collective over the group. */
    int (*join)(void **g, int device, const ls_nccl_id *id, int rank, int size, int max_blocks, ls_nccl_poll poll);
    /* Everything between begin and end is one operation: its parts may wait for each other. */
    int (*begin)(void *g);
    int (*end)(void *g, ls_nccl_poll poll);
    int (*send)(void *g, const void *p, size_t nbytes, int peer, void *stream);
    int (*recv)(void *g, void *p, size_t nbytes, int peer, void *stream);
    int (*all_gather)(void *g, void *all, const void *mine, size_t nbytes, void *stream); /* nbytes of each */
    int (*broadcast)(void *g, void *p, size_t nbytes, int root, void *stream);
    /* sums in an order of NCCL's own */
    int (*all_reduce)(void *g, void *x, size_t n, ls_dtype dt, void *stream);
    int (*reduce_scatter)(void *g, void *part, const void *all, size_t n, ls_dtype dt, void *stream); /* n of a part */
    int (*reduce)(void *g, void *out, const void *in, size_t n, ls_dtype dt, int root, void *stream); /* out: at root */
    int (*check)(void *g);                                     /* whether something went wrong in the background */
    void (*words)(void *g, int code, char *text, size_t room); /* g may be NULL */
    void (*abort)(void *g);                                    /* ends its kernels and the group */
    void (*close)(void *g, ls_nccl_poll poll);                 /* when nothing is in flight      */
} ls_nccl;

#endif
