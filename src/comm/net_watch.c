/* net_watch.c - a thread that sleeps until a worker of the host ends. A worker that has said that it leaves may; for any other one
 * gone() is called. Without pidfd the processes are checked every 0.5 s. */
#include "comm/net_impl.h"

#include "core/mem.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

struct net_watch {
    ls_local_world *world;
    int rank, n;
    struct pollfd fd[MAX_RANK + 1]; /* of each rank, then the one that ends the watch */
    bool by_pid;
    void (*gone)(void *ctx, int rank, int pid);
    void *ctx;
    pthread_t thread;
};

static bool ended(net_watch *w, int p)
{
    if (p == w->rank || (w->fd[p].fd < 0 && !w->by_pid)) return false;
    if (w->by_pid) return kill(atomic_load(&w->world->pid[p]), 0) && errno == ESRCH;
    return w->fd[p].revents != 0;
}

static void *watch_main(void *arg)
{
    net_watch *w = arg;
    for (;;) {
        if (poll(w->fd, (nfds_t)w->n + 1, w->by_pid ? 500 : -1) < 0 && errno != EINTR) return NULL;
        if (w->fd[w->n].revents) return NULL;
        for (int p = 0; p < w->n; p++) {
            if (!ended(w, p)) continue;
            if (w->fd[p].fd >= 0) close(w->fd[p].fd);
            w->fd[p].fd = -1;
            if (atomic_load(&w->world->left[p])) continue;
            w->gone(w->ctx, p, atomic_load(&w->world->pid[p]));
            if (w->by_pid) return NULL;
        }
    }
}

ls_status net_watch_start(ls_local_world *world, int rank, void (*gone)(void *ctx, int rank, int pid), void *ctx,
                          net_watch **out)
{
    net_watch *w = ls_alloc(sizeof *w);
    if (!w) return ls_nomem(sizeof *w, "watching workers");
    *w = (net_watch){.world = world, .rank = rank, .n = world->size, .gone = gone, .ctx = ctx};
    w->fd[w->n] = (struct pollfd){.fd = eventfd(0, EFD_CLOEXEC), .events = POLLIN};
    for (int p = 0; p < w->n; p++) {
        const int pid = atomic_load(&world->pid[p]);
        w->fd[p] = (struct pollfd){.fd = -1, .events = POLLIN};
        if (p == rank || pid == getpid()) continue;
        w->fd[p].fd = (int)syscall(SYS_pidfd_open, pid, 0U);
        if (w->fd[p].fd >= 0) continue;
        if (errno == ESRCH) gone(ctx, p, pid);
        else w->by_pid = true;
    }
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const int made = w->fd[w->n].fd < 0 ? -1 : pthread_create(&w->thread, NULL, watch_main, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (made) {
        for (int p = 0; p <= w->n; p++)
            if (w->fd[p].fd >= 0) close(w->fd[p].fd);
        ls_free(w);
        return ls_fail(LS_E_COMM, "cannot start the watchdog thread");
    }
    *out = w;
    return LS_OK;
}

void net_watch_stop(net_watch **wp)
{
    net_watch *w = *wp;
    if (!w) return;
    const uint64_t one = 1;
    if (write(w->fd[w->n].fd, &one, sizeof one) == (ssize_t)sizeof one) pthread_join(w->thread, NULL);
    for (int p = 0; p <= w->n; p++)
        if (w->fd[p].fd >= 0) close(w->fd[p].fd);
    ls_free(w);
    *wp = NULL;
}
