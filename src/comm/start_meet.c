/* start_meet.c - workers of one host that got their ranks from torchrun-style variables find each other.
 *
 *   rank 0     a memfd, and a socket in the abstract name space (no file, gone with its process), named after MASTER_PORT
 *   the others connect, say their rank, and get the memfd
 *
 * Whoever dies later is noticed by all (net_watch.c). */
#include "comm/net_impl.h"
#include "comm/start.h"

#include "core/clock.h"
#include "core/log.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MEET_TIME 60.0 /* seconds */

static bool is_here(const char *address)
{
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    return !strcmp(address, "localhost") || !strncmp(address, "127.", 4) || !strcmp(address, "::1") ||
           !strcmp(address, host);
}

static ls_status check_one_host(const ls_start_env *e)
{
    const char *address = getenv("MASTER_ADDR");
    const bool one = e->local_size ? e->local_size == e->size : !address || !*address || is_here(address);
    if (one) return LS_OK;
    return ls_fail(
        LS_E_UNSUPPORTED,
        "WORLD_SIZE is %d, which spans several hosts (LOCAL_WORLD_SIZE %d, MASTER_ADDR %s); start such a run with mpirun or srun --mpi=pmix",
        e->size, e->local_size, address ? address : "not set");
}

static socklen_t name_socket(struct sockaddr_un *a)
{
    const char *port = getenv("MASTER_PORT"), *run = getenv("TORCHELASTIC_RUN_ID");
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    const int n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "lockstep.%d.%.30s.%.30s", (int)getuid(),
                           port ? port : "29500", run ? run : "");
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static ls_status hand_over(int to, int fd)
{
    char byte = 1;
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } box;
    memset(&box, 0, sizeof box);
    struct iovec v = {&byte, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = box.bytes, .msg_controllen = sizeof box.bytes};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(h), &fd, sizeof fd);
    if (sendmsg(to, &m, MSG_NOSIGNAL) != 1)
        return ls_fail(LS_E_COMM, "a worker exited during start-up: %s", strerror(errno));
    return LS_OK;
}

static int taken_over(int from)
{
    char byte;
    int fd = -1;
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } box;
    struct iovec v = {&byte, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = box.bytes, .msg_controllen = sizeof box.bytes};
    if (recvmsg(from, &m, MSG_CMSG_CLOEXEC) != 1) return -1;
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    if (h && h->cmsg_type == SCM_RIGHTS) memcpy(&fd, CMSG_DATA(h), sizeof fd);
    return fd;
}

/* Rank 0: everyone comes once. */
static ls_status receive_all(int door, const ls_start_env *e, int fd)
{
    bool came[MAX_RANK] = {true};
    const double end = ls_now() + MEET_TIME;
    for (int left = e->size - 1; left;) {
        struct pollfd p = {.fd = door, .events = POLLIN};
        const double wait = end - ls_now();
        if (wait <= 0) {
            int missing = 1;
            while (came[missing]) missing++;
            char more[32] = "";
            if (left > 1) snprintf(more, sizeof more, " (and %d more)", left - 1);
            return ls_fail(
                LS_E_COMM,
                "rank %d of %d%s did not connect within %.0f s; each needs its own RANK and the same MASTER_PORT",
                missing, e->size, more, MEET_TIME);
        }
        if (poll(&p, 1, (int)(wait * 1000) + 1) <= 0) continue;
        const int guest = accept4(door, NULL, NULL, SOCK_CLOEXEC);
        struct ucred who = {0};
        socklen_t n = sizeof who;
        int32_t words[2] = {-1, -1};
        ls_status st = LS_OK;
        if (guest < 0) continue;
        if (getsockopt(guest, SOL_SOCKET, SO_PEERCRED, &who, &n) || who.uid != getuid() ||
            recv(guest, words, sizeof words, MSG_WAITALL) != (ssize_t)sizeof words) {
            close(guest); /* not one of ours */
            continue;
        }
        if (words[1] != e->size || words[0] < 1 || words[0] >= e->size || came[words[0]])
            st = ls_fail(LS_E_CONFIG, "a worker with RANK %d and WORLD_SIZE %d tried to join a run of %d workers%s",
                         words[0], words[1], e->size,
                         words[0] >= 0 && words[0] < e->size && came[words[0]] ? "; this rank is already taken" : "");
        if (st == LS_OK) st = hand_over(guest, fd);
        close(guest);
        LS_TRY(st);
        came[words[0]] = true;
        left--;
    }
    return LS_OK;
}

static ls_status host(const ls_start_env *e, ls_local_world **out)
{
    struct sockaddr_un a;
    const socklen_t n = name_socket(&a);
    const int fd = memfd_create("lockstep", MFD_CLOEXEC), door = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ls_status st = LS_OK;
    if (fd < 0 || door < 0) st = ls_fail(LS_E_COMM, "cannot create shared memory or a socket: %s", strerror(errno));
    else if (bind(door, (struct sockaddr *)&a, n) || listen(door, 64))
        st = ls_fail(LS_E_COMM, "MASTER_PORT %s is used by another run of this user; set another port (%s)",
                     getenv("MASTER_PORT") ? getenv("MASTER_PORT") : "29500", strerror(errno));
    if (st == LS_OK) st = ls_local_world_format(fd, e->size, local_machine_nbytes(), out);
    if (st == LS_OK) st = receive_all(door, e, fd);
    if (door >= 0) close(door);
    if (fd >= 0) close(fd);
    return st;
}

static ls_status visit(const ls_start_env *e, ls_local_world **out)
{
    struct sockaddr_un a;
    const socklen_t n = name_socket(&a);
    const int32_t words[2] = {e->rank, e->size};
    for (const double end = ls_now() + MEET_TIME; ls_now() < end;) {
        const int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        int fd = -1;
        if (s >= 0 && !connect(s, (struct sockaddr *)&a, n) &&
            send(s, words, sizeof words, MSG_NOSIGNAL) == (ssize_t)sizeof words)
            fd = taken_over(s);
        if (s >= 0) close(s);
        if (fd >= 0) {
            ls_status st = ls_local_world_open(fd, out);
            close(fd);
            return st;
        }
        nanosleep(&(struct timespec){0, 20000000}, NULL);
    }
    return ls_fail(LS_E_COMM,
                   "rank %d found no rank 0 within %.0f s; all workers need the same MASTER_PORT and one host", e->rank,
                   MEET_TIME);
}

static void peer_gone(void *ctx, int rank, int pid)
{
    char words[200], name[64] = "?";
    gethostname(name, sizeof name - 1);
    snprintf(words, sizeof words, "rank %d on %s (pid %d) exited", rank, name, pid);
    ls_local_world_abort(ctx, rank, words);
}

ls_status ls_comm_meet(const ls_start_env *e, ls_comm **out)
{
    ls_local_world *w = NULL;
    net_watch *watch = NULL;
    LS_TRY(check_one_host(e));
    if (e->size > MAX_RANK)
        return ls_fail(LS_E_CONFIG, "WORLD_SIZE is %d; one host runs 1 to %d workers", e->size, MAX_RANK);
    LS_TRY(e->rank ? visit(e, &w) : host(e, &w));
    ls_info("comm", "%d workers, started by %s, communicate through shared memory", e->size, e->words);
    ls_local_world_join(w, e->rank);
    LS_TRY(ls_comm_local(w, e->rank, out));
    ls_status st = ls_barrier(*out, LS_SITE); /* everyone has joined */
    if (st == LS_OK) st = net_watch_start(w, e->rank, peer_gone, w, &watch);
    if (st != LS_OK) ls_comm_destroy(out);
    else ((local *)(*out)->impl)->watch = watch;
    return st;
}
