/* start_meet.c - workers that got their ranks from torchrun-style variables find each other.
 *
 * On one host:
 *   rank 0     a memfd, and a socket in the abstract name space (no file, gone with its process), named after MASTER_PORT
 *   the others connect and prove the token (meet_impl.h), get the memfd, map it and report
 *   rank 0     when all have reported: "go"
 * On several: tcp_meet.c, then the world of net_world.c.
 *
 * Whoever dies later is noticed by all (net_watch.c, tcp.c). */
#include "comm/meet_impl.h"
#include "comm/net_impl.h"
#include "comm/start.h"
#include "comm/tcp_impl.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#define SILENT_TIME \
    60.0 /* seconds without a sign of life after which a host counts as lost, unless --comm_timeout says otherwise */

static bool is_loopback(const char *address)
{
    return !strcmp(address, "localhost") || !strncmp(address, "127.", 4) || !strcmp(address, "::1");
}

bool ls_start_several_hosts(const ls_start_env *e)
{
    const char *address = getenv("MASTER_ADDR");
    if (e->local_size) return e->local_size != e->size;
    return address && *address && !is_loopback(address);
}

/* ---- one host ---- */

static socklen_t name_socket(struct sockaddr_storage *out, int k)
{
    const char *port = getenv("MASTER_PORT"), *run = getenv("TORCHELASTIC_RUN_ID");
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const int n = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "lockstep.%d.%.30s.%.30s.%d", (int)getuid(),
                           port ? port : "29500", run ? run : "", k);
    *out = (struct sockaddr_storage){0};
    memcpy(out, &a, sizeof a);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* The uid of the process that listens on a name. */
static bool holder(const struct sockaddr_storage *a, socklen_t n, uid_t *uid)
{
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct ucred who = {0};
    socklen_t room = sizeof who;
    const bool found =
        fd >= 0 && !connect(fd, (const struct sockaddr *)a, n) && !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &room);
    if (fd >= 0) close(fd);
    *uid = who.uid;
    return found;
}

/* Refused by every rank at once: as a name it would be accepted, and ranks with another spelling would never meet. */
static ls_status check_port(void)
{
    const char *port = getenv("MASTER_PORT");
    int64_t v;
    if (!port || !*port || (ls_parse_i64(port, &v) && v >= 1 && v <= 65535)) return LS_OK;
    return ls_fail(LS_E_CONFIG, "MASTER_PORT is '%.40s'; it must be a port from 1 to 65535", port);
}

/* A name that a process of another user holds is passed over. */
static ls_status open_door(int *out)
{
    for (int k = 0; k < MEET_DOORS; k++) {
        struct sockaddr_storage a;
        const socklen_t n = name_socket(&a, k);
        uid_t uid = 0;
        *out = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (*out >= 0 && !bind(*out, (struct sockaddr *)&a, n) && !listen(*out, 512)) return LS_OK;
        const int why = errno;
        if (*out >= 0) close(*out);
        *out = -1;
        if (why != EADDRINUSE) return ls_fail(LS_E_COMM, "cannot create a socket: %s", strerror(why));
        if (!holder(&a, n, &uid) || uid == geteuid())
            return ls_fail(LS_E_COMM, "MASTER_PORT %s is used by another run of this user; set another port",
                           getenv("MASTER_PORT") ? getenv("MASTER_PORT") : "29500");
        ls_warn("comm", "the socket of MASTER_PORT %s is held by a process of uid %u; the next name is used",
                getenv("MASTER_PORT") ? getenv("MASTER_PORT") : "29500", (unsigned)uid);
    }
    return ls_fail(LS_E_COMM, "the sockets of MASTER_PORT %s are held by processes of other users; set another port",
                   getenv("MASTER_PORT") ? getenv("MASTER_PORT") : "29500");
}

typedef union fd_box {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
} fd_box;

static ls_status hand_over(int to, int rank, int fd)
{
    char byte = 1;
    fd_box box;
    memset(&box, 0, sizeof box);
    struct iovec v = {&byte, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = box.bytes, .msg_controllen = sizeof box.bytes};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(h), &fd, sizeof fd);
    if (sendmsg(to, &m, MSG_NOSIGNAL) != 1)
        return ls_fail(LS_E_COMM, "rank %d exited during start-up: %s", rank, strerror(errno));
    return LS_OK;
}

static ls_status take_over(meeting *m, int *out)
{
    char byte;
    fd_box box;
    struct iovec v = {&byte, 1};
    struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = box.bytes, .msg_controllen = sizeof box.bytes};
    for (;;) {
        const ssize_t k = recvmsg(m->fd[0], &h, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        if (k > 0) break;
        if (k == 0 || (errno != EAGAIN && errno != EINTR)) return ls_fail(LS_E_COMM, "rank 0 exited during start-up");
        if (ls_now() > m->until)
            return ls_fail(LS_E_COMM, "rank 0 sent no message within %.0f s of the start-up", m->limit);
        struct pollfd p = {m->fd[0], POLLIN, 0};
        (void)poll(&p, 1, 50);
    }
    const struct cmsghdr *c = CMSG_FIRSTHDR(&h);
    if (!c || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof *out))
        return ls_fail(LS_E_COMM, "rank 0 sent no shared memory");
    memcpy(out, CMSG_DATA(c), sizeof *out);
    return LS_OK;
}

/* The descriptor to everyone, a report from each. */
static ls_status share(meeting *m, int fd)
{
    const meet_note go = {.status = LS_OK};
    char ready;
    for (int r = 1; r < m->me.size; r++) {
        LS_TRY(meet_send(m, r, &go, sizeof go));
        LS_TRY(hand_over(m->fd[r], r, fd));
    }
    for (int r = 1; r < m->me.size; r++) LS_TRY(meet_recv(m, r, &ready, 1));
    return LS_OK;
}

static ls_status host(meeting *m, ls_local_world **out)
{
    const meet_note go = {.status = LS_OK};
    LS_TRY(open_door(&m->door));
    for (int r = 1; r < m->me.size; r++) m->expect[r] = true;
    const int fd = local_memfd();
    ls_status st = fd < 0 ? ls_fail(LS_E_COMM, "cannot create shared memory: %s", strerror(errno))
                          : ls_local_world_format(fd, m->me.size, local_machine_nbytes(), out);
    if (st == LS_OK) st = meet_all(m);
    if (st == LS_OK) ls_local_world_join(*out, 0);
    if (st == LS_OK) st = share(m, fd);
    if (fd >= 0) close(fd);
    if (st != LS_OK) return meet_fail_all(m, st);
    for (int r = 1; r < m->me.size; r++) LS_TRY(meet_send(m, r, &go, sizeof go));
    return LS_OK;
}

static ls_status visit(meeting *m, ls_local_world **out)
{
    int fd = -1;
    m->call = ls_alloc(MEET_DOORS * sizeof *m->call);
    if (!m->call) return ls_nomem(MEET_DOORS * sizeof *m->call, "starting");
    for (int k = 0; k < MEET_DOORS; k++) {
        meet_call *c = &m->call[m->n_call++];
        *c = (meet_call){.fd = -1};
        c->n_at = name_socket(&c->at, k);
    }
    m->expect[0] = true;
    LS_TRY(meet_all(m));
    LS_TRY(meet_recv_note(m));
    LS_TRY(take_over(m, &fd));
    ls_status st = ls_local_world_open(fd, m->me.size, out);
    close(fd);
    LS_TRY(st);
    ls_local_world_join(*out, m->me.rank);
    LS_TRY(meet_send(m, 0, "", 1));
    return meet_recv_note(m);
}

static void peer_gone(void *ctx, int rank, int pid)
{
    char words[200], name[64] = "?";
    gethostname(name, sizeof name - 1);
    snprintf(words, sizeof words, "rank %d on %s (pid %d) exited", rank, name, pid);
    ls_local_world_abort(ctx, rank, words);
}

static ls_status meet_here(const ls_start_env *e, double seconds, ls_comm **out)
{
    ls_local_world *w = NULL;
    meeting m;
    char run[100];
    meet_hello me = {.rank = e->rank, .size = e->size};
    LS_TRY(check_port());
    if (e->size > MAX_RANK)
        return ls_fail(LS_E_CONFIG, "WORLD_SIZE is %d; one host runs 1 to %d workers", e->size, MAX_RANK);
    gethostname(me.host, sizeof me.host - 1);
    LS_TRY(meeting_init(&m, &me, ls_now() + seconds, seconds));
    snprintf(run, sizeof run, "%.40s", getenv("TORCHELASTIC_RUN_ID") ? getenv("TORCHELASTIC_RUN_ID") : "");
    m.key = meet_key_of(getenv("LOCKSTEP_TOKEN"), run);
    m.local = true;
    ls_status st = e->rank ? visit(&m, &w) : host(&m, &w);
    meeting_fini(&m);
    if (st == LS_OK) st = ls_comm_local(w, e->rank, out);
    if (st != LS_OK) {
        ls_local_world_destroy(&w);
        return st;
    }
    _Atomic double *wait = &(*out)->limit->seconds;
    const double usual = atomic_load(wait);
    st = net_watch_start(w, e->rank, peer_gone, w, &((local *)(*out)->impl)->watch);
    atomic_store(wait, seconds);
    if (st == LS_OK) st = ls_barrier(*out, LS_SITE); /* everyone watches */
    atomic_store(wait, usual);
    if (st != LS_OK) ls_comm_destroy(out);
    return st;
}

/* ---- several hosts ---- */

static ls_status meet_hosts(const ls_start_env *e, double limit, double seconds, ls_comm **out)
{
    const double end = ls_now() + seconds;
    tcp_links links = {0};
    ls_net_info info = {0};
    void *net = NULL;
    LS_TRY(tcp_meet(e, seconds, &links));
    LS_TRY(tcp_open(&links, limit < 0 ? SILENT_TIME : limit, &net, &info));
    const double left = end - ls_now();
    return net_world_over(&tcp_transport, net, &info, local_machine_nbytes(), left > 5 ? left : 5, out);
}

ls_status ls_comm_meet(const ls_start_env *e, double limit, ls_comm **out)
{
    const double seconds = limit < 0 ? LS_START_LIMIT : limit > 0 ? limit : 1e9;
    const bool several = ls_start_several_hosts(e);
    LS_TRY(several ? meet_hosts(e, limit, seconds, out) : meet_here(e, seconds, out));
    const ls_comm_place p = ls_comm_where(*out);
    if (p.n_host > 1)
        ls_info("comm", "%d workers on %d hosts, started by %s, communicate through shared memory and TCP", e->size,
                p.n_host, e->words);
    else ls_info("comm", "%d workers, started by %s, communicate through shared memory", e->size, e->words);
    return LS_OK;
}
