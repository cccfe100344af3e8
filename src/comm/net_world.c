/* net_world.c - the start of a job over several hosts: the transport, then one shared mapping for the workers of each host.
 *
 * The host's first rank makes the mapping and tells the others how to open it:
 *   1. a memfd, through /proc/PID/fd/N: it has no name, nothing is left behind whatever dies;
 *   2. where that is forbidden, a POSIX shared memory object, which loses its name as soon as everyone has it;
 *   3. where neither works (workers in containers of their own), every rank is a host by itself and talks by messages. */
#include "comm/net_impl.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define START_TIME 120.0 /* seconds of the start-up, where nothing else is given */

typedef struct offer {
    int ok, pid, fd;
    char name[64];
} offer;

static ls_status pass(net_world *w, int peer, bool send, void *p, size_t n)
{
    ls_net_op op = {.buf = p, .nbytes = (int)n, .peer = peer, .tag = TAG_BOOT, .send = send}, *one = &op;
    w->t->post(w->net, &op);
    const double left = w->start_until - ls_now();
    const bool done = w->t->wait(w->net, &one, 1, left > 0 ? left : 0);
    if (done && !op.failed) return LS_OK;
    char words[300] = "";
    if (done) w->t->trouble(w->net, words, sizeof words);
    /* op is on this stack and may still be written to: the process ends soon, with this status */
    return done ? ls_fail(LS_E_COMM, "rank %d failed during start-up: %s", w->rank, words)
                : ls_fail(LS_E_COMM, "rank %d got no message from rank %d within %.0f s during start-up", w->rank, peer,
                          w->start_limit);
}

static ls_status make_offer(int method, int size, size_t arena, offer *o, ls_local_world **out)
{
    *o = (offer){.pid = (int)getpid()};
    snprintf(o->name, sizeof o->name, "/lockstep.%d.%llx", o->pid, (unsigned long long)(ls_now() * 1e9));
    o->fd = method == 0 ? local_memfd() : shm_open(o->name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (o->fd < 0) return ls_fail(LS_E_COMM, "cannot create shared memory: %s", strerror(errno));
    LS_TRY(ls_local_world_format(o->fd, size, arena, out));
    o->ok = 1;
    return LS_OK;
}

static ls_status take_offer(int method, const offer *o, int n_local, ls_local_world **out)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", o->pid, o->fd);
    const int fd = method == 0 ? open(path, O_RDWR | O_CLOEXEC) : shm_open(o->name, O_RDWR, 0);
    if (fd < 0) return ls_fail(LS_E_COMM, "cannot open %s: %s", method == 0 ? path : o->name, strerror(errno));
    ls_status st = ls_local_world_open(fd, n_local, out);
    close(fd);
    return st;
}

/* From rank `lead` to every other rank of its host. */
static ls_status send_all(net_world *w, int lead, void *p, size_t n)
{
    for (int r = 0; r < w->size; r++)
        if (r != lead && w->host[r] == w->host[lead]) LS_TRY(pass(w, r, true, p, n));
    return LS_OK;
}

/* The host's first rank `lead` and the others agree on a mapping; 0 in *shared when this way does not work. */
static ls_status try_method(net_world *w, int lead, int method, size_t arena, int *shared)
{
    offer o = {.fd = -1};
    int ok;
    if (w->rank == lead) {
        ok = make_offer(method, w->n_local, arena, &o, &w->world) == LS_OK;
        LS_TRY(send_all(w, lead, &o, sizeof o));
        for (int p = 0; p < w->size; p++) {
            int theirs = 0;
            if (p == lead || w->host[p] != w->host[lead]) continue;
            LS_TRY(pass(w, p, false, &theirs, sizeof theirs));
            ok = ok && theirs;
        }
        LS_TRY(send_all(w, lead, &ok, sizeof ok));
        if (o.fd >= 0) close(o.fd);
        if (method == 1) shm_unlink(o.name);
    } else {
        LS_TRY(pass(w, lead, false, &o, sizeof o));
        int mine = o.ok && take_offer(method, &o, w->n_local, &w->world) == LS_OK;
        LS_TRY(pass(w, lead, true, &mine, sizeof mine));
        LS_TRY(pass(w, lead, false, &ok, sizeof ok));
    }
    if (!ok) ls_local_world_destroy(&w->world);
    *shared = ok;
    return LS_OK;
}

/* all[p] = mine of rank p, through rank 0. */
static ls_status tell_all(net_world *w, int mine, int *all)
{
    if (w->rank) {
        LS_TRY(pass(w, 0, true, &mine, sizeof mine));
        return pass(w, 0, false, all, (size_t)w->size * sizeof *all);
    }
    all[0] = mine;
    for (int p = 1; p < w->size; p++) LS_TRY(pass(w, p, false, &all[p], sizeof *all));
    for (int p = 1; p < w->size; p++) LS_TRY(pass(w, p, true, all, (size_t)w->size * sizeof *all));
    return LS_OK;
}

static void number(net_world *w)
{
    w->n_host = w->n_local = 0;
    for (int p = 0; p < w->size; p++) {
        w->local_of[p] = 0;
        for (int q = 0; q < p; q++) w->local_of[p] += w->host[q] == w->host[p];
        if (w->host[p] >= w->n_host) w->n_host = w->host[p] + 1;
        w->n_local += w->host[p] == w->host[w->rank];
    }
    w->local_rank = w->local_of[w->rank];
}

static ls_status share_memory(net_world *w, size_t arena)
{
    int lead = 0, shared = 0;
    number(w);
    while (w->host[lead] != w->host[w->rank]) lead++;
    if (w->n_local > MAX_RANK)
        return ls_fail(LS_E_CONFIG, "%d workers on one host are not supported; use 1 to %d", w->n_local, MAX_RANK);
    for (int method = 0; method < 2 && !shared; method++) LS_TRY(try_method(w, lead, method, arena, &shared));
    int *all = ls_alloc((size_t)w->size * sizeof *all);
    if (!all) return ls_nomem((size_t)w->size * sizeof *all, "starting");
    ls_status st = tell_all(w, shared, all);
    for (int p = 0, n = 0; p < w->size && st == LS_OK;
         p++) { /* where shared memory does not work, each rank counts as a host of its own */
        int first = 0;
        while (w->host[first] != w->host[p]) first++;
        all[p] = all[p] && first < p ? all[first] : -1 - n++;
    }
    for (int p = 0; p < w->size && st == LS_OK; p++) w->host[p] = -1 - all[p];
    ls_free(all);
    LS_TRY(st);
    number(w);
    return shared ? LS_OK : ls_local_world_create(1, arena, &w->world);
}

static void peer_gone(void *ctx, int local_rank, int pid)
{
    net_world *w = ctx;
    char words[256];
    int rank = 0;
    while (w->host[rank] != w->host[w->rank] || w->local_of[rank] != local_rank) rank++;
    snprintf(words, sizeof words, "rank %d on %s (pid %d) exited", rank, w->hostname, pid);
    net_abort(w, words);
}

void net_world_stop(net_world *w, bool clean)
{
    if (clean) ls_local_world_leave(w->world, w->local_rank);
    else if (atomic_load(&w->world->aborted) > 0) net_tell_abort(w, w->world->abort_words);
    net_watch_stop(&w->watch);
    w->t->stop(w->net, clean);
}

void net_world_free(net_world *w)
{
    local_arena_fini(&w->used);
    ls_local_world_destroy(&w->world);
    ls_free(w->inbox);
    ls_free(w->status);
    ls_free(w->host);
    ls_free(w->local_of);
    pthread_mutex_destroy(&w->lock);
    pthread_mutex_destroy(&w->asking);
    ls_free(w);
}

static ls_status learn_hosts(ls_comm *c)
{
    comm_host mine = {.local_rank = c->place.local_rank};
    snprintf(mine.name, sizeof mine.name, "%.*s", (int)sizeof mine.name - 1, c->hostname);
    return ls_comm_gather(c, &mine, sizeof mine, LS_SITE, &c->hosts);
}

/* The first collectives: everyone has joined, and their hosts. */
static ls_status first_words(net_world *w, ls_comm *c)
{
    const double usual = atomic_load(&c->limit->seconds), left = w->start_until - ls_now();
    atomic_store(&c->limit->seconds, left > 1 ? left : 1);
    ls_status st = ls_barrier(c, LS_SITE);
    if (st == LS_OK) st = learn_hosts(c);
    atomic_store(&c->limit->seconds, usual);
    return st;
}

static ls_status build(net_world *w, const int *host, size_t arena_nbytes, ls_comm **out)
{
    w->host = ls_alloc((size_t)w->size * sizeof *w->host);
    w->local_of = ls_alloc((size_t)w->size * sizeof *w->local_of);
    if (!w->host || !w->local_of) return ls_nomem(64, "a world of workers");
    memcpy(w->host, host, (size_t)w->size * sizeof *w->host);
    LS_TRY(share_memory(w, arena_nbytes));
    LS_TRY(net_service_open(w));
    return net_world_comm(w, out);
}

ls_status net_world_over(const ls_transport *t, void *net, const ls_net_info *info, size_t arena_nbytes, double limit,
                         ls_comm **out)
{
    net_world *w = ls_alloc(sizeof *w);
    if (!w) {
        t->stop(net, false);
        return ls_nomem(sizeof *w, "a world of workers");
    }
    *w = (net_world){.t = t,
                     .net = net,
                     .rank = info->rank,
                     .size = info->size,
                     .start_until = ls_now() + limit,
                     .start_limit = limit};
    pthread_mutex_init(&w->lock, NULL);
    pthread_mutex_init(&w->asking, NULL);
    gethostname(w->hostname, sizeof w->hostname - 1);
    ls_status st = build(w, info->host, arena_nbytes, out);
    if (st != LS_OK) { /* others wait for this rank: its connections end, or the launcher ends them when it is gone */
        t->stop(w->net, false);
        return st;
    }
    atomic_store(&w->world->rank[w->local_rank], w->rank);
    ls_local_world_join(w->world, w->local_rank);
    ls_debug("comm", "%s: rank %d of %d, local rank %d of %d on %s, %d hosts", t->head.name, w->rank, w->size,
             w->local_rank, w->n_local, w->hostname, w->n_host);
    st = first_words(w, *out);
    if (st == LS_OK) st = net_watch_start(w->world, w->local_rank, peer_gone, w, &w->watch);
    if (st != LS_OK) ls_comm_destroy(out);
    return st;
}

ls_status net_world_open(const ls_transport *t, size_t arena_nbytes, ls_comm **out)
{
    ls_net_info info = {0};
    char words[512] = "";
    void *net = NULL;
    if (t->start(&net, &info, words, sizeof words))
        return ls_fail(LS_E_COMM, "%s cannot start: %s", t->head.name, words);
    return net_world_over(t, net, &info, arena_nbytes, START_TIME, out);
}
