/* local_impl.h - the shared memory of one host's workers, and the steps of a collective in it. local.c makes a backend of it;
 * net.c uses the same steps inside a host and a network between hosts.
 *
 *   world     │ head │ control blocks (one a communicator) │ mailboxes │ arena of rank 0 │ arena of rank 1 │ …
 *   control   │ per rank: posted, done, two slots (request s lives in slot s & 1)
 *
 * Everything is named by offsets, so each process may map it where it likes. */
#ifndef LS_COMM_LOCAL_IMPL_H
#define LS_COMM_LOCAL_IMPL_H

#include "comm/comm_impl.h"

#include <sched.h>
#include <sys/types.h>

#define MAX_RANK        64
#define N_CONTROL       64
#define SITE_MAX        56
#define LOCAL_HUGE_PAGE ((size_t)2 << 20) /* bytes; the mapping and large blocks of arenas begin at multiples of it */
/* Seconds from the abort of a run to the end of each of its processes, whatever their threads are doing (core/deadline.h). */
#define ABORT_GRACE 8.0

/* What a rank has posted, as the others see it. */
typedef struct local_head {
    uint64_t seq;
    int64_t n_in, n_out;
    int32_t kind, dt, peer, value;
    char site[SITE_MAX];
} local_head;

typedef struct slot {
    local_head head;
    int64_t in, out; /* offsets in the arenas, from that of rank 0 on; -1: `small` */
    _Alignas(64) unsigned char small[LS_COMM_SMALL];
} slot;

typedef struct mailbox { /* from one rank to another */
    _Alignas(64) _Atomic uint64_t sent, taken;
    local_head head;
    int64_t at; /* as `in` of a slot */
    _Alignas(64) unsigned char small[LS_COMM_SMALL];
} mailbox;

typedef struct place {
    _Alignas(64) _Atomic uint64_t posted, done;
    _Atomic double since; /* of the newest post */
    slot slot[2];
} place;

typedef struct control {
    _Alignas(64) _Atomic uint32_t event, waiters;
    _Atomic int members; /* communicators that still use it; the last one clears it and gives it back */
    place at[MAX_RANK];
} control;

struct ls_local_world {
    uint64_t magic, id; /* id: of this one, among those of a host */
    int size;
    size_t arena_nbytes, map_nbytes;
    size_t control_off, mailbox_off, arena_off;
    _Atomic uint64_t free_control; /* one bit per block: 1 = free        */
    _Atomic int aborted;           /* rank + 1                           */
    _Atomic int reporter;          /* the worker that prints why the run ended: rank + 1, or -1: the parent of -n */
    _Atomic int reported;          /* a hang was reported, stack traces requested */
    _Atomic int pid[MAX_RANK];     /* 0: not known yet                   */
    _Atomic int rank[MAX_RANK];    /* in the world of all hosts          */
    _Atomic bool left[MAX_RANK];   /* ended by themselves                */
    _Atomic int ended[MAX_RANK];   /* their status + 1                   */
    _Atomic int early[MAX_RANK];   /* the signal that ended them before the first step (ls_stop_note) */
    cpu_set_t cpus[MAX_RANK];      /* cores each of them was given       */
    _Atomic int held[MAX_RANK];    /* who uses the cores that one of them has to itself (lend.c) */
    _Atomic double free_since[MAX_RANK];
    char abort_words[2048];
};

typedef struct local_block {
    size_t at;
    const void *owner; /* a communicator; NULL: it has ended */
} local_block;

typedef struct local_use {
    size_t used; /* bytes */
    local_block *block;
    int n;
    size_t cap;
} local_use;

typedef struct local {
    ls_local_world *world;
    control *ctl;
    int id;               /* of the control block (mailboxes are per block); -1: a block of its own, off the world */
    int member[MAX_RANK]; /* ranks in the world: whose arena           */
    int label[MAX_RANK];  /* ranks in messages: of the world, or of the communicator that this one serves */
    local_use *used;      /* of this worker's arena, shared by its communicators */
    bool owns_used;
    struct net_watch *watch; /* of a world that this process opened itself: both end with the communicator; else NULL */
    const ls_comm *outer;    /* the communicator that this one serves, or itself: whose limit holds */
    uint64_t n_sent[MAX_RANK], n_taken[MAX_RANK];
    /* (optional) A wider table. `peer`: the other side of a message, as a label; -1: r is a collective. */
    ls_status (*hang)(void *ctx, const comm_req *r, int peer, double waited);
    void *ctx;
} local;

/* ---- world ---- */
control *local_control(ls_local_world *w, int id);
mailbox *local_mailbox(ls_local_world *w, int id, int from, int to);
char *local_arena(ls_local_world *w, int rank);
int local_take_control(ls_local_world *w); /* -1: none is free */
void local_drop_control(ls_local_world *w, int id, int n_member);
void local_wake(control *c);

int local_memfd(void);             /* for ls_local_world_format, which seals its size; -1 with errno */
size_t local_machine_nbytes(void); /* its memory: the default size of an arena */

/* ---- a worker's arena: blocks of LOCAL_HUGE_PAGE bytes or more have huge pages where the kernel gives them ---- */
void *local_arena_take(local_use *u, char *base, size_t room, size_t nbytes, const void *owner); /* NULL: no room */
void local_arena_drop(local_use *u, char *base, const void *owner);
void local_arena_fini(local_use *u);

/* ---- a communicator ---- */
/* What a rank asks of a split. */
typedef struct local_wish {
    int64_t color, key, next_id; /* next_id: of net.c */
} local_wish;
/* order = the ranks with this color, by (key, rank); their number. */
int local_order(const local_wish *all, int n, int color, int *order);
extern const comm_ops local_ops;
void *local_alloc(ls_comm *c, size_t nbytes);
/* A communicator of host workers for a larger one: no lanes of its own, `outer` has the time limit and the message. */
ls_status local_group(ls_local_world *w, int id, const int *member, const int *label, int n, int rank, local_use *used,
                      ls_comm *outer, ls_comm **out);

/* ---- the steps of a collective (seq of r counts them, from 1) ---- */
ls_status local_wait_for(ls_comm *c, const comm_req *r, _Atomic uint64_t *word, uint64_t target);
/* The message of an abort, or a hang that has lasted longer than the limit. */
ls_status local_trouble(ls_comm *c, const comm_req *r, double waited);
void local_note(ls_comm *c, const comm_req *r, bool done); /* publishes the position of this worker, does not wait */
void local_describe(const comm_req *r, local_head *out);
/* Whether two ranks have posted the same collective, and the failure where they have not. */
bool local_same(const local_head *a, const local_head *b);
ls_status local_mismatch(const local_head *mine, int rank, const local_head *theirs, int peer);
/* Whether the message that `peer` sent to `rank` is what r expects. */
ls_status local_check_message(const comm_req *r, int rank, int peer, const local_head *sent);
ls_status local_publish(ls_comm *c, comm_req *r);
ls_status local_finish(ls_comm *c, comm_req *r);
const char *local_in(ls_comm *c, const comm_req *r, int p); /* the input of rank p, wherever it is          */
char *local_out(ls_comm *c, const comm_req *r, int p);      /* its output; NULL when it is not in the arena   */
void local_agree(ls_comm *c, comm_req *r);                  /* r->value = the largest of all ranks       */
ls_status local_run(ls_comm *c, comm_req *r);

/* What a rank is doing in a communicator; a line of the table about it, and whether it is late. */
typedef struct local_position {
    uint64_t posted, done;
    double ago; /* seconds since the newest post */
    local_head head;
} local_position;
local_position local_position_of(const place *at);
bool local_where(ls_str *out, const local_position *p, int label, const char *host, const comm_req *r);
void local_ask_stacks(ls_local_world *w);
/* Whether a process is stopped (SIGSTOP): it neither works nor ends. */
bool local_is_stopped(int pid);
/* Names the cause of a hang: "; rank 3 is stopped (SIGSTOP, pid 99)" if a worker of this host is, in the waiting communicator or not; else
 * "; rank N does not answer …" for one on another host (-1: none); else "; look at rank N" for a suspect (-1: none). w may be NULL. Ranks
 * are those of the world. */
void local_name_culprit(char *who, size_t room, ls_local_world *w, int silent, int suspect);

/* The table of a hang: a line for each of n ranks, those to look at first; what does not fit is counted. `line` writes that of rank p.
 * Returns the first one that is late; -1: none. */
typedef enum local_state { LOCAL_SILENT, LOCAL_LATE, LOCAL_OTHER, LOCAL_NO_LINE } local_state;
int local_table(ls_str *out, int n, local_state (*line)(void *ctx, int p, ls_str *out), void *ctx);
/* Adds " (stopped by SIGSTOP, pid N)" when world rank `rank` is. */
void local_note_stopped(ls_str *out, ls_local_world *w, int rank);

#endif
